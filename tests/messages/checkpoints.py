"""Calls of models, their settings and their files that raise."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_families import WHERE, read_config

import uwaga
from uwaga import Ragged
from uwaga.models import Transformer, config, generate, load, save
from uwaga.models.checkpoints import sentence_files
from uwaga.models.checkpoints.rope_parameters import Rope
from uwaga.models.families import family_of
from uwaga.models.families.family import File
from uwaga.nn.rotary_scaling import RotaryScaling

SIZES = {"vocab_size": 20, "d_model": 8, "num_layers": 2, "num_heads": 2, "d_ff": 16}
SHORT = SIZES | {"max_position_embeddings": 10}
KEYS = {"num_kv_heads": 1, "d_k": 4, "eos_token_ids": ()}
PAPER = SIZES | {"vocab_size": 30, "d_model": 16, "num_decoder_layers": 2, "eos_token_ids": ()}
IDS = torch.arange(3, 15).unflatten(0, (2, 6))
PACKED = Ragged(torch.arange(3, 10), torch.tensor([0, 4, 7]))
EMPTY = Ragged(torch.ones(4).long(), torch.tensor([0, 2, 2, 4]))
ROPE, BASES = Rope(10.0), (Rope(10.0), Rope(20.0))
YARN = RotaryScaling(kind="yarn", factor=2.0, original_max_position_embeddings=8, truncate=False)


def bert(**more: Any) -> Transformer:
    return made("bert", SHORT | {"pad_token_id": None} | more)


def gpt2(**more: Any) -> Transformer:
    return made("gpt2", SHORT | {"eos_token_ids": ()} | more)


def llama(**more: Any) -> Transformer:
    return made("llama", SHORT | KEYS | more)


def eurobert(**more: Any) -> Transformer:
    return made("eurobert", SHORT | KEYS | {"pad_token_id": 0} | more)


def t5(**more: Any) -> Transformer:
    return made("t5", SIZES | {"d_k": 4, "eos_token_ids": ()} | more)


def paper(**more: Any) -> Transformer:
    return made("uwaga-transformer", PAPER | more)


def made(kind: str, settings: dict[str, Any]) -> Transformer:
    torch.manual_seed(0)
    return Transformer(config(kind, **settings)).eval()


def writer(**more: Any) -> Transformer:
    return made("gpt2", SHORT | {"vocab_size": 12, "num_layers": 1, "eos_token_ids": ()} | more)


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


def sharded(folder: Path, listed: object, single: bool = False) -> Path:
    """A BERT in two files; listed: what their index says of the second one."""
    save(bert(), folder)
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    save_file({name: weights[name] for name in names[:9]}, folder / "a.safetensors")
    save_file({name: weights[name] for name in names[9:]} | {"extra": torch.zeros(2)}, folder / "b.safetensors")
    files = dict.fromkeys(names[:9], "a.safetensors") | dict.fromkeys([*names[9:], "extra"], listed)
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


def modules(folder: Path, listed: object, pooling: object = None, settings: object = None) -> None:
    """Read a modules.json; pooling: in config.json of each module; settings: of the transformer."""
    (folder / "modules.json").write_text(json.dumps(listed))
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
MODULES: list[object] = [
    {"0": FIRST},
    [{"type": "sentence_transformers.models.Transformer"}],
    [POOLING, module("Bow", "2")],
    [FIRST, NORM, POOLING],
    [POOLING, FIRST],
    [FIRST, FIRST | {"name": "1"}, POOLING],
    [FIRST, POOLING, NORM | {"name": "Pooling"}],
    [FIRST | {"type": "custom_st.Transformer"}],
    *([module("Transformer", place)] for place in ("../elsewhere", "/etc", "a/../../b", "..\\b", "a\0b")),
]
# A key of config.json, or several, with another value.
REFUSED: list[tuple[str, dict]] = [
    ("bert", {"hidden_size": "8"}),
    ("bert", {"num_hidden_layers": True}),
    ("llama", {"num_hidden_layers": 2**28}),
    ("modernbert", {"num_hidden_layers": 2**28}),
    ("bert", {"vocab_size": 10**12}),
    ("bert", {"layer_norm_eps": [1]}),
    ("bert", {"hidden_act": "tanh"}),
    ("bert", {"num_attention_heads": 5}),
    ("bert", {"architectures": ["BertForQuestionAnswering"]}),
    ("bert", {"architectures": ["BertModel", "BertForMaskedLM"]}),
    ("bert", {"architectures": [{}]}),
    ("bert", {"id2label": {"0": "a", "2": "b"}}),
    ("bert", {"id2label": None, "num_labels": 10**9}),
    ("bert", {"position_embedding_type": "alibi"}),
    ("xlm-roberta", {"position_embedding_type": "rotary"}),
    ("nomic_bert", {"num_experts": 8, "n_embd": 768}),
    ("llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}),
    ("llama", {"rope_parameters": {"rope_theta": "x"}}),
    ("llama", {"rope_parameters": [1]}),
    ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}}),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1.0, "beta_slow": 2.0}}),
    ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 2.0, "high_freq_factor": 1.0}}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "trick": 1}}),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
    ("llama", {"rope_theta": None, "rope_parameters": {}}),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": None}}),
    ("llama", {"rope_scaling": {"rope_type": "default", "factor": 4.0}}),
    ("llama", {"rope_scaling": "linear"}),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}),
    ("llama", {"head_dim": None, "hidden_size": 25}),
    ("llama", {"num_key_value_heads": 3}),
    ("llama", {"head_dim": 5}),
    ("gemma3_text", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    ("gemma3_text", {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}}),
    ("gemma3_text", {"rope_parameters": [1]}),
    ("gemma3_text", {"sliding_window": None}),
    ("gemma3_text", {"sliding_window": "x"}),
    ("gemma3_text", {"architectures": ["Gemma3ForConditionalGeneration"]}),
    ("modernbert", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    ("modernbert", {"rope_parameters": {"sliding_attention": None}}),
    ("modernbert", {"rope_parameters": {}, "rope_scaling": {"factor": 2.0}}),
    ("modernbert", {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("modernbert", {"sliding_window": None}),
    ("modernbert", {"local_attention": 1}),
    ("modernbert", {"head_dim": 8}),
    ("modernbert", {"num_attention_heads": 5}),
    ("modernbert", {"architectures": ["ModernBertForTokenClassification"]}),
    ("eurobert", {"architectures": ["EuroBertForSequenceClassification"]}),
    ("mistral", {"sliding_window": "x"}),
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}),
    ("qwen2", {"layer_types": ["full_attention"]}),
    ("distilbert", {"num_hidden_layers": 1}),
    ("gpt2", {"num_attention_heads": 3}),
]  # fmt: skip
# Settings that contradict each other, or are not there.
CONTRADICTORY: list[tuple[str, dict]] = [
    ("bert", {"num_heads": 5}),
    ("bert", {"outputs": ("pooled", "pooled")}),
    ("bert", {"outputs": ("sequence",)}),
    ("bert", {"labels": ()}),
    ("bert", {"labels": ("a", "a")}),
    ("bert", {"pad_token_id": 30522}),
    ("roberta", {"max_position_embeddings": 2}),
    ("albert", {"num_hidden_groups": 13}),
    ("albert", {"num_layers": 1025}),
    ("bert", {"num_layers": 2.0}),
    ("bert", {"dropout": 1.0}),
    ("bert", {"norm_eps": 0}),
    ("bert", {"activation": "tanh"}),
    ("gpt2", {"d_model": 0}),
    ("gpt2", {"num_heads": 5}),
    ("llama", {"num_kv_heads": 3}),
    ("llama", {"d_k": 5}),
    ("llama", {"windows": (None,)}),
    ("llama", {"ropes": (ROPE,)}),
    ("gemma2", {"softcap": 0.0}),
    ("t5", {"vocab_size": 20, "decoder_start_token_id": 20}),
    ("uwaga-transformer", {"num_layers": 0, "num_decoder_layers": 0}),
    ("uwaga-transformer", {"d_model": 9, "num_heads": 3}),
    ("uwaga-transformer", {"d_model": 16, "num_heads": 2, "num_decoder_heads": 3}),
    ("uwaga-transformer", {"position_encoding": "alibi", "num_heads": 2, "alibi_slopes": (1.0, -1.0)}),
    ("uwaga-transformer", {"position_encoding": "alibi", "num_heads": 2, "alibi_slopes": (1.0, 0.5, 0.0)}),
    ("uwaga-transformer", {"d_model": 16, "num_heads": 2, "alibi_slopes": (1.0, 0.0)}),
    ("uwaga-transformer", {"num_layers": 0, "decoder_vocab_size": 5}),
    ("uwaga-transformer", {"decoder_vocab_size": 5, "decoder_start_token_id": 5}),
    ("uwaga-transformer", PAPER | {"pad_token_id": 30}),
    ("bert", {"num_layer": 3}),
    ("distilbert", {"type_vocab_size": 2}),
    ("qwen_2", {}),
]  # fmt: skip
# What transformers has no name for.
UNSAVED: list[tuple[str, dict]] = [
    ("llama", {"windows": (3, None)}),
    ("llama", {"ropes": BASES}),
    ("mistral", {"windows": (3, None)}),
    ("gemma2", {"ropes": BASES}),
    ("gemma3_text", {"windows": (3, 4)}),
    ("gemma3_text", {"windows": (3, 3), "ropes": BASES}),
    ("qwen2", {"windows": (3, 4)}),
    ("modernbert", {"windows": (3, 4)}),
    ("modernbert", {"windows": (3, 3), "ropes": BASES}),
    ("t5", {"gated": True, "activation": "gelu"}),
    ("gemma3_text", {"windows": (None, 4), "ropes": (Rope(10.0, YARN), Rope(10.0))}),
]
FORWARD: list[Callable[[], object]] = [
    lambda: bert()(IDS.float()),
    lambda: bert()(torch.tensor(3)),
    lambda: bert()(PACKED.with_values(torch.ones(7, 2).long())),
    lambda: bert()(IDS + 6),
    lambda: bert()(torch.ones(1, 11).long()),
    lambda: llama()(Ragged(torch.ones(12).long(), torch.tensor([0, 1, 12]))),
    lambda: bert()(IDS, token_types=IDS[:, :3]),
    lambda: bert()(PACKED, token_types=IDS),
    lambda: bert()(IDS, token_types=torch.full_like(IDS, 2)),
    lambda: llama()(IDS, token_types=torch.zeros_like(IDS)),
    lambda: bert()(PACKED, lengths=torch.tensor([4, 3])),
    lambda: paper()(PACKED, lengths=torch.tensor([2, 1])),
    lambda: bert()(IDS, lengths=torch.tensor([4, 3]), attention_mask=IDS > 3),
    lambda: bert()(IDS, attention_mask=torch.ones_like(IDS)),
    lambda: bert()(IDS, attention_mask=torch.ones(2, 5).bool()),
    lambda: bert()(IDS, outputs=("tokens", "logits")),
    lambda: eurobert(outputs=())(IDS, outputs=["logits"]),
    lambda: bert()(EMPTY),
    lambda: bert()(torch.ones(2, 0).long()),
    lambda: bert()(PACKED, only="mean"),
    lambda: bert()(IDS, only="last"),
    lambda: bert(outputs=("pooled", "logits"))(PACKED, only="last"),
    lambda: bert(outputs=("pooled", "logits", "tokens"))(PACKED, only="first"),
    lambda: bert()(PACKED, only="first", outputs=(), output_hidden_states=True),
    lambda: t5()(PACKED, PACKED, only="first"),
    lambda: llama()(EMPTY, only="last"),
    lambda: bert()(IDS, key_lengths=torch.tensor([2, 2])),
    lambda: bert()(PACKED, key_lengths=torch.tensor([2, 2]), lengths=torch.tensor([4, 2])),
    lambda: bert()(PACKED, key_lengths=torch.tensor([1, 1, 1])),
    lambda: llama()(PACKED, key_lengths=torch.tensor([1.0, 1.0])),
    lambda: llama()(PACKED, key_lengths=torch.tensor([4, 4])),
    lambda: bert()(PACKED, key_lengths=torch.tensor([-1, 2])),
    lambda: llama()(IDS, lengths=torch.tensor([3, 1]), cache=llama().new_cache()),
    lambda: gpt2()(PACKED, key_lengths=torch.tensor([2, 2]), cache=gpt2().new_cache()),
    lambda: gpt2()(IDS, cache=uwaga.nn.KeyValueCache(1)),
    lambda: bert()(IDS, cache=uwaga.nn.KeyValueCache(2)),
    lambda: bert().new_cache(),
    lambda: llama(outputs=()).logits(torch.ones(1, 8)),
    lambda: t5()(PACKED, torch.ones(2, 1).long()),
    lambda: paper()(IDS, IDS[[0, 0, 1]]),
    lambda: t5()(PACKED, PACKED.with_values(PACKED.values + 14)),
    lambda: bert()(PACKED, PACKED),
    lambda: llama()(PACKED, PACKED),
    lambda: paper(num_layers=0)(PACKED, PACKED),
    lambda: made("roberta", SHORT)(IDS.repeat(1, 2)[:, :9]),
]  # fmt: skip
GENERATE: list[tuple[object, dict]] = [
    ([[3]], {"max_new_tokens": 0}),
    ([[3]], {"max_new_tokens": 2.5}),
    ([[3]], {"do_sample": "yes"}),
    ([[3]], {"num_beams": 0}),
    ([[3]], {"do_sample": True, "num_beams": 2}),
    ([[3]], {"do_sample": True, "temperature": 0}),
    ([[3]], {"temperature": 0.5}),
    ([[3]], {"seed": 1}),
    ([[3]], {"do_sample": True, "top_k": 0}),
    ([[3]], {"do_sample": True, "top_p": 1.5}),
    ([[3]], {"do_sample": True, "seed": -1}),
    ([[3]], {"length_penalty": 2.0}),
    ([[3]], {"num_beams": 2, "length_penalty": float("nan")}),
    ([[3]], {"num_beams": 2, "early_stopping": "soon"}),
    ([[3]], {"eos_token_ids": 12}),
    ([[3]], {"eos_token_ids": ["."]}),
    ([[3]], {"pad_token_id": 0}),
    (torch.ones(1, 2).long(), {"pad_token_id": -1}),
    ("once upon a time", {}),
    ([3, 4], {}),
    (torch.ones(3).long(), {}),
    ([[3]], {"lengths": torch.tensor([1])}),
    ([[3], [4, 12]], {}),
    (torch.ones(1, 2), {}),
    ([[3], []], {}),
    ([[3], [4] * 11], {"max_new_tokens": 1}),
    ([[3] * 6], {"max_new_tokens": 6}),
    ([[3], [4]], {"streamer": print}),
    ([[3]], {"streamer": print, "num_beams": 2}),
]  # fmt: skip
CALLS: dict[str, Callable[..., object]] = {
    "load: a model of which everything is wrong": lambda folder: changed(folder, spoil),
    "load: weights that are not finite": lambda folder: changed(folder, infinite),
    "load: a weight beyond the dtype": lambda folder: changed(folder, lambda x: x["bert.pooler.dense.bias"].fill_(1e6), dtype=torch.float16),
    "load: tied weights that differ": lambda folder: changed(folder, untied),
    "load: mixed dtypes": lambda folder: changed(folder, lambda x: x.update({"bert.pooler.dense.bias": torch.zeros(8).half()})),
    "load: no floating dtype": lambda folder: changed(folder, len, dtype=torch.int8),
    "load: a file from before PyTorch 1.6": old_pickle,
    "load: a shard with a strange weight": lambda folder: load(sharded(folder, "b.safetensors")),
    "load: a shard that is not there": lambda folder: load(sharded(folder, "c.safetensors")),
    "load: one file beside shards": lambda folder: load(sharded(folder, "b.safetensors", single=True)),
    "save: beside the shards of another": lambda folder: save(bert(), sharded(folder, "b.safetensors")),
    "save: outputs that transformers does not have": lambda folder: save(bert(outputs=("logits", "tokens")), folder),
    "load: no weights": lambda folder: without(folder, "model.safetensors"),
    "load: no config.json": lambda folder: without(folder, "config.json"),
    "load: a file": lambda folder: (save(bert(), folder), load(folder / "config.json")),
    "load: a directory with a revision": lambda folder: load(folder, revision="main"),
    "load: a path that is not there": lambda: load("no/such/folder"),
    "load: a hub that does not answer": offline,
    "family_of: mamba": lambda: family_of("mamba", WHERE),
    "family_of: null": lambda: family_of(None, WHERE),
    "family_of: a list": lambda: family_of(["bert"], WHERE),
    "config.json: keys of NomicBERT's own code": lambda: family_of("nomic_bert", WHERE).read("nomic_bert", File({"n_embd": 512}, WHERE, frozenset()), {}),
    "modules.json: an unknown mode of pooling": lambda folder: modules(folder, [FIRST, POOLING], {"pooling_mode": "median"}),
    "modules.json: a number as a switch of pooling": lambda folder: modules(folder, [FIRST, POOLING], {"pooling_mode_cls_token": 1}),
    "modules.json: a word as a length": lambda folder: modules(folder, [FIRST], settings={"max_seq_length": "64"}),
    "generate: a model in training mode": lambda: generate(writer().train(), [[3]]),
    "generate: logits that are NaN": lambda: generate(nan(), [[3]]),
    "generate: an encoder": lambda: generate(bert(), ["a text"]),
    "generate: no logits": lambda: generate(writer(tie_word_embeddings=False, outputs=()), [[3]]),
}  # fmt: skip
CALLS |= {f"config.json of {kind}: {change}": partial(read_config, kind, change) for kind, change in REFUSED}
CALLS |= {f"config of {kind}: {given}": lambda k=kind, given=given: config(k, **given) for kind, given in CONTRADICTORY}
CALLS |= {f"save: {kind}: {settings}": partial(unsaved, kind, settings) for kind, settings in UNSAVED}
CALLS |= {
    f"modules.json {n}": lambda folder, listed=listed: modules(folder, listed) for n, listed in enumerate(MODULES)
}
CALLS |= {f"Transformer {n}": call for n, call in enumerate(FORWARD)}
CALLS |= {
    f"generate {n}: {options}": partial(lambda prompts, options: generate(writer(), prompts, **({"max_new_tokens": 2} | options)), prompts, options)
    for n, (prompts, options) in enumerate(GENERATE)
}  # fmt: skip
