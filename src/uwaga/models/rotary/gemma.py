"""Checkpoints of the decoders Gemma 2 and 3, and of EmbeddingGemma, a Gemma 3 without a causal mask: the keys of config.json and the names of
weights, as in transformers."""

from collections.abc import Mapping, Set
from typing import Any

from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga._base.validators import POSITIVE, SWITCH, optional
from uwaga.models.checkpoints import config_json, rope_parameters
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
    write_activation,
    write_eos_token_id,
)
from uwaga.models.checkpoints.tables import Family
from uwaga.models.rotary import llama
from uwaga.models.rotary.config import RotaryConfig
from uwaga.models.rotary.model import RotaryModel

_GEMMA2 = {
    "vocab_size": Key("vocab_size", SIZE, 256000),
    "hidden_size": Key("d_model", SIZE, 2304),
    "intermediate_size": Key("d_ff", SIZE, 9216),
    "num_hidden_layers": Key("num_layers", SIZE, 26),
    "num_attention_heads": Key("num_heads", SIZE, 8),
    "num_key_value_heads": Key("num_kv_heads", SIZE, 4),
    "head_dim": Key("d_k", SIZE, 256),
    "hidden_activation": Key("activation", ACTIVATION, "gelu_pytorch_tanh"),
    "max_position_embeddings": Key("max_position_embeddings", SIZE, 8192),
    "rms_norm_eps": Key("norm_eps", POSITIVE, 1e-6),
    "attention_bias": Key("qkv_bias", SWITCH, False),
    "attention_dropout": Key("attention_dropout", PROBABILITY, 0.0),
    "query_pre_attn_scalar": Key("query_pre_attn_scalar", POSITIVE, 256),
    "attn_logit_softcapping": Key("softcap", optional(POSITIVE), 50.0),
    "final_logit_softcapping": Key("logit_softcap", optional(POSITIVE), 30.0),
    "tie_word_embeddings": Key("tie_word_embeddings", SWITCH, True),
    "eos_token_id": Key("eos_token_ids", EOS_TOKEN_ID, 1),
    "pad_token_id": Key("pad_token_id", OPTIONAL_COUNT, 0),
}
_GEMMA3 = {name: key for name, key in _GEMMA2.items() if name != "attn_logit_softcapping"} | {
    "vocab_size": Key("vocab_size", SIZE, 262208),
    "max_position_embeddings": Key("max_position_embeddings", SIZE, 131072),
    "final_logit_softcapping": Key("logit_softcap", optional(POSITIVE), None),
    "use_bidirectional_attention": Key("bidirectional", optional(SWITCH), False),
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
    read = config_json.read(config, where, keys=_KEYS[model_type], only=only, harmless=_HARMLESS)
    known = _STEMS[model_type]
    config_json.check_architecture(config, where, known)
    given = read.settings
    given["activation"] = read_activation(given["activation"])
    given["eos_token_ids"] = read_eos_token_id(given["eos_token_ids"])
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
    try:
        return RotaryConfig(model_type=model_type, kept=read.kept, **given)
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _layers(config: Mapping[str, Any], where: str, count: int) -> tuple[tuple[str, ...], int | None]:
    """The type of each layer, and the window of the local ones."""
    pattern = 2 if config["model_type"] == "gemma2" else config.get("sliding_window_pattern", 6)
    window = config.get("sliding_window", 4096)
    if not SIZE.accepts(pattern) or not OPTIONAL_SIZE.accepts(window):
        shown = printable(repr((window, pattern)))
        raise CheckpointError(f"{where}: sliding_window and sliding_window_pattern must be whole numbers, not {shown}")
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
    for name, key in _KEYS[config.model_type].items():
        written[name] = getattr(config, key.ours)
    window = next(iter(windows), 4096)
    activation = "gelu_pytorch_tanh" if config.activation == "gelu_tanh" else write_activation(config.activation)
    return written | {
        "model_type": config.model_type,
        "architectures": [_STEMS[config.model_type][config.has_lm_head]],
        "hidden_activation": activation,
        "eos_token_id": write_eos_token_id(config.eos_token_ids),
        # Without a head nothing is tied here; whoever adds one there ties it, as Gemma does.
        "tie_word_embeddings": config.tie_word_embeddings or not config.has_lm_head,
        "layer_types": kinds,
        "sliding_window": 2 * window if config.bidirectional else window,
        "rope_parameters": rope_parameters.write(config.ropes[0])
        if config.model_type == "gemma2"
        else rope_parameters.write_by_layer_type(ropes),
    }


FAMILY = Family(
    read_config=read_config,
    write_config=write_config,
    table=lambda config: llama.table(config, _NORMS),
    build=RotaryModel,
)
