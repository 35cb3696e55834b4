"""modules.json of sentence-transformers, in its old and its new spelling."""

import json
from pathlib import Path

import pytest

from uwaga._base.errors import CheckpointError
from uwaga.models.checkpoints import modules_json, sentence_files


def write(folder: Path, modules: object, **files: object) -> Path:
    (folder / "modules.json").write_text(json.dumps(modules))
    for place, content in files.items():
        path = folder / place.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".json").write_text(json.dumps(content))
    return folder


def module(kind: str, path: str = "") -> dict[str, object]:
    return {"idx": 0, "name": path, "path": path, "type": kind}


TRANSFORMER = module("sentence_transformers.models.Transformer")


def message(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        modules_json.read(folder)
    return str(caught.value)


def test_a_plain_directory_has_none(tmp_path: Path) -> None:
    assert modules_json.read(tmp_path) is None


@pytest.mark.parametrize(
    ("pooling", "modes"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, ("mean",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        ({"pooling_mode": "lasttoken"}, ("lasttoken",)),
        ({"pooling_mode": ["max", "cls"]}, ("max", "cls")),
    ],
)
def test_the_way_of_pooling(tmp_path: Path, pooling: dict, modes: tuple[str, ...]) -> None:
    modules = [TRANSFORMER, module("sentence_transformers.sentence_transformer.modules.pooling.Pooling", "1_Pooling")]
    result = modules_json.read(write(tmp_path, modules, **{"1_Pooling__config": pooling}))
    assert result == modules_json.SentenceModules(transformer=tmp_path, pooling=modes)


def test_other_modules_are_named(tmp_path: Path) -> None:
    modules = [
        TRANSFORMER,
        module("sentence_transformers.models.Dense", "2_Dense"),
        module("sentence_transformers.models.Normalize", "3_Normalize"),
    ]
    result = modules_json.read(write(tmp_path, modules))
    assert result == modules_json.SentenceModules(
        transformer=tmp_path,
        others=(("Dense", tmp_path / "2_Dense"), ("Normalize", tmp_path / "3_Normalize")),
    )


@pytest.mark.parametrize("place", ["../elsewhere", "/etc", "a/../../b", "..\\b", "a\0b"])
def test_a_module_is_inside_its_directory(tmp_path: Path, place: str) -> None:
    write(tmp_path, [module("sentence_transformers.models.Transformer", place)])
    path = tmp_path / "modules.json"
    shown = place if place.isprintable() else ascii(place)
    assert message(tmp_path) == f"{path} names the folder {shown!r}, which is not inside its own"


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    path = tmp_path / "modules.json"
    write(tmp_path, {"0": TRANSFORMER})
    assert message(tmp_path) == f"{path} must contain a JSON list, not dict"
    write(tmp_path, [{"type": "sentence_transformers.models.Transformer"}])
    assert message(tmp_path) == f"{path} must list modules with a type and a path"
    write(
        tmp_path, [module("sentence_transformers.models.Pooling", "1"), module("sentence_transformers.models.Bow", "2")]
    )
    assert message(tmp_path) == f"{path} has no module of the type Transformer, only Pooling, Bow"
    write(
        tmp_path,
        [TRANSFORMER, module("sentence_transformers.models.Pooling", "p")],
        p__config={"pooling_mode": "median"},
    )
    assert message(tmp_path) == f"{tmp_path / 'p' / 'config.json'} has no supported pooling mode"
    write(tmp_path, [TRANSFORMER], sentence_bert_config={"max_seq_length": "64"})
    with pytest.raises(CheckpointError) as caught:
        sentence_files.read(tmp_path, is_module=True)
    assert str(caught.value) == (
        f"{tmp_path / 'sentence_bert_config.json'}: max_seq_length must be a whole number of at least 1, not '64'"
    )


def test_modules_whose_order_names_or_package_would_be_ignored(tmp_path: Path) -> None:
    """sentence-transformers computes them in their order, keeps one of two with a name, and runs code for other packages."""
    pooling, norm = (module(f"sentence_transformers.models.{kind}", kind) for kind in ("Pooling", "Normalize"))
    path = tmp_path / "modules.json"
    for listed, shown in (
        ([TRANSFORMER, norm, pooling], "Transformer, Normalize, Pooling"),
        ([pooling, TRANSFORMER], "Pooling, Transformer"),
        ([TRANSFORMER, TRANSFORMER | {"name": "1"}, pooling], "Transformer, Transformer, Pooling"),
    ):
        write(tmp_path, listed)
        assert (
            message(tmp_path) == f"{path}: one Transformer must come first, and one Pooling may follow it, not {shown}"
        )
    write(tmp_path, [TRANSFORMER, pooling, norm | {"name": "Pooling"}])
    assert message(tmp_path) == (
        f"{path}: two modules have the name 'Pooling', and sentence-transformers keeps one of them; give each a name of its own"
    )
    write(tmp_path, [module("custom_st.Transformer")])
    assert message(tmp_path) == (
        f"{path}: the type custom_st.Transformer is no module of sentence_transformers; the code that comes with a model is never run here; "
        "sentence_transformers.SentenceTransformer may read it with trust_remote_code=True"
    )


def test_old_flags_of_pooling(tmp_path: Path) -> None:
    modules = [TRANSFORMER, module("sentence_transformers.models.Pooling", "1_Pooling")]
    result = modules_json.read(write(tmp_path, modules, **{"1_Pooling__config": {"pooling_mode_cls_token": False}}))
    assert result is not None
    assert result.pooling == ("mean",)
    write(tmp_path, modules, **{"1_Pooling__config": {"pooling_mode_cls_token": 1}})
    path = tmp_path / "1_Pooling" / "config.json"
    assert message(tmp_path) == f"{path}: pooling_mode_cls_token must be true or false, not 1"
