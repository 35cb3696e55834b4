"""The encoder ModernBERT (Warner et al., "Smarter, Better, Faster, Longer", 2024), whose layers see all tokens or a window on both sides."""

from typing import Annotated, Any

from annotated_types import Ge

from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import config_json, rope_parameters
from uwaga.models.checkpoints.config_json import GLOBAL, LAYER_TYPES, LOCAL, ModelSize, keys, read_layer_types
from uwaga.models.families.family import Family, File, layers

_KEYS = keys(
    vocab_size=50368, hidden_size=768, intermediate_size=1152, num_hidden_layers=22, num_attention_heads=12, hidden_activation="gelu",
    max_position_embeddings=8192, norm_eps=1e-5, norm_bias=False, attention_bias=False, mlp_bias=False, embedding_dropout=0.0,
    mlp_dropout=0.0, tie_word_embeddings=True, pad_token_id=50283, classifier_activation="gelu", classifier_bias=False, decoder_bias=True,
)  # fmt: skip
_BASES = {GLOBAL: ("global_rope_theta", 160000.0), LOCAL: ("local_rope_theta", 10000.0)}


def _settle(settings: dict[str, Any], file: File) -> None:
    config, where = file.config, file.where
    if file.names is not None:
        settings["outputs"] = ("logits",) if file.has("head.dense.weight") else ()
        settings["tie_word_embeddings"] |= not settings["outputs"]
    settings.setdefault("output_bias", settings["qkv_bias"])
    settings["d_k"] = config_json.head_width(settings, where)
    # transformers reads it for rotary positions only, and fails.
    if config.get("head_dim") not in (None, settings["d_k"]):
        shown = printable(repr(config["head_dim"]))
        rule = f"head_dim must be {settings['d_k']}, hidden_size / num_attention_heads, not {shown}; remove it"
        raise CheckpointError(f"{where}: {rule}")
    every = config_json.setting(config, where, "global_attn_every_n_layers", ModelSize, 3)
    span = config_json.setting(config, where, "local_attention", Annotated[ModelSize, Ge(2)], 128)
    # In transformers it sets local_attention.
    side = config_json.setting(config, where, "sliding_window", ModelSize, span // 2)
    default = [LOCAL if n % every else GLOBAL for n in range(settings["num_layers"])]
    types = read_layer_types(config.get("layer_types"), where, default)
    length = settings["max_position_embeddings"]
    ropes = rope_parameters.read_by_layer_type(config, where, length, _BASES, scaled=LAYER_TYPES)
    settings.setdefault("windows", config_json.windows_of(types, side, where))
    settings.setdefault("ropes", tuple(ropes[kind] for kind in types))


_MODERNBERT = Family(
    keys=_KEYS,
    fixed={"norm": "pre", "gated": True, "embedding_norm": True, "first_norm": False},
    extra=("ropes", "windows"),
    outputs=("logits",),
    only={"attention_dropout": (0.0,)},  # of the output of attention too, in training
    names={
        "embeddings.tok_embeddings": "embeddings.token_embedding",
        "embeddings.norm": "embeddings.norm",
        **layers("layers.{n}", "encoder.layers.{n}", {
            "attn_norm": "attention_norm",
            "attn.Wqkv": "attention.(query|key|value)",
            "attn.Wo": "attention.output",
            "mlp_norm": "feed_forward_norm",
            "mlp.Wi": "feed_forward.(gate|up)",
            "mlp.Wo": "feed_forward.down",
        }),
        "final_norm": "encoder.norm",
        "head.dense": "lm_head.dense",
        "head.norm": "lm_head.norm",
    },
    prefix="model.",
    logits=("decoder", "decoder.bias"),
    architectures={"ModernBertModel": (), "ModernBertForMaskedLM": ("logits",)},
    tokenizer="TokenizersBackend",
    forces_tokenizer=True,
    settle=_settle,
)  # fmt: skip
FAMILIES = {"modernbert": _MODERNBERT}
