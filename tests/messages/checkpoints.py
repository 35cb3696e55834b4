"""Calls of models, their settings and their files that raise."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_families import WHERE, read_config
from tiny_transformer import IDS, PACKED, PAPER, SHORT, bert, eurobert, gpt2, llama, paper, t5, tiny, writer

import uwaga
from uwaga import Ragged
from uwaga.models import Transformer, config, generate, load, save
from uwaga.models.checkpoints import sentence_files
from uwaga.models.checkpoints.rope_parameters import Rope
from uwaga.models.families import family_of
from uwaga.models.families.family import File
from uwaga.nn.rotary_scaling import RotaryScaling

EMPTY = Ragged(torch.ones(4).long(), torch.tensor([0, 2, 2, 4]))
ROPE, BASES = Rope(10.0), (Rope(10.0), Rope(20.0))
YARN = RotaryScaling(kind="yarn", factor=2.0, original_max_position_embeddings=8, truncate=False)


def unsaved(kind: str, settings: dict[str, Any], folder: Path) -> None:
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "vocab_size": 60000, "num_layers": 2}
    sizes |= {} if kind in ("modernbert", "t5") else {"num_kv_heads": 2}
    with torch.device("meta"):
        save(Transformer(config(kind, **sizes, **settings)), folder)


def changed(folder: Path, change: Callable[[dict], object], **options: Any) -> Transformer:
    """Load a BERT whose weights were changed."""
    save(bert(outputs=("pooled", "logits")), folder)
    weights = {name: weight.clone() for name, weight in load_file(folder / "model.safetensors").items()}
    change(weights)
    save_file(weights, folder / "model.safetensors")
    return load(folder, **options)


def without(folder: Path, name: str) -> Transformer:
    save(bert(), folder)
    (folder / name).unlink()
    return load(folder)


def spoil(weights: dict) -> None:
    del weights["bert.pooler.dense.bias"], weights["bert.encoder.layer.1.output.dense.weight"]
    weights["cls.predictions.bias"] = torch.zeros(21)
    weights["bert.embeddings.LayerNorm.bias"] = torch.zeros(8, dtype=torch.int64)
    weights["bert.encoder.layer.2.output.dense.bias"] = torch.zeros(8)
    weights["\x1b[2Jclear"] = torch.zeros(1)
    weights["embeddings.word_embeddings.weight"] = torch.zeros(20, 8)
    weights["cls.predictions.decoder.weight"] = torch.zeros(3, 8)


def infinite(weights: dict) -> None:
    weights["bert.pooler.dense.weight"][3, 4] = float("nan")
    weights["cls.predictions.bias"][0] = float("-inf")


def untied(weights: dict) -> None:
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"] + 1
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()


def old_pickle(folder: Path) -> Transformer:
    save(bert(), folder)
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / "model.safetensors").unlink()
    return load(folder)


def sharded(folder: Path, place: object, single: bool = False) -> Path:
    """A BERT in two files; place: what their index says of the second one."""
    save(bert(), folder)
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    save_file({name: weights[name] for name in names[:9]}, folder / "a.safetensors")
    save_file({name: weights[name] for name in names[9:]} | {"extra": torch.zeros(2)}, folder / "b.safetensors")
    files = dict.fromkeys(names[:9], "a.safetensors") | dict.fromkeys([*names[9:], "extra"], place)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    if not single:
        (folder / "model.safetensors").unlink()
    return folder


def offline(patch: Any) -> Transformer:
    from huggingface_hub.errors import LocalEntryNotFoundError

    def refuse(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("there is no network")

    patch.setattr("huggingface_hub.snapshot_download", refuse)
    return load("somebody/something")


def modules(folder: Path, entries: object, pooling: object = None, settings: object = None) -> None:
    """Read a modules.json; pooling: in config.json of each module; settings: of the transformer."""
    (folder / "modules.json").write_text(json.dumps(entries))
    for name in ("Pooling", "Normalize"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(pooling or {}))
    if settings is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
        sentence_files.read(folder, is_module=True)
    sentence_files.modules(folder)


def module(kind: str, path: str = "", **more: str) -> dict[str, str]:
    return {"name": kind, "path": path, "type": f"sentence_transformers.models.{kind}"} | more


def nan() -> Transformer:
    result = writer()
    result.decoder.norm.weight.data[0] = torch.nan
    return result


POOLING, NORM, FIRST = (
    module(kind, path) for kind, path in (("Pooling", "Pooling"), ("Normalize", "Normalize"), ("Transformer", ""))
)
