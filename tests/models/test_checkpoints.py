"""Directories with models: every form in which weights are stored. The model is one of ours: what transformers writes is compared in
test_families.py, and what is wrong with a directory in tests/messages."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import full_disk
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tiny_families import WHERE, read_config
from torch import Tensor

from uwaga._base.errors import CheckpointError
from uwaga.models import Transformer, config, load, save
from uwaga.models.families import family_of
from uwaga.models.families.family import File

IDS = torch.tensor([[3, 4, 5]])


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "d_model": 8, "num_layers": 2, "num_heads": 2, "d_ff": 16, "max_position_embeddings": 10}
    return Transformer(config("bert", outputs=("pooled", "logits"), **sizes)).eval()


@pytest.fixture
def folder(model: Transformer, tmp_path: Path) -> Path:
    save(model, tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """Change the weights in a folder; its file of weights comes back."""
    path = folder / "model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}
    change(weights)
    save_file(weights, path)
    return path


def describe(folder: Path, **changes: object) -> Path:
    """Change config.json; None takes a key away. Its path comes back."""
    path = folder / "config.json"
    result = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in result.items() if value is not None}))
    return path


def same(a: Transformer, b: Transformer) -> bool:
    there = b.state_dict()
    return all(torch.equal(weight, there[name]) for name, weight in a.state_dict().items())


# Every form.


def shard(folder: Path, write: Callable, suffix: str) -> Path:
    """The weights of a folder over two files and an index, as transformers names them."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = sorted(weights)
    halves = {
        f"{stem}-00001-of-00002.{suffix}": names[: len(names) // 2],
        f"{stem}-00002-of-00002.{suffix}": names[len(names) // 2 :],
    }
    for file, part in halves.items():
        write({name: weights[name] for name in part}, folder / file)
    index = folder / f"{stem}.{suffix}.index.json"
    weight_map = {name: file for file, part in halves.items() for name in part}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


@pytest.mark.parametrize(("write", "suffix"), [(save_file, "safetensors"), (torch.save, "bin")])
def test_shards_are_one_model_and_one_file_beside_them_is_refused(
    model: Transformer, folder: Path, write: Callable, suffix: str
) -> None:
    """Whichever is meant: transformers loads the one file, and a download or a copy may have left either."""
    weights = load_file(folder / "model.safetensors")
    index = shard(folder, write, suffix)
    assert same(model, load(folder))
    single = index.name.removesuffix(".index.json")
    write(weights, folder / single)
    with pytest.raises(CheckpointError, match="lists other files"):
        load(folder)
    table = json.loads(index.read_text())
    index.write_text(json.dumps(table | {"weight_map": dict.fromkeys(table["weight_map"], single)}))
    assert same(model, load(folder))
    table["weight_map"].popitem()
    index.write_text(json.dumps(table | {"weight_map": dict.fromkeys(table["weight_map"], single)}))
    with pytest.raises(CheckpointError, match="does not match its files"):
        load(folder)


def test_the_transformer_of_a_sentence_transformers_directory_is_read(model: Transformer, folder: Path) -> None:
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).rename(inner / name)
    modules = [{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    assert same(model, load(folder))


def test_names_of_old_files_are_understood(model: Transformer, folder: Path) -> None:
    def age(weights: dict[str, Tensor]) -> None:
        for name in list(weights):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            weights[old] = weights.pop(name)
        weights["bert.embeddings.position_ids"] = torch.arange(10)[None]
        weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()

    rewrite(folder, age)
    assert same(model, load(folder))


@pytest.mark.parametrize("stored", [torch.float64, torch.float16])
def test_weights_keep_their_dtype(model: Transformer, folder: Path, stored: torch.dtype) -> None:
    save(model.to(stored), folder)
    again = load(folder)
    assert {parameter.dtype for parameter in again.parameters()} == {stored}
    assert same(model, again)
    assert {parameter.dtype for parameter in load(folder, dtype=torch.float32).parameters()} == {torch.float32}
    assert json.loads((folder / "config.json").read_text())["dtype"] == str(stored).removeprefix("torch.")


def test_saving_over_what_was_loaded_leaves_the_model_alone(model: Transformer, folder: Path) -> None:
    loaded = load(folder)
    other = Transformer(model.config).eval()
    save(other, folder)
    assert same(loaded, model)
    assert same(load(folder), other)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_save_that_fails_leaves_what_was_there(model: Transformer, folder: Path) -> None:
    """A disk that is too small; and a safetensors file cannot have two weights in one memory."""
    other = Transformer(model.config)
    with full_disk.room_for(4000), pytest.raises(SafetensorError, match="File too large"):
        save(other, folder)
    assert same(load(folder), model)
    other.pooler.dense.bias = other.encoder.layers[0].attention.output.bias
    with pytest.raises(RuntimeError, match="share memory"):
        save(other, folder)
    assert same(load(folder), model)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_refused_save_changes_no_shards_and_makes_no_folder(model: Transformer, folder: Path, tmp_path: Path) -> None:
    shard(folder, save_file, "safetensors")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CheckpointError, match="of a model in several files"):
        save(model, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(CheckpointError, match="transformers has no BertModel"):
        save(Transformer(replace(model.config, outputs=("logits", "tokens"))), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("stacks", [{}, {"num_layers": 0}], ids=["both", "decoder"])
@pytest.mark.parametrize("head", [{"tie_word_embeddings": False}, {"lm_head_bias": True}], ids=["untied", "bias"])
def test_a_transformer_that_was_saved_without_its_head_is_loaded_without_it(
    tmp_path: Path, stacks: dict, head: dict
) -> None:
    sizes = {"vocab_size": 20, "d_model": 8, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "d_ff": 16}
    made = Transformer(config("uwaga-transformer", outputs=(), **(sizes | stacks | head)))
    save(made, tmp_path)
    assert replace(load(tmp_path).config, kept={}) == made.config


# The hub.


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """A hub that has one repository, in place of the real one, which tests cannot reach; the calls that it got."""
    from fnmatch import fnmatch

    calls: list[dict] = []

    def snapshot_download(hub_id: str, **options) -> str:
        calls.append({"id": hub_id, **options})
        there = tmp_path / "cache"
        there.mkdir(exist_ok=True)
        for path in filter(Path.is_file, folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if any(fnmatch(name, pattern) for pattern in options["allow_patterns"]):
                (there / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, there / name)
        return str(there)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return calls


def test_what_is_no_directory_is_looked_for_on_the_hub(model: Transformer, hub: list[dict]) -> None:
    assert same(model, load("somebody/something", revision="abc"))
    assert [(call["id"], call["revision"]) for call in hub] == [("somebody/something", "abc")]


def test_pickles_are_fetched_only_where_there_is_nothing_better(
    model: Transformer, folder: Path, hub: list[dict]
) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    load("somebody/something")
    assert len(hub) == 1
    (folder / "model.safetensors").unlink()
    shutil.rmtree(folder.parent / "cache")
    assert same(model, load("somebody/something"))
    assert ["pytorch_model*.bin" in call["allow_patterns"] for call in hub] == [False, False, True]


def test_files_of_modules_are_fetched_whatever_their_folders_are_called(
    model: Transformer, folder: Path, hub: list[dict]
) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    for name in ("head/model.safetensors", "deep/2_Dense/pytorch_model.bin", "checkpoint-500/model.safetensors"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"weights")
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in (("Transformer", ""), ("Dense", "head"), ("Dense", "deep/2_Dense"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    assert same(model, load("somebody/something"))
    cache = folder.parent / "cache"
    assert {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()} >= {
        "chat_template.jinja",
        "head/model.safetensors",
        "deep/2_Dense/pytorch_model.bin",
    }
    assert not (cache / "checkpoint-500").exists()


# config.json; of all model types together: test_families.py.


def test_what_classifiers_have_where_the_file_does_not_say() -> None:
    nothing = {"id2label": None}
    assert read_config("bert", nothing).labels == ("LABEL_0", "LABEL_1")
    assert read_config("bert", nothing | {"num_labels": 3}).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert read_config("bert", {"id2label": {"1": "b", "0": "a"}}).labels == ("a", "b")
    dropouts = {"hidden_dropout_prob": 0.3, "classifier_dropout": None}
    assert read_config("bert", dropouts).classifier_dropout == 0.3


def test_own_keys_of_nomic_v1_5_mean_what_transformers_makes_of_them(transformers) -> None:
    """It reads none of them: its defaults are the sizes of v1.5. Beside its own keys, as it saves a model that it loaded, they have no effect."""
    raw = {
        "n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 8192, "activation_function": "swiglu", "prenorm": False,
        "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "vocab_size": 30528, "type_vocab_size": 2,
        "use_flash_attn": True, "qkv_proj_bias": False,
    }  # fmt: skip
    family = family_of("nomic_bert", WHERE)
    theirs = transformers.NomicBertConfig(**raw).to_dict() | {"classifier_dropout": 0.0}  # None: as hidden_dropout_prob
    read = family.read("nomic_bert", File(raw, WHERE, frozenset()), {})
    assert {rope.base for rope in read.ropes} == {theirs["rope_parameters"]["rope_theta"]}
    written = family.written(read)
    keys = family.keys & theirs.keys()
    assert {key: written[key] for key in keys} == {key: theirs[key] for key in keys}
    assert read_config("nomic_bert", {"n_embd": 512}).d_model == 24


@pytest.mark.parametrize(
    ("kind", "new", "old"),
    [
        ("modernbert", ("rope_parameters", "layer_types"), {"global_attn_every_n_layers": 2, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}),
        ("llama", ("rope_parameters",), {"rope_theta": 10000.0, "rope_scaling": None}),
    ],
)  # fmt: skip
def test_keys_of_transformers_4_mean_what_they_meant(kind: str, new: tuple[str, ...], old: dict) -> None:
    config = read_config(kind, dict.fromkeys(new) | old)
    assert replace(config, kept={}) == replace(read_config(kind, {}), kept={})
