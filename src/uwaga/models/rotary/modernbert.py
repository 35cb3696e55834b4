"""Checkpoints of the encoder ModernBERT: the keys of config.json and the names of weights, as in transformers."""

from collections.abc import Mapping, Set
from typing import Annotated, Any

from annotated_types import Ge

from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import config_json, rope_parameters
from uwaga.models.checkpoints.config_json import GLOBAL, LOCAL, Key, ModelSize, read_layer_types
from uwaga.models.checkpoints.tables import Family, Table, WeightMapping, pair, stacked
from uwaga.models.rotary.config import RotaryConfig
from uwaga.models.rotary.model import RotaryModel

_KEYS = {
    "vocab_size": Key("vocab_size", 50368),
    "hidden_size": Key("d_model", 768),
    "intermediate_size": Key("d_ff", 1152),
    "num_hidden_layers": Key("num_layers", 22),
    "num_attention_heads": Key("num_heads", 12),
    "hidden_activation": Key("activation", "gelu"),
    "max_position_embeddings": Key("max_position_embeddings", 8192),
    "norm_eps": Key("norm_eps", 1e-5),
    "norm_bias": Key("norm_bias", False),
    "attention_bias": Key("qkv_bias", False),
    "mlp_bias": Key("feed_forward_bias", False),
    "embedding_dropout": Key("embedding_dropout", 0.0),
    "mlp_dropout": Key("activation_dropout", 0.0),
    "tie_word_embeddings": Key("tie_word_embeddings", True),
    "pad_token_id": Key("pad_token_id", 50283),
}
_HEAD_KEYS = {  # without effect where there is no head
    "classifier_activation": Key("head_activation", "gelu"),
    "classifier_bias": Key("head_bias", False),
    "decoder_bias": Key("lm_head_bias", True),
}
# Keys that change what is computed, and their only supported values.
_ONLY: dict[str, tuple[object, ...]] = {
    "attention_dropout": (0.0,),  # of the output of attention too, in training
    "is_encoder_decoder": (False,),
}
# Keys that `read_layers` reads; a saved file has those of today.
_LAYERS = rope_parameters.KEYS_BY_LAYER_TYPE | {
    "global_attn_every_n_layers", "global_rope_theta", "layer_types", "local_attention", "local_rope_theta", "sliding_window"
}  # fmt: skip
_ROPES = {
    GLOBAL: rope_parameters.Defaults("global_rope_theta", 160000.0, is_scaled=True),
    LOCAL: rope_parameters.Defaults("local_rope_theta", 10000.0, is_scaled=True),
}
# Its initialisation and heads, and settings of the checkpoint's own code.
_HARMLESS = {
    "classifier_dropout", "classifier_pooling", "cls_token_id", "deterministic_flash_attn", "head_dim", "initializer_cutoff_factor", "layer_norm_eps", "position_embedding_type", "reference_compile",
    "repad_logits_with_grad", "sparse_pred_ignore_index", "sparse_prediction",
}  # fmt: skip
_ARCHITECTURES = ("ModernBertModel", "ModernBertForMaskedLM")
_WORDS, _HEAD, _DECODER = "embeddings.tok_embeddings.weight", "head.dense.weight", "decoder.weight"


def read_config(config: Mapping[str, Any], where: str, names: Set[str]) -> RotaryConfig:
    """The configuration from a config.json."""
    has_head = _HEAD in names
    keys, harmless = (_KEYS | _HEAD_KEYS if has_head else _KEYS), _LAYERS | _HARMLESS | set(_HEAD_KEYS)
    read = config_json.read(config, where, of=RotaryConfig, keys=keys, only=_ONLY, harmless=harmless)
    config_json.check_architecture(config, where, _ARCHITECTURES)
    given = read.settings
    given |= {"output_bias": given["qkv_bias"], "num_kv_heads": given["num_heads"], "has_lm_head": has_head}
    given["tie_word_embeddings"] = given["tie_word_embeddings"] or not has_head
    given["d_k"] = config_json.head_width(given, where)
    if config.get("head_dim") not in (None, given["d_k"]):  # transformers has it for rotary positions alone, and fails
        shown = printable(repr(config["head_dim"]))
        raise CheckpointError(
            f"{where}: head_dim must be {given['d_k']}, hidden_size / num_attention_heads, not {shown}; remove it"
        )
    every = config_json.setting(config, where, "global_attn_every_n_layers", ModelSize, 3)
    span = config_json.setting(config, where, "local_attention", Annotated[ModelSize, Ge(2)], 128)
    # In transformers it sets local_attention.
    side = config_json.setting(config, where, "sliding_window", ModelSize, span // 2)
    default = [LOCAL if n % every else GLOBAL for n in range(given["num_layers"])]
    types = read_layer_types(config.get("layer_types"), where, default)
    ropes = rope_parameters.read_by_layer_type(config, where, given["max_position_embeddings"], _ROPES)
    given["windows"] = tuple(side if each == LOCAL else None for each in types)
    given["rotary_bases"], given["rotary_scaling"] = zip(*(ropes[each] for each in types), strict=True)
    return config_json.make(RotaryConfig, where, model_type="modernbert", kept=read.kept, **given)


def write_config(config: RotaryConfig) -> dict[str, object]:
    """config.json as transformers reads it; unknown keys that were read are written unchanged. Raises CheckpointError: transformers
    has no such model."""
    kinds = [GLOBAL if window is None else LOCAL for window in config.windows]
    windows = {window for window in config.windows if window is not None}
    ropes = dict(zip(kinds, config.ropes, strict=True))
    if len(windows) > 1 or [ropes[kind] for kind in kinds] != list(config.ropes):
        raise CheckpointError("transformers has no modernbert model with these windows and rotary bases")
    written = {name: value for name, value in config.kept.items() if name not in _LAYERS | {"torch_dtype"}}
    written |= config_json.written(config, _KEYS | _HEAD_KEYS if config.has_lm_head else _KEYS)
    return written | {
        "model_type": "modernbert",
        "architectures": [_ARCHITECTURES[config.has_lm_head]],
        "layer_types": kinds,
        "local_attention": 2 * next(iter(windows), 64),
        "rope_parameters": rope_parameters.write_by_layer_type(ropes),
    }


def _table(config: RotaryConfig) -> Table:
    attention = tuple(f"layers.{{n}}.attention.{name}" for name in ("query", "key", "value"))
    gated = ("layers.{n}.feed_forward.gate", "layers.{n}.feed_forward.up")
    body = [WeightMapping(_WORDS, "token_embedding.weight")]
    for theirs, ours in (("embeddings.norm", "embedding_norm"), ("final_norm", "norm")):
        body += pair(theirs, ours, bias=config.norm_bias)
    for n in range(1, config.num_layers):  # the first layer has none
        body += pair(f"layers.{n}.attn_norm", f"layers.{n}.attention_norm", bias=config.norm_bias)
    body += pair("layers.{n}.mlp_norm", "layers.{n}.feed_forward_norm", bias=config.norm_bias)
    for theirs, names, bias in (
        ("layers.{n}.attn.Wqkv", attention, config.qkv_bias),
        ("layers.{n}.mlp.Wi", gated, config.feed_forward_bias),
    ):
        for part in ("weight", "bias")[: 1 + bias]:
            parts = [f"{name}.{part}" for name in names]
            body.append(WeightMapping(f"{theirs}.{part}", *parts, layout=stacked(len(names))))
    body += pair("layers.{n}.attn.Wo", "layers.{n}.attention.output", bias=config.output_bias)
    body += pair("layers.{n}.mlp.Wo", "layers.{n}.feed_forward.down", bias=config.feed_forward_bias)
    heads: list[WeightMapping] = []
    if config.has_lm_head:
        heads += pair("head.dense", "head.dense", bias=config.head_bias)
        heads += pair("head.norm", "head.norm", bias=config.norm_bias)
        heads += [WeightMapping("decoder.bias", "lm_head_bias")] if config.lm_head_bias else []
        heads += [] if config.tie_word_embeddings else [WeightMapping(_DECODER, "lm_head.weight")]
    return Table(
        body=tuple(body),
        heads=tuple(heads),
        prefix="model.",
        is_prefixed=config.has_lm_head,
        counts={"n": config.num_layers},
        tied={_DECODER: _WORDS} if config.has_lm_head and config.tie_word_embeddings else {},
    )


FAMILY = Family(read_config=read_config, write_config=write_config, table=_table, build=RotaryModel)
