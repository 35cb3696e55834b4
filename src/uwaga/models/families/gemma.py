"""The decoders Gemma 2 and 3 (Gemma Team 2024, 2025), and EmbeddingGemma (Vera et al. 2025), a Gemma 3 without a causal mask."""

from dataclasses import replace
from typing import Any

from uwaga._base.options import Positive, Switch
from uwaga.models.checkpoints import config_json, rope_parameters
from uwaga.models.checkpoints.config_json import GLOBAL, LOCAL, Key, ModelSize, keys, read_layer_types
from uwaga.models.configuration import Config
from uwaga.models.families import llama
from uwaga.models.families.family import File, layers, without
from uwaga.models.families.llama import LLAMA, NAMES

_GEMMA2_KEYS = keys(
    vocab_size=256000, hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4,
    head_dim=256, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=8192, rms_norm_eps=1e-6, attention_bias=False,
    attention_dropout=0.0, query_pre_attn_scalar=Key("query_pre_attn_scalar", 256, Positive), attn_logit_softcapping=50.0,
    final_logit_softcapping=30.0, tie_word_embeddings=True, eos_token_id=1, pad_token_id=0,
)  # fmt: skip
_GEMMA3_KEYS = without(_GEMMA2_KEYS, "attn_logit_softcapping") | keys(
    vocab_size=262208,
    max_position_embeddings=131072,
    final_logit_softcapping=None,
    use_bidirectional_attention=Key("bidirectional", False, Switch | None),
)
_BASES = {GLOBAL: ("rope_theta", 1e6), LOCAL: ("rope_local_base_freq", 10000.0)}  # of Gemma 3


def _settle(settings: dict[str, Any], file: File) -> None:
    config, where, is_gemma2 = file.config, file.where, settings["model_type"] == "gemma2"
    settings.setdefault("scale", settings.pop("query_pre_attn_scalar") ** -0.5)
    is_bidirectional = bool(settings.pop("bidirectional", False))
    settings.setdefault("is_causal", not is_bidirectional)
    pattern = 2 if is_gemma2 else config_json.setting(config, where, "sliding_window_pattern", ModelSize, 6)
    window = config_json.setting(config, where, "sliding_window", ModelSize | None, 4096)
    default = [LOCAL if (n + 1) % pattern else GLOBAL for n in range(settings["num_layers"])]
    types = read_layer_types(config.get("layer_types"), where, default)
    if window is not None and not settings["is_causal"]:
        window //= 2  # on each side
    settings.setdefault("windows", config_json.windows_of(types, window, where))
    length = settings["max_position_embeddings"]
    if is_gemma2:
        ropes = dict.fromkeys(types, rope_parameters.read(config, where, 10000.0, length))
    else:
        ropes = rope_parameters.read_by_layer_type(config, where, length, _BASES, scaled=(GLOBAL,))
    settings.setdefault("ropes", tuple(ropes[kind] for kind in types))
    if file.names is not None:  # a tied head has no weight: the class says whether there is one
        has_head = "ForCausalLM" in str(config.get("architectures")) and settings["tie_word_embeddings"]
        settings["tie_word_embeddings"] &= has_head
        settings["outputs"] = ("logits",) if has_head or file.has(llama.HEAD) else ()
    llama.settle(settings, file)


def _write(config: Config) -> dict[str, object]:
    return {
        **({"hidden_activation": "gelu_pytorch_tanh"} if config.activation == "gelu_tanh" else {}),
        # Without a head nothing is tied here; whoever adds one there ties it, as Gemma does.
        "tie_word_embeddings": config.tie_word_embeddings or "logits" not in config.outputs,
    }


_GEMMA2 = replace(
    LLAMA,
    keys=_GEMMA2_KEYS,
    fixed={
        "norm": "pre", "norm_type": "zero_centered_rms", "output_norms": True, "gated": True, "feed_forward_bias": False,
        "scale_embedding": True, "rounds_scale": True,
    },
    extra=("is_causal", "ropes", "scale", "windows"),
    names={theirs: ours for theirs, ours in NAMES.items() if "layernorm" not in theirs} | layers(
        "layers.{n}", "{stack}.layers.{n}", {
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "attention_output_norm",
            "pre_feedforward_layernorm": "feed_forward_norm",
            "post_feedforward_layernorm": "feed_forward_output_norm",
        },
    ),
    architectures={"Gemma2Model": (), "Gemma2ForCausalLM": ("logits",)},
    tokenizer="GemmaTokenizer",
    settle=_settle,
    write=_write,
)  # fmt: skip
FAMILIES = {
    "gemma2": _GEMMA2,
    "gemma3_text": replace(
        _GEMMA2,
        keys=_GEMMA3_KEYS,
        fixed=_GEMMA2.fixed | {"qk_norm": True},
        # attn_logit_softcapping is read by no code of Gemma 3.
        only=LLAMA.only | {"use_bidirectional_attention": (False, None, True), "attn_logit_softcapping": (None,)},
        architectures={"Gemma3TextModel": (), "Gemma3ForCausalLM": ("logits",)},
    ),
}
