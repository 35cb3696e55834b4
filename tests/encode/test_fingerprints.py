"""A fingerprint tells models apart by every file that a load may open."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from opened import listening
from safetensors.torch import load_file, save_file

from uwaga import TextEncoder
from uwaga.models import opening
from uwaga.models.checkpoints.directories import find, fingerprint, model_files


def test_copies_have_one_fingerprint_wherever_they_lie(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, copy)
    (copy / "README.md").write_text("words about the model")
    (copy / "checkpoint-500").mkdir()
    (copy / "checkpoint-500" / "model.safetensors").write_bytes(b"of an earlier step")
    assert fingerprint(copy) == fingerprint(folder)


def test_files_that_have_not_changed_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path))
    folder = find("bard", None)  # whose files were not written a moment ago
    opened: list[str] = []
    first = fingerprint(folder)
    with listening(lambda path: opened.append(path.name)):
        assert fingerprint(folder) == first
        assert opened == ["digests.json"]
        digests = json.loads((tmp_path / "digests.json").read_text())
        (config,) = [name for name in digests if name.endswith("/config.json")]
        digests[config][2] += 1  # as if the file had had another size
        (tmp_path / "digests.json").write_text(json.dumps(digests))
        opened.clear()
        assert fingerprint(folder) == first
    assert opened[:2] == ["digests.json", "config.json"]
    assert {"model.safetensors", "tokenizer.json"}.isdisjoint(opened)


@pytest.mark.parametrize("place", ["", "0_Transformer"])
def test_any_file_changes_it_and_so_does_one_that_appears(tmp_path: Path, place: str) -> None:
    """Files of every name, in every folder that modules.json names."""
    heads = ["1_Pooling", "head", "10_Dense", "deep/2_Dense"]
    modules = [{"type": "sentence_transformers.models.Any", "path": path} for path in (place, *heads)]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    names = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
        "spiece.model",
        "qwen.tiktoken",
        "chat_template.jinja",
        "additional_chat_templates/rerank.jinja",
        "adapter_config.json",
        "pytorch_model.bin",
        "part-of-an-index.safetensors",
        "part.bin",
        "artifact.metadata",
        "sentence_bert_config.json",
        "sentence_roberta_config.json",
        "preprocessor_config.json",
    ]
    files = ["config_sentence_transformers.json", *(f"{place}/{name}" for name in names)]
    files += [f"{head}/{name}" for head in heads for name in ("config.json", "model.safetensors", "pytorch_model.bin")]
    seen = [fingerprint(tmp_path)]
    for content in (b"", b"changed"):
        for name in files:
            path = tmp_path / name.removeprefix("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            seen.append(fingerprint(tmp_path))
    assert len(set(seen)) == 1 + 2 * len(files)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "pickled", "sharded", "modules"])
def test_it_has_every_file_that_a_load_opens(kind: str, folder: Path, describe) -> None:
    """As the interpreter itself tells it."""
    weights = load_file(folder / "model.safetensors")
    if kind == "pickled":
        (folder / "model.safetensors").unlink()
        torch.save(weights, folder / "pytorch_model.bin")
    elif kind == "sharded":
        (folder / "model.safetensors").unlink()
        names = sorted(weights)
        parts = {"one.safetensors": names[:5], "two.safetensors": names[5:]}
        for file, part in parts.items():
            save_file({name: weights[name] for name in part}, folder / file)
        weight_map = {name: file for file, part in parts.items() for name in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    elif kind == "modules":
        describe(folder, "Transformer", "Pooling", "Dense")
        modules = json.loads((folder / "modules.json").read_text())
        modules[-1]["path"] = "deep/head"
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "deep" / "head").mkdir(parents=True)
        (folder / "deep" / "head" / "config.json").write_text(json.dumps({"in_features": 16, "out_features": 2}))
        head = {"linear.weight": torch.ones(2, 16), "linear.bias": torch.ones(2)}
        save_file(head, folder / "deep" / "head" / "model.safetensors")
    opened: set[Path] = set()
    with listening(opened.add):
        TextEncoder.load(folder).encode(["the cat"])
        if kind == "plain":
            pytest.importorskip("transformers")
            opening.read_module(folder, None, "states")  # as transformers reads a family that is not uwaga's own
    opened = {path for path in opened if folder in path.parents}
    assert {"config.json", "tokenizer.json"} < {path.name for path in opened}
    assert opened <= set(model_files(folder))
