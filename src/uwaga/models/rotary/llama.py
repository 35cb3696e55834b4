"""Checkpoints of the decoders Llama, Mistral, Qwen2 and Qwen3: the keys of config.json and the names of weights, as in transformers.

To add a model type: its keys in _KEYS, its stem in _STEMS, and a line in checkpoints/load_save.py.
"""

from collections.abc import Mapping, Set
from typing import Any

from uwaga._base.errors import CheckpointError
from uwaga._base.options import POSITIVE, SWITCH
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import config_json
from uwaga.models.checkpoints.config_json import (
    ACTIVATION,
    EOS_TOKEN_ID,
    GLOBAL,
    LOCAL,
    OPTIONAL_COUNT,
    OPTIONAL_SIZE,
    PROBABILITY,
    SIZE,
    Key,
    read_activation,
    read_eos_token_id,
    read_layer_types,
    read_rotary_base,
    write_activation,
    write_eos_token_id,
)
from uwaga.models.checkpoints.tables import Family, Table, WeightMapping, pair
from uwaga.models.rotary.config import RotaryConfig
from uwaga.models.rotary.model import RotaryModel

_LLAMA = {
    "vocab_size": Key("vocab_size", SIZE, 32000),
    "hidden_size": Key("d_model", SIZE, 4096),
    "intermediate_size": Key("d_ff", SIZE, 11008),
    "num_hidden_layers": Key("num_layers", SIZE, 32),
    "num_attention_heads": Key("num_heads", SIZE, 32),
    "num_key_value_heads": Key("num_kv_heads", OPTIONAL_SIZE, None),
    "head_dim": Key("d_k", OPTIONAL_SIZE, None),
    "hidden_act": Key("activation", ACTIVATION, "silu"),
    "max_position_embeddings": Key("max_position_embeddings", SIZE, 2048),
    "rms_norm_eps": Key("norm_eps", POSITIVE, 1e-6),
    "attention_bias": Key("qkv_bias", SWITCH, False),
    "mlp_bias": Key("feed_forward_bias", SWITCH, False),
    "attention_dropout": Key("attention_dropout", PROBABILITY, 0.0),
    "tie_word_embeddings": Key("tie_word_embeddings", SWITCH, False),
    "eos_token_id": Key("eos_token_ids", EOS_TOKEN_ID, 2),
    "pad_token_id": Key("pad_token_id", OPTIONAL_COUNT, None),
}
_MISTRAL = {name: key for name, key in _LLAMA.items() if name not in ("attention_bias", "mlp_bias")} | {
    "intermediate_size": Key("d_ff", SIZE, 14336),
    "num_key_value_heads": Key("num_kv_heads", OPTIONAL_SIZE, 8),
    "max_position_embeddings": Key("max_position_embeddings", SIZE, 131072),
}
_QWEN2 = _MISTRAL | {
    "vocab_size": Key("vocab_size", SIZE, 151936),
    "intermediate_size": Key("d_ff", SIZE, 22016),
    "num_key_value_heads": Key("num_kv_heads", OPTIONAL_SIZE, 32),
    "max_position_embeddings": Key("max_position_embeddings", SIZE, 32768),
    "eos_token_id": Key("eos_token_ids", EOS_TOKEN_ID, None),
}
_QWEN3 = _QWEN2 | {
    "head_dim": Key("d_k", OPTIONAL_SIZE, 128),
    "attention_bias": Key("qkv_bias", SWITCH, False),
}
_KEYS = {"llama": _LLAMA, "mistral": _MISTRAL, "qwen2": _QWEN2, "qwen3": _QWEN3}
_STEMS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
# Keys that change what is computed, and their only supported values.
_ONLY: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "partial_rotary_factor": (1.0, None),
    "pretraining_tp": (1, None),
    "quantization_config": (None,),
    "use_bidirectional_attention": (False, None),
}
# Keys that `_windows` and `read_rotary_base` read; a saved file has those of today.
_LAYERS = {
    "layer_types", "max_window_layers", "rope_parameters", "rope_scaling", "rope_theta", "sliding_window", "use_sliding_window"
}  # fmt: skip
_WORDS, _HEAD = "embed_tokens.weight", "lm_head.weight"


def read_config(config: Mapping[str, Any], where: str, names: Set[str]) -> RotaryConfig:
    """The configuration from a config.json; whether the model has a head follows from the names of the weights too."""
    model_type = config["model_type"]
    read = config_json.read(config, where, keys=_KEYS[model_type], only=_ONLY, harmless=_LAYERS)
    known = [_STEMS[model_type] + head for head in ("Model", "ForCausalLM")]
    if (config.get("architectures") or known[:1]) not in ([name] for name in known):
        shown = printable(repr(config["architectures"]))
        raise CheckpointError(f"{where}: architectures is {shown}; supported: {', '.join(known)}")
    given = read.settings
    given["activation"] = read_activation(given["activation"])
    given["output_bias"] = given.setdefault("qkv_bias", model_type == "qwen2") and model_type != "qwen2"
    given["eos_token_ids"] = read_eos_token_id(given["eos_token_ids"])
    has_own = _HEAD in names or config.get("architectures") == known[1:]
    given["has_lm_head"] = given["tie_word_embeddings"] or has_own
    given["num_kv_heads"] = given["num_kv_heads"] or given["num_heads"]
    if not given["d_k"] and given["d_model"] % given["num_heads"]:
        raise CheckpointError(
            f"{where}: hidden_size {given['d_model']} is not a multiple of {given['num_heads']} heads"
        )
    given["d_k"] = given["d_k"] or given["d_model"] // given["num_heads"]
    rope = {"rope_theta": config.get("rope_theta")}, config.get("rope_scaling"), config.get("rope_parameters")
    layers = given["num_layers"]
    given["rotary_bases"] = (read_rotary_base(where, 10000.0, *rope),) * layers
    given["windows"] = (None,) * layers if model_type == "llama" else _windows(config, where, layers)
    try:
        return RotaryConfig(model_type=model_type, kept=read.kept, **given)
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _windows(config: Mapping[str, Any], where: str, layers: int) -> tuple[int | None, ...]:
    """The window of each layer: of all layers of Mistral, and of those of Qwen that layer_types says."""
    is_mistral = config["model_type"] == "mistral"
    window = config.get("sliding_window", 4096) if is_mistral or config.get("use_sliding_window") else None
    first = 0 if is_mistral else config.get("max_window_layers", 28)
    if not OPTIONAL_SIZE.accepts(window) or not OPTIONAL_COUNT.accepts(first):
        shown = printable(repr((window, first)))
        raise CheckpointError(f"{where}: sliding_window and max_window_layers must be whole numbers, not {shown}")
    default = [GLOBAL if window is None or n < (first or 0) else LOCAL for n in range(layers)]
    types = read_layer_types(None if is_mistral else config.get("layer_types"), where, default)
    if window is None and LOCAL in types:
        raise CheckpointError(f"{where}: layer_types has {LOCAL}, and there is no sliding_window")
    return tuple(window if each == LOCAL else None for each in types)


def write_config(config: RotaryConfig) -> dict[str, object]:
    """config.json as transformers reads it; unknown keys that were read are written unchanged. Raises CheckpointError: transformers
    has no such model."""
    windows = {window for window in config.windows if window is not None}
    most = {"llama": 0, "mistral": 1 if set(config.windows) == windows else 0}.get(config.model_type, 1)
    if len(windows) > most or len(set(config.rotary_bases)) > 1:
        raise CheckpointError(f"transformers has no {config.model_type} model with these windows and rotary bases")
    written = {name: value for name, value in config.kept.items() if name not in _LAYERS | {"torch_dtype"}}
    for name, key in _KEYS[config.model_type].items():
        written[name] = getattr(config, key.ours)
    if config.model_type != "llama":
        written["sliding_window"] = next(iter(windows), None)
    if config.model_type.startswith("qwen"):
        kinds = [GLOBAL if window is None else LOCAL for window in config.windows]
        written |= {"layer_types": kinds, "use_sliding_window": bool(windows)}
    return written | {
        "model_type": config.model_type,
        "architectures": [_STEMS[config.model_type] + ("ForCausalLM" if config.has_lm_head else "Model")],
        "hidden_act": write_activation(config.activation),
        "eos_token_id": write_eos_token_id(config.eos_token_ids),
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_bases[0]},
    }


def _table(config: RotaryConfig) -> Table:
    there, here = "layers.{n}.self_attn", "layers.{n}.attention"
    body = [WeightMapping(_WORDS, "token_embedding.weight"), WeightMapping("norm.weight", "norm.weight")]
    for name in ("query", "key", "value"):
        body += pair(f"{there}.{name[0]}_proj", f"{here}.{name}", bias=config.qkv_bias)
    body += pair(f"{there}.o_proj", f"{here}.output", bias=config.output_bias)
    if config.model_type == "qwen3":
        body += [WeightMapping(f"{there}.{x[0]}_norm.weight", f"{here}.{x}_norm.weight") for x in ("query", "key")]
    for name in ("gate", "up", "down"):
        body += pair(
            f"layers.{{n}}.mlp.{name}_proj", f"layers.{{n}}.feed_forward.{name}", bias=config.feed_forward_bias
        )
    body.append(WeightMapping("layers.{n}.input_layernorm.weight", "layers.{n}.attention_norm.weight"))
    body.append(WeightMapping("layers.{n}.post_attention_layernorm.weight", "layers.{n}.feed_forward_norm.weight"))
    has_own = config.has_lm_head and not config.tie_word_embeddings
    return Table(
        body=tuple(body),
        heads=(WeightMapping(_HEAD, _HEAD),) if has_own else (),
        prefix="model.",
        is_prefixed=config.has_lm_head,
        counts={"n": config.num_layers},
        tied={_HEAD: _WORDS} if config.tie_word_embeddings else {},
        unread={
            f"layers.{n}.self_attn.rotary_emb.inv_freq": "a buffer of transformers before 4.32"
            for n in range(config.num_layers)
        },
    )


FAMILY = Family(read_config=read_config, write_config=write_config, table=_table, build=RotaryModel)
