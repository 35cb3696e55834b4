"""Calls of encoders, rerankers and their tokenizers that raise: texts, options, and what is in the files of a directory."""

import base64
import json
import shutil
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from random_tokenizers import FAMILIES
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling
from tiny_tokenizer import read_as_it_is, write_tokenizer
from tiny_transformer import tiny
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from uwaga import Reranker, TextEncoder
from uwaga.encode.template_language import Template, Unknown
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


def saved(folder: Path, *modules: torch.nn.Module, reader: Any = sentence_transformers.SentenceTransformer) -> Path:
    reader(modules=list(modules), device="cpu").save(str(folder / "saved"))
    return folder / "saved"


def multi_vector(model: Path, folder: Path, files: Mapping[str, Any] = {}, **options: Any) -> Path:
    """Write a ColBERT model as sentence-transformers saves it."""
    source = changed(model, folder, {TOKENIZER: {"mask_token": "[MASK]"}})
    each = {"module_input_name": "token_embeddings"}
    modules = [
        Transformer(str(source), **options),
        Dense(16, 8, **each),
        Normalize(**each),
        MultiVectorMask(skiplist_words=["."]),
    ]
    written = saved(folder, *modules, reader=sentence_transformers.MultiVectorEncoder)
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


def around(single: list, ids: list[int], tokens: list[str]) -> dict:
    pair = [TEXT, {"Sequence": {"id": "B", "type_id": 1}}]
    special = {"x": {"id": "x", "ids": ids, "tokens": tokens}}
    return {"post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}}


def steps(kind: str, *each: dict) -> dict:
    return {
        kind: {
            "type": "Sequence",
            {"pre_tokenizer": "pretokenizers", "post_processor": "processors"}.get(kind, f"{kind}s"): list(each),
        }
    }


def of_words(**model: Any) -> dict:
    return {"model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"} | model}


ADDED = {
    "id": 3,
    "content": "t",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": True,
    "special": False,
}
LIGATURE = {"type": "Replace", "pattern": {"String": "\u0644"}, "content": "\ufdfa"}
# Small files that took gigabytes, or never ended, as soon as anything was encoded or a token was added.
HOSTILE = {
    "special tokens": around([MARK] * 2000 + [TEXT], [1] * 2000, ["b"] * 2000),
    "long special tokens": around([MARK] * 500 + [TEXT], [1], ["b" * 5000]),
    "texts": around([TEXT] * 1000, [1], ["b"]),
    "prepend": {"normalizer": {"type": "Prepend", "prepend": "x" * 20_000}},
    "prepend to tokens": {"normalizer": {"type": "Prepend", "prepend": "x" * 100}, "added_tokens": [ADDED]},
    "bytes of bytes": steps("normalizer", *[{"type": "ByteLevel"}] * 4),
    "bytes before": steps("pre_tokenizer", *[BYTES] * 4),
    "forty that double": steps("normalizer", *[TWICE] * 40),
    "forty that double in the decoder": steps("decoder", *[TWICE] * 40),
    "ligatures": steps("normalizer", *[LIGATURE, {"type": "NFKD"}] * 2),
    "without a type": steps("normalizer", {"pattern": {"String": "a"}, "content": "a" * 65}),
    "table": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(TABLE).decode()}},
    "steps": steps("normalizer", *[{"type": "NFC"}] * 65),
    "processors": steps("post_processor", *[around([TEXT], [1], ["b"])["post_processor"]] * 65),
    "unknown token": of_words(vocab={"u" * 65: 0}, unk_token="u" * 65),
    "token": of_words(vocab={"u" * 5000: 0, "[UNK]": 1}),
    "prefix": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "continuing_subword_prefix": "p" * 65}},
    "word": of_words(type="WordPiece", continuing_subword_prefix="##", max_input_chars_per_word=10**6),
    "ids": of_words(vocab={"a": 0, "[UNK]": 1, "huge": 2**32 - 1}),
}


def bare(changes: Mapping[str, Any], folder: Path) -> None:
    put(folder / WORDS, BARE | changes)
    load_tokenizer(folder)


def of_types(model: Path) -> None:
    backend = Backend.from_file(str(model / WORDS))
    backend.post_processor = TemplateProcessing(single="$A:1 [SEP]:1", special_tokens=[("[SEP]", 3)])
    Tokenizer(backend)


# What a chat template has that is not evaluated, or cannot be.
REFUSED = (
    "{{ strftime_now('%d %b %Y') }}", "{{ lipsum() }}", "{{ messages | random }}", "{{ messages | map('random') | list }}",
    "{{ 'a' | center(1500000000) }}", "{{ ['a'] | map('center', 1500000000) | list }}", "{{ '%1500000000d' % 1 }}", "{{ '%1500000000d' is odd }}",
    "{{ '{:>1500000000}'.format(1) }}", "{{ 'a'.center(1500000000) }}", "{{ 'a'['ljust'](1500000000) }}", "{{ messages | tojson(indent=1500000000) }}",
    "{{ 2 ** 100000000 }}", "{{ 9223372036854775807 + 1 }}", "{{ ''.__class__ }}", "{{ messages.append(1) }}", "{{ messages | map(attribute='role') }}",
    "{{ messages[0].items }}", "{% include 'a' %}", "{% for a in [] recursive %}{% endfor %}{% call f() %}{% endcall %}",
    "{% call f() %}{% endcall %}", "{% filter upper %}{% endfilter %}", "{{ range(*messages) }}",
    "{% macro f() %}{% endmacro %}{{ f.name }}", "{% macro f() %}{% endmacro %}{{ f['arguments'] }}", "{{ range.start }}", "{{ {1: 2}.keys() - [1] }}", "{{ self }}",
    "{% for m in messages %}{{ loop._iterable }}{% endfor %}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{{ messages is sameas 1 }}",
    "{{ secret }}", "{% set x.y = 1 %}", "{{ messages() }}",
    "{{ raise_exception('no ' ~ depth) }}", "{{ nothing.at_all }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ messages", "{{ '\\ud800' }}", "\ud800",
)  # fmt: skip


def render(source: str) -> None:
    messages = [{"role": "query", "content": "a cat"}]
    Template(source).render({"messages": messages, "depth": 3, "secret": Unknown("no file says it", "secret")})


PROMPT = {"prompts": {"x": "the cat : "}, "default_prompt_name": "x"}
OF_PAIRS = {MODEL: {"model_type": "CrossEncoder"}, TRANSFORMER: {"transformer_task": "text-generation"}}
NO_PAIR = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
ONES = torch.ones(1, 3)
OF_MESSAGES = {key: {"method": "forward", "method_output_name": "last_hidden_state"} for key in ("text", "message")}

CALLS = {
    # Texts and options
    **{f"TextEncoder.encode: a text that is {what}": lambda encoder, text=text: encoder.encode(["a", text]) for what, text in (
        ("empty", ""), ("white", " \n\t"), ("without tokens", "\u200b\u200b"), ("None", None), ("no UTF-8", "the \ud800 cat"), ("too long", LONG))},
    "generate: a text that is no UTF-8": lambda: generate(load("bard"), ["a", "a\ud800"], max_new_tokens=1),
    "TextEncoder.encode: a prompt that is no UTF-8": lambda encoder: encoder.encode(["a"], prompt="a\ud800"),
    **{f"TextEncoder.encode: {options}": lambda encoder, options=options: encoder.encode(["the cat"], **options) for options in (
        {"tokens_per_batch": 0}, {"tokens_per_batch": 1.5}, {"prompt": 5}, {"normalize": "no"}, {"overflow": "mean", "overlap": 1.5},
        {"overflow": "mean", "overlap": 10}, {"overflow": "mean", "overlap": -1}, {"overflow": "truncate", "overlap": 2}, {"overflow": "cut"},
        {"output": "tokens", "overflow": "mean"}, {"skip_invalid": True}, {"truncate_dim": 17}, {"truncate_dim": 2.0}, {"truncate_dim": True},
        {"prompt_name": "title"}, {"prompt_name": "query", "prompt": "cat"}, {"spans": "sentence", "overflow": "mean"},
        {"spans": "sentence", "overflow": "truncate"}, {"spans": "sentence", "overlap": 3}, {"output": "tokens", "task": "passage"})},
    "TextEncoder.encode_query: task": lambda encoder: encoder.encode_query(["cat"], task="query"),
    "TextEncoder.stream: is_of_tokens": lambda encoder: list(encoder.stream(["cat"], is_of_tokens=True)),
    "TextEncoder.encode with spans: a long text": lambda encoder: encoder.encode(LONG, spans="sentence"),
    "TextEncoder.encode with spans: a text that is empty": lambda encoder: encoder.encode(["the cat", " "], spans="sentence"),
    **{f"TextEncoder.encode with spans: {spans}": lambda encoder, spans=spans: encoder.encode(["the cat", "it ran"], spans=spans) for spans in (
        [[(0, 3)], [(2, 2)]], [[(0, 3), (4, 8)], [(0, 1)]], [[(-1, 3)], [(0, 1)]], [[(3, 4)], [(0, 1)]], [[(0, 3)], []], [[(0, 3)]],
        [[(0, 3)], [(0, 1.5)]], [[(0, 3)], (0, 1)], 5, "word")},
    **{f"TextEncoder.encode with spans: pooling {mode}": lambda model, folder, mode=mode: TextEncoder.load(changed(model, folder, {
        MODULES: of_modules("Transformer", "Pooling"), TRANSFORMER: {}, POOLING: {"pooling_mode": mode}})).encode("a", spans="sentence")
        for mode in ("cls", "lasttoken", "weightedmean")},
    "TextEncoder.similarity: widths": lambda encoder: encoder.similarity(np.ones((6, 16)), np.ones((6, 3))),
    "TextEncoder.similarity: NaN": lambda encoder: encoder.similarity(ONES, torch.cat((ONES, ONES * torch.nan))),
    "Reranker.rank: an empty passage": lambda reranker: reranker.rank("a", ["a", ""]),
    "Reranker.rank: a passage that is a number": lambda reranker: reranker.rank("a", ["a", 5]),
    "Reranker.rank: a passage that is no UTF-8": lambda reranker: reranker.rank("a", ["a", "b\ud800"]),
    "Reranker.rank: a long passage": lambda reranker: reranker.rank("a", ["a", LONG]),
    "Reranker.rank: an empty query": lambda reranker: reranker.rank("", ["a"]),
    "Reranker.rank: a query that is no UTF-8": lambda reranker: reranker.rank("q\ud800", ["a"]),
    "Reranker.rank: one passage": lambda reranker: reranker.rank("a", "a"),
    "Reranker.rank: top 0": lambda reranker: reranker.rank("a", ["a"], top=0),
    "Reranker.rank: overflow mean": lambda reranker: reranker.rank("a", ["a"], overflow="mean"),
    "Tokenizer.encode: a text that is no UTF-8": lambda model: load_tokenizer(model).encode(["a", "a\ud800"], with_offsets=False),
    # Files of tokenizers
    "tokenizer: none": plain({WORDS: None}),
    **{f"tokenizer: {content!r}": plain({WORDS: content}) for content in (b"", b"[]", b"\xff")},
    "tokenizer: a special token beyond the vocabulary": words(lambda x: x["post_processor"]["special_tokens"]["[SEP]"].update(ids=[10**6])),
    "tokenizer: a vocabulary larger than the model's": words(lambda x: x["model"]["vocab"].update(zebra=25)),
    "tokenizer: a special token that it does not know": plain({TOKENIZER: {"mask_token": {"content": "<mask>", "lstrip": True}}}),
    "tokenizer: a decoder with another end": lambda model, folder: load_tokenizer(changed(model, folder, {
        CONFIG: {"eos_token_id": 4, "is_encoder_decoder": True}, TOKENIZER: {"eos_token": "[SEP]"}})),
    "tokenizer: a text of another type": of_types,
    **{f"tokenizer, hostile: {name}": partial(bare, changes) for name, changes in HOSTILE.items()},
    **{f"tokenizer_config: {settings}": plain({TOKENIZER: settings}) for settings in (
        {"auto_map": {"AutoTokenizer": ["code.Own", None]}}, {"vocab": {"a": 0}}, {"do_lower_case": "false"}, {"cls_token": None},
        {"extra_special_tokens": 5}, {"mask_token": {"text": "x"}}, {"added_tokens_decoder": {"x": {"content": "a"}}}, {"added_tokens_decoder": []},
        {"tokenizer_class": "GPT2TokenizerFast"}, {"chat_template": 1}, {"chat_template": [{"name": "a"}]},
        {"chat_template": {"a": "{{ 1 }}", "b": "{{ 2 }}"}})},
    "tokenizer_config: a chat template too long": plain({TOKENIZER: {"chat_template": "a" * 70_000}}),
    "tokenizer_config: a token that its class has": plain({TOKENIZER: {"chat_template": "{{ mask_token }}", "tokenizer_class": "DebertaV2Tokenizer"}}),
    "tokenizer_config: a class without transformers": lambda patch, folder: made_by_transformers(patch, folder, auto_tokenizer, "find_spec", lambda _: None),
    "tokenizer_config: a class that reads no file": lambda patch, folder: made_by_transformers(
        patch, folder, transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: type("Slow", (), {})()),
    "tokenizer: a model type that is a list": lambda folder: tokenizer_of("bert", folder, {CONFIG: {"model_type": ["bert"]}}),
    "tokenizer: too many ids of T5": lambda folder: tokenizer_of("t5", folder, {TOKENIZER: {"extra_ids": 1001}}),
    "tokenizer: ids of T5 that are not there": lambda folder: tokenizer_of("t5", folder, {
        TOKENIZER: {"extra_ids": 5}, "special_tokens_map.json": {"additional_special_tokens": ["<extra_id_0>"]}}),
    # Chat templates
    **{f"chat template: {source!a}": partial(render, source) for source in REFUSED},
    "chat template: no UTF-8": plain({TEMPLATE: b"\xff"}),
    "chat template: too long": plain({TEMPLATE: b"a" * 70_000}),
    "chat template: a filter": plain({TEMPLATE: "{{ messages | random }}"}),
    "chat template: a variable": plain({TEMPLATE: "{{ task }}"}),
    "chat template: strings without an end": plain({TEMPLATE: "{{ messages[0].content * 99999999 }}"}),
    **{f"chat template: processing_kwargs {given}": dense({TEMPLATE: "{{ messages }}", TRANSFORMER: {
        "modality_config": OF_MESSAGES, "processing_kwargs": {"chat_template": given}}})
        for given in ({"max_length": 9}, {"continue_final_message": True}, {"tools": [1]}, {"chat_template": 1})},
    "chat template: none for the modality": dense({TRANSFORMER: {"modality_config": OF_MESSAGES}}),
    "chat template: windows": lambda model, folder: TextEncoder.load(changed(model, folder, {TEMPLATE: "{{ messages }}"})).encode(["a"], overflow="windows"),
    "chat template: spans": lambda model, folder: TextEncoder.load(changed(model, folder, {TEMPLATE: "{{ messages }}"})).encode("a", spans="line"),
    "chat template: one without a pair": pairs("classifier", {TEMPLATE: NO_PAIR, MODULES: None}),
    # Files of encoders
    **{f"Transformer: {settings}": dense({TRANSFORMER: settings}) for settings in (
        {"max_seq_lenght": 5}, {"processing_kwargs": {"tokenizer": {}}}, {"processing_kwargs": 3}, {"model_args": {"torch_dtype": "float16"}},
        {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}}, {"module_output_name": "sentence_embedding"},
        {"transformer_task": "fill-mask"}, {"query_length": 6}, {"do_lower_case": 1}, {"processor_kwargs": {"truncation_side": "up"}},
        {"max_seq_length": 2})},
    **{f"{MODEL}: {settings}": dense({MODEL: settings}) for settings in (
        {"model_type": "Other"}, {"model_type": None}, {"truncate_dim": 0}, {"similarity_fn_name": "l2"}, {"prompts": {"query": 3}},
        {"prompts": ["query: "]}, {"prompts": {}, "default_prompt_name": "query"}, {"prompts": {"a": "b"}, "default_prompt_name": ["a"]})},
    **{f"Dense: {settings}": dense({DENSE: settings}) for settings in (
        {"in_features": 8}, {"out_features": 0}, {"bias": 1}, {"activation_function": "torch.nn.modules.activation.SiLU"},
        {"module_input_name": "token_embeddings"}, {"out_features": 9})},
    "Pooling: include_prompt": dense({POOLING: {"include_prompt": 0}}),
    "Pooling: include_prompt and truncation_side": dense({POOLING: {"include_prompt": False}, TOKENIZER: {"truncation_side": "left"}}),
    "modules.json: no Pooling": dense({MODULES: of_modules("Transformer")}),
    "modules.json: a module that is not computed": dense({MODULES: of_modules("Transformer", "Pooling", "CNN", "Normalize")}),
    "TextEncoder.load: a processor": dense({"processor_config.json": {"processor_class": "Gemma3Processor"}}),
    "TextEncoder.load: an adapter": dense({"adapter_config.json": {}}),
    "Reranker.load: an adapter": pairs("pooled", {"adapter_config.json": {}}),
    "TextEncoder.load: a cross-encoder": lambda write_reranker: TextEncoder.load(write_reranker()),
    "TextEncoder.load: a cross-encoder of sentence-transformers": lambda base: TextEncoder.load(base("classifier")),
    "TextEncoder.load: a cross-encoder that pools": lambda base: TextEncoder.load(base("pooled")),
    "TextEncoder.load: word vectors": lambda model, folder: TextEncoder.load(
        saved(folder, StaticEmbedding(Transformer(str(model)).tokenizer, embedding_dim=8))),
    "TextEncoder.load: SPLADE": lambda model, folder: TextEncoder.load(
        saved(folder, MLMTransformer(str(model)), SpladePooling(), reader=sentence_transformers.SparseEncoder)),
    "TextEncoder.load: SPLADE without its name": lambda model, folder: TextEncoder.load(changed(model, folder, {
        MODULES: of_modules("MLMTransformer", "SpladePooling")})),
    "TextEncoder.load: an encoder-decoder of ours": lambda folder: TextEncoder.load(written(folder, "uwaga-transformer", num_decoder_layers=1)),
    "TextEncoder.load: a router": lambda model, folder: TextEncoder.load(
        saved(folder, Router.for_query_document(*([Transformer(str(model)), Pooling(16)] for _ in range(2))))),
    # Models of transformers
    "TextEncoder.load: without transformers": lambda patch, base: (
        patch.setattr(opening, "find_spec", lambda _: None), TextEncoder.load(base("dense", "deberta-v2"))),
    **{f"{CONFIG}: {settings}": dense({CONFIG: settings}, "deberta-v2") for settings in (
        {"model_type": "new"}, {"model_type": "new", "auto_map": {"AutoModel": "modeling.NewModel"}}, {"model_type": "bart"}, {"model_type": "vit"},
        {"quantization_config": {"quant_method": "gptq"}}, {"max_position_embeddings": 1 << 40},
        {"num_labels": 10**6}, {"num_hidden_layers": 5000})},
    "config.json: settings for other versions": dense({
        "config.4.0.0.json": {"model_type": "deberta-v2"}, CONFIG: {"configuration_files": ["config.4.0.0.json"]}}, "deberta-v2"),
    "TextEncoder.load: pickled weights of transformers": dense({"model.safetensors": None, "pytorch_model.bin": b"?"}, "deberta-v2"),
    "TextEncoder.load: weights that are missing and left over": with_weights(rename),
    "TextEncoder.load: weights that are not finite": with_weights(spoil),
    # ColBERT
    "ColBERT: a vector of a text": colbert(lambda encoder: encoder.encode(["the cat"])),
    "ColBERT: a stream": colbert(lambda encoder: list(encoder.stream(["the cat"]))),
    "ColBERT: spans": colbert(lambda encoder: encoder.encode(["the cat"], spans="sentence")),
    "ColBERT: another task": colbert(lambda encoder: encoder.encode(["the cat"], output="tokens", task="passage")),
    "ColBERT: vectors of texts": colbert(lambda encoder: encoder.similarity(np.ones((1, 8)), np.ones((1, 8)))),
    "ColBERT: a long query": colbert(lambda encoder: encoder.encode(["a dog ran away from the house"], output="tokens", task="query"),
        query_expansion={"strategy": "fixed", "attend": False, "length": 6}),
    "ColBERT: truncate_dim": lambda model, folder: TextEncoder.load(multi_vector(model, folder), truncate_dim=4),
    "ColBERT: Reranker": lambda model, folder: Reranker.load(multi_vector(model, folder)),
    "ColBERT: no mask token": lambda model, folder: TextEncoder.load(multi_vector(
        model, folder, {TOKENIZER: {"mask_token": None}}, query_expansion={"strategy": "fixed", "attend": False, "length": 6})),
    **{f"ColBERT: {settings}": colbert_with({file: settings}) for file, settings in (
        (TRANSFORMER, {"query_expansion": {"strategy": "long"}}), (TRANSFORMER, {"query_expansion": {"size": 3}}),
        (TRANSFORMER, {"document_length": 0}), ("3_MultiVectorMask/config.json", {"skiplist_tasks": "all"}),
        ("3_MultiVectorMask/config.json", {"skiplist_words": "."}), ("3_MultiVectorMask/config.json", {"keep_only_token_ids": ["a"]}),
        ("1_Dense/config.json", {"module_input_name": "sentence_embedding"}))},
    # Files of rerankers
    "Reranker.load: an encoder": lambda model: Reranker.load(model),
    "Reranker.load: an encoder of sentence-transformers": lambda base: Reranker.load(base("dense")),
    "Reranker.load: an encoder of transformers": lambda base, folder: Reranker.load(changed(base("dense", "deberta-v2"), folder, {MODULES: None})),
    "Reranker.load: a language model that looks both ways": lambda base, folder: Reranker.load(changed(base("dense", "qwen3"), folder, {
        MODULES: None, CONFIG: {"architectures": ["Qwen3ForCausalLM"], "is_causal": False}})),
    "Reranker.load: a language model without logits": lambda base, folder: Reranker.load(changed(base("dense", "qwen3"), folder, {MODULES: None})),
    "Reranker.load: a language model without yes and no": lambda folder: Reranker.load(decoder(folder)),
    **{f"Reranker.load: true_token_id {number!r}": lambda folder, number=number: Reranker.load(decoder(folder, OF_PAIRS | {
        MODULES: of_modules("Transformer", "LogitScore"), "1_LogitScore/config.json": {"true_token_id": number, "false_token_id": None}}))
        for number in (-1, 10**6, "yes", True, None)},
    "Reranker.load: two labels": lambda write_model, folder: Reranker.load(
        write_model(folder / "two", outputs=("pooled", "sequence"), labels=("no", "yes"))),
    "Reranker.load: an instruction for a classifier": lambda write_reranker: Reranker.load(write_reranker(), instruction="be strict"),
    "Reranker.load: an instruction for a classifier of transformers": lambda base: Reranker.load(base("classifier", "deberta-v2"), instruction="x"),
    "Reranker.load: an instruction for one that pools": lambda base: Reranker.load(base("pooled"), instruction="be strict"),
    "Reranker.load: an encoder-decoder": pairs("classifier", {CONFIG: {"model_type": "bart", "architectures": ["BartForSequenceClassification"]}}),
    "Reranker.load: a module that is not computed": pairs("classifier", {MODULES: of_modules("Transformer", "Dense")}),
    **{f"Reranker.load: {settings}": pairs("classifier", {file: settings}) for file, settings in (
        (MODEL, {"activation_fn": "my.module.Identity"}), (MODEL, {"activation_fn": "torch.nn.Tanh"}), (MODEL, {"model_type": None}),
        (TRANSFORMER, {"query_length": 5}), (TRANSFORMER, "{}"))},
    "Reranker.load: a prompt that is left out": pairs("pooled", {POOLING: {"include_prompt": False}, MODEL: PROMPT}),
    "Reranker.load: another output": pairs("pooled", {SCORES: {"module_output_name": "x"}}),
    "Reranker.load: no scores": pairs("pooled", {MODULES: of_modules("Transformer", "Pooling")}),
}  # fmt: skip
