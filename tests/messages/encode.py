"""Calls of encoders, rerankers and their tokenizers that raise: texts, options, and what is in the files of a directory."""

import base64
import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from random_tokenizers import FAMILIES
from safetensors.torch import load_file, save_file
from sentence_models import save_modules
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling
from tiny_tokenizer import read_as_it_is, write_tokenizer
from tiny_transformer import tiny
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from uwaga import Reranker, TextEncoder
from uwaga.encode.templates import Template
from uwaga.models import generate, load, opening, save
from uwaga.models.tokenizers import auto_tokenizer
from uwaga.models.tokenizers.loading import load_tokenizer
from uwaga.models.tokenizers.tokenizer import Tokenizer

MODULES, MODEL, TRANSFORMER = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
CONFIG, TOKENIZER, WORDS = "config.json", "tokenizer_config.json", "tokenizer.json"
POOLING, DENSE, SCORES = "1_Pooling/config.json", "2_Dense/config.json", "5_Dense/config.json"
TEMPLATE = "chat_template.jinja"
LONG = "the cat " * 40


def put(path: Path, content: Any) -> None:
    """Write a file: bytes, text, settings beside those that it has, or another JSON value; None: remove it."""
    if content is None:
        path.unlink()
        return
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, dict) and path.exists():
        content = json.loads(path.read_text()) | content
    if not isinstance(content, bytes | str):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def changed(source: Path, folder: Path, files: Mapping[str, Any]) -> Path:
    """Return a copy of a directory with other files."""
    copy = shutil.copytree(source, folder / "copy")
    for name, content in files.items():
        put(copy / name, content)
    return copy


def dense(files: Mapping[str, Any], family: str = "bert") -> Callable[..., object]:
    """Return a call that reads an encoder of sentence-transformers with other files."""
    return lambda base, folder: TextEncoder.load(changed(base("dense", family), folder, files))


def pairs(kind: str, files: Mapping[str, Any], family: str = "bert") -> Callable[..., object]:
    """Return a call that reads a reranker of sentence-transformers with other files."""
    return lambda base, folder: Reranker.load(changed(base(kind, family), folder, files))


def plain(files: Mapping[str, Any]) -> Callable[..., object]:
    """Return a call that reads a plain directory of a BERT with other files."""
    return lambda model, folder: TextEncoder.load(changed(model, folder, files))


def of_modules(*kinds: str) -> list[dict[str, str]]:
    """Return the content of modules.json."""
    return [
        {"type": f"sentence_transformers.{kind}", "path": f"{n}_{kind}" if n else ""} for n, kind in enumerate(kinds)
    ]


def saved(folder: Path, *modules: torch.nn.Module, **settings: Any) -> Path:
    return save_modules(folder / "saved", *modules, **settings)


def multi_vector(model: Path, folder: Path, files: Mapping[str, Any] = {}, **options: Any) -> Path:
    """Write a ColBERT model as sentence-transformers saves it."""
    body = Transformer(str(changed(model, folder, {TOKENIZER: {"mask_token": "[MASK]"}})), **options)
    reads = {"module_input_name": "token_embeddings"}
    tail = [Dense(16, 8, **reads), Normalize(**reads), MultiVectorMask(skiplist_words=["."])]
    written = saved(folder, body, *tail, reader=sentence_transformers.MultiVectorEncoder)
    for name, content in files.items():
        put(written / name, content)
    return written


def colbert(call: Callable[[TextEncoder], object], **options: Any) -> Callable[..., object]:
    return lambda model, folder: call(TextEncoder.load(multi_vector(model, folder, **options)))


def colbert_with(files: Mapping[str, Any]) -> Callable[..., object]:
    return lambda model, folder: TextEncoder.load(multi_vector(model, folder, files))


def written(folder: Path, model_type: str, files: Mapping[str, Any] = {}, **settings: Any) -> Path:
    """Write a model of uwaga's own with its tokenizer."""
    save(tiny(model_type, **settings), folder / "own")
    write_tokenizer(folder / "own")
    read_as_it_is(folder / "own")
    for name, content in files.items():
        put(folder / "own" / name, content)
    return folder / "own"


def decoder(folder: Path, files: Mapping[str, Any] = {}) -> Path:
    return written(folder, "gpt2", files, max_position_embeddings=40)


def with_weights(change: Callable[[dict], object], *, file: str = "model.safetensors") -> Callable[..., object]:
    """Return a call that reads a model of transformers whose weights were changed."""

    def call(base: Callable[..., Path], folder: Path) -> None:
        copy = changed(base("dense", "deberta-v2"), folder, {})
        weights = load_file(copy / file)
        change(weights)
        save_file(weights, copy / file, {"format": "pt"})
        TextEncoder.load(copy)

    return call


def rename(weights: dict[str, torch.Tensor]) -> None:
    name = "encoder.layer.1.output.dense.weight"
    weights[name.replace("weight", "wait")] = weights.pop(name)


def spoil(weights: dict[str, torch.Tensor]) -> None:
    weights["encoder.layer.1.output.dense.weight"][3, 2] = torch.nan


def tokenizer_of(family: str, folder: Path, files: Mapping[str, Any]) -> None:
    """Read a tokenizer that transformers saved, with other files."""
    FAMILIES[family][0]().save_pretrained(folder)
    for name, content in ({CONFIG: {"model_type": family}} | files).items():
        put(folder / name, content)
    auto_tokenizer.load(folder)


def made_by_transformers(patch: pytest.MonkeyPatch, folder: Path, owner: object, name: str, value: object) -> None:
    patch.setattr(owner, name, value)
    tokenizer_of("bert", folder, {TOKENIZER: {"tokenizer_class": "BlenderbotSmallTokenizer"}})


def words(change: Callable[[dict], object], *, as_it_is: bool = True) -> Callable[..., object]:
    """Return a call that reads a directory whose tokenizer.json was changed."""

    def call(model: Path, folder: Path) -> None:
        content = json.loads((model / WORDS).read_text())
        change(content)
        files = {WORDS: content} | ({TOKENIZER: {"tokenizer_class": "TokenizersBackend"}} if as_it_is else {})
        TextEncoder.load(changed(model, folder, files))

    return call


BARE = {
    "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "truncation": None, "padding": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"},
}  # fmt: skip
TEXT, MARK = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 0}}
TWICE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
TABLE = struct.pack("<I", 1024) + bytes(1024) + b"y" * 500 + b"\0"


def template(single: list, ids: list[int], tokens: list[str]) -> dict:
    pair = [TEXT, {"Sequence": {"id": "B", "type_id": 1}}]
    special = {"x": {"id": "x", "ids": ids, "tokens": tokens}}
    return {"post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}}


def steps(kind: str, *parts: dict) -> dict:
    name = {"pre_tokenizer": "pretokenizers", "post_processor": "processors"}.get(kind, f"{kind}s")
    return {kind: {"type": "Sequence", name: list(parts)}}


def of_words(**model: Any) -> dict:
    return {"model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"} | model}


ADDED = {"id": 3, "content": "t", "normalized": True} | dict.fromkeys(
    ("single_word", "lstrip", "rstrip", "special"), False
)
LIGATURE = {"type": "Replace", "pattern": {"String": "\u0644"}, "content": "\ufdfa"}


def bare(changes: Mapping[str, Any], folder: Path) -> None:
    put(folder / WORDS, BARE | changes)
    load_tokenizer(folder)


def of_types(model: Path) -> None:
    backend = Backend.from_file(str(model / WORDS))
    backend.post_processor = TemplateProcessing(single="$A:1 [SEP]:1", special_tokens=[("[SEP]", 3)])
    Tokenizer(backend)


def render(source: str) -> None:
    messages = [{"role": "query", "content": "a cat"}]
    Template(source).render({"depth": 3}, [messages])


PROMPT = {"prompts": {"x": "the cat : "}, "default_prompt_name": "x"}
OF_PAIRS = {MODEL: {"model_type": "CrossEncoder"}, TRANSFORMER: {"transformer_task": "text-generation"}}
NO_PAIR = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
ONES = torch.ones(1, 3)
OF_MESSAGES = {key: {"method": "forward", "method_output_name": "last_hidden_state"} for key in ("text", "message")}
