"""Checkpoints of the decoders Llama, Mistral, Qwen2 and Qwen3, and of the encoder EuroBERT, which has Llama's shape: the keys of
config.json and the names of weights, as in transformers.
"""

from collections.abc import Mapping, Set
from typing import Any

from uwaga._base.errors import CheckpointError
from uwaga.models.checkpoints import config_json, rope_parameters
from uwaga.models.checkpoints.config_json import GLOBAL, LOCAL, Key, ModelCount, ModelSize, read_layer_types
from uwaga.models.checkpoints.tables import Family, Table, WeightMapping, pair
from uwaga.models.rotary.config import RotaryConfig
from uwaga.models.rotary.model import RotaryModel

_LLAMA = {
    "vocab_size": Key("vocab_size", 32000),
    "hidden_size": Key("d_model", 4096),
    "intermediate_size": Key("d_ff", 11008),
    "num_hidden_layers": Key("num_layers", 32),
    "num_attention_heads": Key("num_heads", 32),
    "num_key_value_heads": Key("num_kv_heads", None),
    "head_dim": Key("d_k", None),
    "hidden_act": Key("activation", "silu"),
    "max_position_embeddings": Key("max_position_embeddings", 2048),
    "rms_norm_eps": Key("norm_eps", 1e-6),
    "attention_bias": Key("qkv_bias", False),
    "mlp_bias": Key("feed_forward_bias", False),
    "attention_dropout": Key("attention_dropout", 0.0),
    "tie_word_embeddings": Key("tie_word_embeddings", False),
    "eos_token_id": Key("eos_token_ids", 2),
    "pad_token_id": Key("pad_token_id", None),
}
_EUROBERT = _LLAMA | {
    "vocab_size": Key("vocab_size", 128256),
    "hidden_size": Key("d_model", 768),
    "intermediate_size": Key("d_ff", 3072),
    "num_hidden_layers": Key("num_layers", 12),
    "num_attention_heads": Key("num_heads", 12),
    "max_position_embeddings": Key("max_position_embeddings", 8192),
    "rms_norm_eps": Key("norm_eps", 1e-5),
    "eos_token_id": Key("eos_token_ids", 128001),
    "pad_token_id": Key("pad_token_id", 128001),
}
_MISTRAL = {name: key for name, key in _LLAMA.items() if name not in ("attention_bias", "mlp_bias")} | {
    "intermediate_size": Key("d_ff", 14336),
    "num_key_value_heads": Key("num_kv_heads", 8, ModelSize | None),
    "max_position_embeddings": Key("max_position_embeddings", 131072),
}
_QWEN2 = _MISTRAL | {
    "vocab_size": Key("vocab_size", 151936),
    "intermediate_size": Key("d_ff", 22016),
    "num_key_value_heads": Key("num_kv_heads", 32, ModelSize | None),
    "max_position_embeddings": Key("max_position_embeddings", 32768),
    "eos_token_id": Key("eos_token_ids", None),
}
_QWEN3 = _QWEN2 | {
    "head_dim": Key("d_k", 128, ModelSize | None),
    "attention_bias": Key("qkv_bias", False),
}
_KEYS = {"eurobert": _EUROBERT, "llama": _LLAMA, "mistral": _MISTRAL, "qwen2": _QWEN2, "qwen3": _QWEN3}
_WITHOUT_WINDOWS = ("eurobert", "llama")
_STEMS = {"eurobert": "EuroBert", "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
# Keys that change what is computed, and their only supported values.
ONLY: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "rope_interleaved": (False,),
    "pretraining_tp": (1, None),
    "use_bidirectional_attention": (False, None),
}
# Settings of the classifiers of EuroBERT, and what SmolLM says of itself.
_BUFFER = "a buffer of transformers before 4.32"
_HARMLESS = {"classifier_pooling", "is_llama_config", "mask_token_id", "transformers.js_config"}
# Keys that `_windows` and `rope_parameters` read; a saved file has those of today.
_LAYERS = rope_parameters.KEYS | {"layer_types", "max_window_layers", "sliding_window", "use_sliding_window"}
_WORDS, HEAD = "embed_tokens.weight", "lm_head.weight"
_OWN_HEAD, _HEAD_BIAS = WeightMapping(HEAD, HEAD), WeightMapping("lm_head.bias", "lm_head_bias")


def read_config(config: Mapping[str, Any], where: str, names: Set[str]) -> RotaryConfig:
    """The configuration from a config.json; whether the model has a head of its own follows from the names of the weights."""
    model_type = config["model_type"]
    read = config_json.read(
        config, where, of=RotaryConfig, keys=_KEYS[model_type], only=ONLY, harmless=_LAYERS | _HARMLESS
    )
    known = _architectures(model_type)
    config_json.check_architecture(config, where, known)
    given, layers = read.settings, read.settings["num_layers"]
    given["output_bias"] = given.setdefault("qkv_bias", model_type == "qwen2") and model_type != "qwen2"
    given["has_lm_head"] = given["tie_word_embeddings"] or HEAD in names
    given["num_kv_heads"] = given["num_kv_heads"] or given["num_heads"]
    given["d_k"] = given["d_k"] or config_json.head_width(given, where)
    base, scaling = rope_parameters.read(config, where, 10000.0, given["max_position_embeddings"])
    given |= {"rotary_bases": (base,) * layers, "rotary_scaling": (scaling,) * layers if scaling else ()}
    given["windows"] = (None,) * layers if model_type in _WITHOUT_WINDOWS else _windows(config, where, layers)
    given["lm_head_bias"] = model_type == "eurobert" and given["has_lm_head"] and given["feed_forward_bias"]
    return config_json.make(RotaryConfig, where, model_type=model_type, kept=read.kept, **given)


def _windows(config: Mapping[str, Any], where: str, layers: int) -> tuple[int | None, ...]:
    """The window of each layer: of all layers of Mistral, and of those of Qwen that layer_types says."""
    is_mistral, window, first = config["model_type"] == "mistral", None, 0
    if is_mistral or config.get("use_sliding_window"):
        window = config_json.setting(config, where, "sliding_window", ModelSize | None, 4096)
    if not is_mistral:
        first = config_json.setting(config, where, "max_window_layers", ModelCount | None, 28)
    default = [GLOBAL if window is None or n < (first or 0) else LOCAL for n in range(layers)]
    types = read_layer_types(None if is_mistral else config.get("layer_types"), where, default)
    return config_json.windows_of(types, window, where)


def write_config(config: RotaryConfig) -> dict[str, object]:
    """config.json as transformers reads it; unknown keys that were read are written unchanged. Raises CheckpointError: transformers
    has no such model."""
    windows = {window for window in config.windows if window is not None}
    most = 0 if config.model_type in _WITHOUT_WINDOWS else 1
    most = int(set(config.windows) == windows) if config.model_type == "mistral" else most
    if len(windows) > most or len(set(config.ropes)) > 1:
        raise CheckpointError(f"transformers has no {config.model_type} model with these windows and rotary bases")
    written = {name: value for name, value in config.kept.items() if name not in _LAYERS | {"torch_dtype"}}
    written |= config_json.written(config, _KEYS[config.model_type])
    if config.model_type not in _WITHOUT_WINDOWS:
        written["sliding_window"] = next(iter(windows), None)
    if config.model_type.startswith("qwen"):
        kinds = [GLOBAL if window is None else LOCAL for window in config.windows]
        written |= {"layer_types": kinds, "use_sliding_window": bool(windows)}
    return written | {
        "model_type": config.model_type,
        "architectures": [_architectures(config.model_type)[config.has_lm_head]],
        "rope_parameters": rope_parameters.write(config.ropes[0]),
    }


def _architectures(model_type: str) -> list[str]:
    """Without and with a head."""
    head = "ForMaskedLM" if model_type == "eurobert" else "ForCausalLM"
    return [_STEMS[model_type] + suffix for suffix in ("Model", head)]


NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}


def table(config: RotaryConfig, norms: Mapping[str, str] = NORMS) -> Table:
    """The names of weights; norms: of a layer, theirs -> ours."""
    there, here = "layers.{n}.self_attn", "layers.{n}.attention"
    body = [WeightMapping(_WORDS, "token_embedding.weight"), WeightMapping("norm.weight", "norm.weight")]
    for name in ("query", "key", "value"):
        body += pair(f"{there}.{name[0]}_proj", f"{here}.{name}", bias=config.qkv_bias)
    body += pair(f"{there}.o_proj", f"{here}.output", bias=config.output_bias)
    if config.model_type in ("gemma3_text", "qwen3"):
        body += [WeightMapping(f"{there}.{x[0]}_norm.weight", f"{here}.{x}_norm.weight") for x in ("query", "key")]
    mlp, ours = "layers.{n}.mlp", "layers.{n}.feed_forward"
    for name in ("gate", "up", "down"):
        body += pair(f"{mlp}.{name}_proj", f"{ours}.{name}", bias=config.feed_forward_bias)
    body += [WeightMapping(f"layers.{{n}}.{x}.weight", f"layers.{{n}}.{norm}.weight") for x, norm in norms.items()]
    has_own = config.has_lm_head and not config.tie_word_embeddings
    return Table(
        body=tuple(body),
        heads=tuple(row for row, is_there in ((_OWN_HEAD, has_own), (_HEAD_BIAS, config.lm_head_bias)) if is_there),
        prefix="model.",
        is_prefixed=config.has_lm_head,
        counts={"n": config.num_layers},
        tied={HEAD: _WORDS} if config.tie_word_embeddings else {},
        unread=dict.fromkeys((f"{there.format(n=n)}.rotary_emb.inv_freq" for n in range(config.num_layers)), _BUFFER),
    )


FAMILY = Family(read_config=read_config, write_config=write_config, table=table, build=RotaryModel)
