"""The decoders Llama (Touvron et al. 2023), Mistral (Jiang et al. 2023), Qwen2 and Qwen3 (Yang et al. 2024, 2025), and the encoder EuroBERT
(Boizard et al. 2025), which has Llama's shape."""

from dataclasses import replace
from typing import Any

from uwaga.models.checkpoints import config_json, rope_parameters
from uwaga.models.checkpoints.config_json import GLOBAL, LOCAL, Key, ModelCount, ModelSize, keys, read_layer_types
from uwaga.models.families.family import Family, File, classes, layers, without

_KEYS = keys(
    vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=None,
    head_dim=None, hidden_act="silu", max_position_embeddings=2048, rms_norm_eps=1e-6, attention_bias=False, mlp_bias=False,
    attention_dropout=0.0, tie_word_embeddings=False, eos_token_id=2, pad_token_id=None,
)  # fmt: skip
_EUROBERT_KEYS = _KEYS | keys(
    vocab_size=128256, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, max_position_embeddings=8192,
    rms_norm_eps=1e-5, eos_token_id=128001, pad_token_id=128001,
)  # fmt: skip
_MISTRAL_KEYS = without(_KEYS, "attention_bias", "mlp_bias") | keys(
    intermediate_size=14336, num_key_value_heads=Key("num_kv_heads", 8, ModelSize | None), max_position_embeddings=131072,
)  # fmt: skip
_QWEN2_KEYS = _MISTRAL_KEYS | keys(
    vocab_size=151936, intermediate_size=22016, num_key_value_heads=Key("num_kv_heads", 32, ModelSize | None),
    max_position_embeddings=32768, eos_token_id=None,
)  # fmt: skip
_QWEN3_KEYS = _QWEN2_KEYS | keys(head_dim=Key("d_k", 128, ModelSize | None), attention_bias=False)
ATTENTION = {f"self_attn.{name[0]}_proj": f"attention.{name}" for name in ("query", "key", "value", "output")}
NAMES = {
    "embed_tokens": "embeddings.token_embedding",
    **layers("layers.{n}", "{stack}.layers.{n}", ATTENTION | {
        "self_attn.q_norm": "attention.query_norm",
        "self_attn.k_norm": "attention.key_norm",
        "mlp.gate_proj": "feed_forward.gate",
        "mlp.up_proj": "feed_forward.up",
        "mlp.down_proj": "feed_forward.down",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "feed_forward_norm",
    }),
    "norm": "{stack}.norm",
}  # fmt: skip
HEAD = "lm_head.weight"


def settle(settings: dict[str, Any], file: File) -> None:
    """Complete the settings of decoders with rotary positions: widths of heads, positions, and whether there are logits."""
    settings.setdefault("output_bias", settings["qkv_bias"])
    settings["num_kv_heads"] = settings["num_kv_heads"] or settings["num_heads"]
    settings["d_k"] = settings["d_k"] or config_json.head_width(settings, file.where)
    if settings["tie_word_embeddings"] and file.names is not None:
        settings["outputs"] = ("logits",)
    if "ropes" not in settings:
        rope = rope_parameters.read(file.config, file.where, 10000.0, settings["max_position_embeddings"])
        settings["ropes"] = (rope,) * settings["num_layers"]


def _settle_windows(settings: dict[str, Any], file: File) -> None:
    """Complete the settings with windows: of all layers of Mistral, and of the layers of Qwen that layer_types lists."""
    settle(settings, file)
    config, where, window, first = file.config, file.where, None, 0
    is_mistral = settings["model_type"] == "mistral"
    if is_mistral or config.get("use_sliding_window"):
        window = config_json.setting(config, where, "sliding_window", ModelSize | None, 4096)
    if not is_mistral:
        first = config_json.setting(config, where, "max_window_layers", ModelCount | None, 28)
    default = [GLOBAL if window is None or n < (first or 0) else LOCAL for n in range(settings["num_layers"])]
    types = read_layer_types(None if is_mistral else config.get("layer_types"), where, default)
    settings.setdefault("windows", config_json.windows_of(types, window, where))


def _settle_eurobert(settings: dict[str, Any], file: File) -> None:
    settle(settings, file)
    settings["lm_head_bias"] = settings["feed_forward_bias"]


DECODER = {"Model": (), "ForCausalLM": ("logits",)}
LLAMA = Family(
    keys=_KEYS,
    fixed={"is_causal": True, "norm": "pre", "norm_type": "rms", "gated": True},
    extra=("ropes", "windows"),
    outputs=("logits",),
    only={"is_causal": (True,), "is_decoder": (False, True), "use_bidirectional_attention": (False, None)},
    names=NAMES,
    prefix="model.",
    logits=("lm_head", "lm_head.bias"),
    architectures=classes("Llama", DECODER),
    unread={"layers.{n}.self_attn.rotary_emb.inv_freq": "a buffer of transformers before 4.32"},
    settle=settle,
)  # fmt: skip
_NO_BIAS = {"qkv_bias": False, "feed_forward_bias": False}
FAMILIES = {
    "eurobert": replace(
        LLAMA, keys=_EUROBERT_KEYS, fixed=LLAMA.fixed | {"is_causal": False}, settle=_settle_eurobert,
        architectures=classes("EuroBert", {"Model": (), "ForMaskedLM": ("logits",)}),
    ),
    "llama": LLAMA,
    "mistral": replace(
        LLAMA, keys=_MISTRAL_KEYS, fixed=LLAMA.fixed | _NO_BIAS, architectures=classes("Mistral", DECODER), tokenizer="TokenizersBackend",
        settle=_settle_windows,
    ),
    "qwen2": replace(
        LLAMA, keys=_QWEN2_KEYS, fixed=LLAMA.fixed | {"qkv_bias": True, "output_bias": False, "feed_forward_bias": False},
        architectures=classes("Qwen2", DECODER), tokenizer="Qwen2Tokenizer", forces_tokenizer=True, settle=_settle_windows,
    ),
    "qwen3": replace(
        LLAMA, keys=_QWEN3_KEYS, fixed=LLAMA.fixed | {"qk_norm": True, "feed_forward_bias": False},
        architectures=classes("Qwen3", DECODER), tokenizer="Qwen2Tokenizer", settle=_settle_windows,
    ),
}  # fmt: skip
