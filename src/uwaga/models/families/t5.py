"""T5 (Raffel et al., "Exploring the Limits of Transfer Learning", 2020), version 1.1 (gated; Shazeer 2020) and mT5.

Scores are not scaled; all layers of a stack share one relative position bias; norms are RMSNorm; cross-attention has no position bias.
T5 1.1 has an untied head, and does not scale the hidden states before it; transformers 4 writes tie_word_embeddings=false for
both. transformers 5 writes scale_decoder_outputs for the scaling; whether the head is tied follows from the weights.
"""

from dataclasses import replace
from typing import Any, Literal, get_args

from torch import Generator, Tensor
from torch.nn import init

from uwaga.models.checkpoints.config_json import Activation, Key, SomeLayers, keys, write_activation
from uwaga.models.configuration import Config
from uwaga.models.families.family import Draw, Family, File, classes, layers

# feed_forward_proj -> activation, gated. "gated-gelu" is the tanh approximation in transformers, as in version 1.1. Of two
# names with one meaning the first is written.
_PLAIN = {write_activation(ours): (ours, False) for ours in get_args(Activation)}
_PROJECTIONS = {**_PLAIN, "gated-gelu": ("gelu_tanh", True)}
_PROJECTIONS |= {f"gated-{theirs}": (ours, True) for theirs, (ours, _) in _PLAIN.items() if ours != "gelu"}
_Projection: Any = Literal[tuple(_PROJECTIONS)]
_KEYS = keys(
    vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_decoder_layers=Key("num_decoder_layers", None, SomeLayers | None),
    num_heads=8, relative_attention_num_buckets=32, relative_attention_max_distance=128,
    feed_forward_proj=Key("feed_forward_proj", "relu", _Projection), layer_norm_epsilon=1e-6, dropout_rate=0.1, tie_word_embeddings=True,
    scale_decoder_outputs=None, eos_token_id=1, pad_token_id=0, decoder_start_token_id=None,
)  # fmt: skip
_HEAD = "lm_head.weight"
_WORDS = tuple(f"{name}.weight" for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"))
_DROPOUTS = ("attention_dropout", "activation_dropout", "embedding_dropout", "final_dropout")


def _settle(settings: dict[str, Any], file: File) -> None:
    activation, is_gated = _PROJECTIONS[settings.pop("feed_forward_proj")]
    for name, value in {
        "activation": activation,
        "gated": is_gated,
        **dict.fromkeys(_DROPOUTS, settings["dropout"]),
    }.items():
        settings.setdefault(name, value)
    if settings["decoder_start_token_id"] is None:
        settings["decoder_start_token_id"] = settings["pad_token_id"] or 0
    if settings["num_decoder_layers"] is None:
        settings["num_decoder_layers"] = settings["num_layers"]
    if settings["scale_decoder_outputs"] is None:
        settings["scale_decoder_outputs"] = settings["tie_word_embeddings"] and settings["model_type"] == "t5"
    if file.names is not None:
        if file.names and not any(name.startswith("decoder.") for name in file.names):
            settings["num_decoder_layers"] = 0
        is_tied = settings["tie_word_embeddings"] and settings["scale_decoder_outputs"]
        settings["tie_word_embeddings"] = is_tied or not file.has(_HEAD) or not any(map(file.has, _WORDS))
    if not settings["num_decoder_layers"]:
        settings["outputs"] = ()
    elif file.names is not None:
        settings["outputs"] = ("logits",)


def _write(config: Config) -> dict[str, object]:
    shape = config.activation, config.gated
    return {
        "is_encoder_decoder": config.has_both,
        "num_decoder_layers": config.num_decoder_layers or config.num_layers,
        "feed_forward_proj": next((name for name, ours in _PROJECTIONS.items() if ours == shape), None),
    }


def _names(config: Config) -> dict[str, str]:
    names = {"shared": "embeddings.token_embedding"}
    parts = {"q": "query", "k": "key", "v": "value", "o": "output"}
    for stack, last in (("encoder", 1), ("decoder", 2)):
        names |= layers(f"{stack}.block.{{n}}.layer", f"{stack}.layers.{{n}}", {
            **{f"0.SelfAttention.{short}": f"attention.{part}" for short, part in parts.items()},
            "0.layer_norm": "attention_norm",
            **{f"1.EncDecAttention.{short}": f"cross_attention.{part}" for short, part in parts.items() if last == 2},
            f"{last}.DenseReluDense.wi_0": "feed_forward.gate",
            f"{last}.DenseReluDense.{'wi_1' if config.gated else 'wi'}": "feed_forward.up",
            f"{last}.DenseReluDense.wo": "feed_forward.down",
            f"{last}.layer_norm": "feed_forward_norm",
        })  # fmt: skip
        names[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"] = f"{stack}.positions"
        names[f"{stack}.final_layer_norm"] = f"{stack}.norm"
    return names | {"decoder.block.{n}.layer.1.layer_norm": "decoder.layers.{n}.cross_attention_norm"}


def _initial(config: Config) -> Draw:
    """Draw as the authors' code, by the width of a map's input. Scores are not divided by the root of D, so queries are."""
    read, width = config.d_model**-0.5, config.head_width
    deviations: dict[str, float] = {
        "token_embedding": 1.0,
        "query": read * width**-0.5,
        "output": (config.num_heads * width) ** -0.5,
        "down": config.d_ff**-0.5,
    }

    def draw(name: str, weight: Tensor, generator: Generator) -> None:
        init.normal_(weight, std=deviations.get(name.split(".")[-2], read), generator=generator)

    return draw


_T5 = Family(
    keys=_KEYS,
    fixed={
        "norm": "pre", "norm_type": "rms", "qkv_bias": False, "output_bias": False, "feed_forward_bias": False, "scale": 1.0,
    },
    extra=("activation", "gated"),
    outputs=("logits",),
    only={"is_causal": (True,), "is_encoder_decoder": (True, False)},
    names=_names,
    logits=("lm_head", "lm_head.bias"),
    architectures=classes("T5", {"EncoderModel": (), "ForConditionalGeneration": ("logits",)}),
    tokenizer="T5Tokenizer",
    any_class=True,
    tied=dict.fromkeys(_WORDS[1:], _WORDS[0]),
    unread={
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "cross-attention has no position bias; the first "
        "converted checkpoints have one, which Mesh TensorFlow did not use",
    },
    dropped=("dense_act_fn",),
    settle=_settle,
    write=_write,
    initial=_initial,
)  # fmt: skip
FAMILIES = {
    "t5": _T5,
    "mt5": replace(
        _T5,
        keys=_KEYS | keys(
            vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj=Key("feed_forward_proj", "gated-gelu", _Projection),
        ),
        architectures=classes("MT5", {"EncoderModel": (), "ForConditionalGeneration": ("logits",)}),
    ),
}  # fmt: skip
