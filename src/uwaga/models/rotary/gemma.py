"""Checkpoints of the decoders Gemma 2 and 3, and of EmbeddingGemma, a Gemma 3 without a causal mask: the keys of config.json and the names of
weights, as in transformers."""

from collections.abc import Mapping, Set
from typing import Any

from uwaga._base.errors import CheckpointError
from uwaga._base.options import Positive, Switch
from uwaga.models.checkpoints import config_json, rope_parameters
from uwaga.models.checkpoints.config_json import GLOBAL, LOCAL, Key, ModelSize, read_layer_types
from uwaga.models.checkpoints.tables import Family
from uwaga.models.rotary import llama
from uwaga.models.rotary.config import RotaryConfig
from uwaga.models.rotary.model import RotaryModel

_GEMMA2 = {
    "vocab_size": Key("vocab_size", 256000),
    "hidden_size": Key("d_model", 2304),
    "intermediate_size": Key("d_ff", 9216),
    "num_hidden_layers": Key("num_layers", 26),
    "num_attention_heads": Key("num_heads", 8),
    "num_key_value_heads": Key("num_kv_heads", 4),
    "head_dim": Key("d_k", 256),
    "hidden_activation": Key("activation", "gelu_pytorch_tanh"),
    "max_position_embeddings": Key("max_position_embeddings", 8192),
    "rms_norm_eps": Key("norm_eps", 1e-6),
    "attention_bias": Key("qkv_bias", False),
    "attention_dropout": Key("attention_dropout", 0.0),
    "query_pre_attn_scalar": Key("query_pre_attn_scalar", 256, Positive),
    "attn_logit_softcapping": Key("softcap", 50.0),
    "final_logit_softcapping": Key("logit_softcap", 30.0),
    "tie_word_embeddings": Key("tie_word_embeddings", True),
    "eos_token_id": Key("eos_token_ids", 1),
    "pad_token_id": Key("pad_token_id", 0),
}
_GEMMA3 = {name: key for name, key in _GEMMA2.items() if name != "attn_logit_softcapping"} | {
    "vocab_size": Key("vocab_size", 262208),
    "max_position_embeddings": Key("max_position_embeddings", 131072),
    "final_logit_softcapping": Key("logit_softcap", None),
    "use_bidirectional_attention": Key("bidirectional", False, Switch | None),
}
_KEYS = {"gemma2": _GEMMA2, "gemma3_text": _GEMMA3}
# Keys that change what is computed, and their only supported values: attn_logit_softcapping is read by no code of Gemma 3.
_ONLY: dict[str, dict[str, tuple[object, ...]]] = {
    "gemma2": {"use_bidirectional_attention": (False, None)},
    "gemma3_text": {"attn_logit_softcapping": (None,)},
}
_STEMS = {"gemma2": ("Gemma2Model", "Gemma2ForCausalLM"), "gemma3_text": ("Gemma3TextModel", "Gemma3ForCausalLM")}
# Keys that are read below; a saved file has those of today.
_LAYERS = rope_parameters.KEYS | {"layer_types", "rope_local_base_freq", "sliding_window", "sliding_window_pattern"}
# transformers reads layer_types and sliding_window_pattern in place of the first, and hidden_activation in place of the last.
_HARMLESS = _LAYERS | {"_sliding_window_pattern", "cache_implementation", "hidden_act"}
# Of Gemma 3; rope_scaling is of the global layers alone.
_ROPES = {
    GLOBAL: rope_parameters.Defaults("rope_theta", 1e6, is_scaled=True),
    LOCAL: rope_parameters.Defaults("rope_local_base_freq", 10000.0, is_scaled=False),
}
_NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "attention_output_norm",
    "pre_feedforward_layernorm": "feed_forward_norm",
    "post_feedforward_layernorm": "feed_forward_output_norm",
}


def read_config(config: Mapping[str, Any], where: str, names: Set[str]) -> RotaryConfig:
    """The configuration from a config.json; whether the model has a head follows from the names of the weights, and that of a tied one from its architecture."""
    model_type = config["model_type"]
    only = llama.ONLY | {"use_bidirectional_attention": (False, None, True)} | _ONLY[model_type]
    read = config_json.read(config, where, of=RotaryConfig, keys=_KEYS[model_type], only=only, harmless=_HARMLESS)
    known = _STEMS[model_type]
    config_json.check_architecture(config, where, known)
    given = read.settings
    given["output_bias"] = given["qkv_bias"]
    given["bidirectional"] = bool(given.get("bidirectional"))
    is_tied = given["tie_word_embeddings"] and config.get("architectures") == list(known[1:])
    given["has_lm_head"] = is_tied or llama.HEAD in names
    given["tie_word_embeddings"] = given["tie_word_embeddings"] and given["has_lm_head"]
    types, window = _layers(config, where, given["num_layers"])
    if given["bidirectional"]:
        window = None if window is None else window // 2  # on each side
    length = given["max_position_embeddings"]
    if model_type == "gemma2":
        ropes = dict.fromkeys(types, rope_parameters.read(config, where, 10000.0, length))
    else:
        ropes = rope_parameters.read_by_layer_type(config, where, length, _ROPES)
    given["windows"] = config_json.windows_of(types, window, where)
    given["rotary_bases"], given["rotary_scaling"] = zip(*(ropes[each] for each in types), strict=True)
    return config_json.make(RotaryConfig, where, model_type=model_type, kept=read.kept, **given)


def _layers(config: Mapping[str, Any], where: str, count: int) -> tuple[tuple[str, ...], int | None]:
    """The type of each layer, and the window of the local ones."""
    pattern = 2
    if config["model_type"] != "gemma2":
        pattern = config_json.setting(config, where, "sliding_window_pattern", ModelSize, 6)
    window = config_json.setting(config, where, "sliding_window", ModelSize | None, 4096)
    default = [LOCAL if (n + 1) % pattern else GLOBAL for n in range(count)]
    types = read_layer_types(config.get("layer_types"), where, default)
    return types, window


def write_config(config: RotaryConfig) -> dict[str, object]:
    """config.json as transformers reads it; unknown keys that were read are written unchanged. Raises CheckpointError: transformers
    has no such model."""
    kinds = [GLOBAL if window is None else LOCAL for window in config.windows]
    windows = {window for window in config.windows if window is not None}
    ropes = dict(zip(kinds, config.ropes, strict=True))
    is_one = config.model_type != "gemma2" or len(set(config.ropes)) == 1
    if len(windows) > 1 or [ropes[kind] for kind in kinds] != list(config.ropes) or not is_one:
        raise CheckpointError(f"transformers has no {config.model_type} model with these windows and rotary bases")
    written = {name: value for name, value in config.kept.items() if name not in _LAYERS | {"torch_dtype"}}
    written |= config_json.written(config, _KEYS[config.model_type])
    window = next(iter(windows), 4096)
    return written | {
        "model_type": config.model_type,
        "architectures": [_STEMS[config.model_type][config.has_lm_head]],
        **({"hidden_activation": "gelu_pytorch_tanh"} if config.activation == "gelu_tanh" else {}),
        "query_pre_attn_scalar": _whole(config.query_pre_attn_scalar),
        # Without a head nothing is tied here; whoever adds one there ties it, as Gemma does.
        "tie_word_embeddings": config.tie_word_embeddings or not config.has_lm_head,
        "layer_types": kinds,
        "sliding_window": 2 * window if config.bidirectional else window,
        "rope_parameters": rope_parameters.write(config.ropes[0])
        if config.model_type == "gemma2"
        else rope_parameters.write_by_layer_type(ropes),
    }


def _whole(x: float | None) -> float | None:
    """transformers accepts only an integer."""
    return int(x) if x is not None and x.is_integer() else x


FAMILY = Family(
    read_config=read_config,
    write_config=write_config,
    table=lambda config: llama.table(config, _NORMS),
    build=RotaryModel,
)
