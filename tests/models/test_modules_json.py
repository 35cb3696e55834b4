"""modules.json of sentence-transformers, in its old and its new spelling; what is wrong with one is in tests/messages."""

import json
from pathlib import Path

import pytest

from uwaga.models.checkpoints import modules_json


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


def test_old_flags_of_pooling(tmp_path: Path) -> None:
    modules = [TRANSFORMER, module("sentence_transformers.models.Pooling", "1_Pooling")]
    result = modules_json.read(write(tmp_path, modules, **{"1_Pooling__config": {"pooling_mode_cls_token": False}}))
    assert result is not None
    assert result.pooling == ("mean",)
