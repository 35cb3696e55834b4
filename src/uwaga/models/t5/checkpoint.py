"""Checkpoints of T5: the keys of config.json and the names of weights, as in transformers.

T5 1.1 has an untied head, and does not scale the hidden states before it; transformers 4 writes tie_word_embeddings=false for
both. transformers 5 writes scale_decoder_outputs for the scaling; whether the head is tied follows from the weights.
"""

from collections.abc import Mapping, Set
from typing import Any, Literal, get_args

from uwaga._base.errors import CheckpointError
from uwaga.models.checkpoints import config_json
from uwaga.models.checkpoints.config_json import Activation, Key, ModelSize, write_activation
from uwaga.models.checkpoints.tables import Family, Table, WeightMapping
from uwaga.models.t5.config import T5Config
from uwaga.models.t5.model import T5Model

# feed_forward_proj -> activation, gated. "gated-gelu" is the tanh approximation in transformers, as in version 1.1. Of two
# names with one meaning the first is written.
_PLAIN = {write_activation(ours): (ours, False) for ours in get_args(Activation)}
_PROJECTIONS = {**_PLAIN, "gated-gelu": ("gelu_tanh", True)}
_PROJECTIONS |= {f"gated-{theirs}": (ours, True) for theirs, (ours, _) in _PLAIN.items() if ours != "gelu"}

_Projection: Any = Literal[tuple(_PROJECTIONS)]

_KEYS = {
    "vocab_size": Key("vocab_size", 32128),
    "d_model": Key("d_model", 512),
    "d_kv": Key("d_kv", 64),
    "d_ff": Key("d_ff", 2048),
    "num_layers": Key("num_layers", 6),
    "num_decoder_layers": Key("num_decoder_layers", None, ModelSize | None),
    "num_heads": Key("num_heads", 8),
    "relative_attention_num_buckets": Key("num_buckets", 32),
    "relative_attention_max_distance": Key("max_distance", 128),
    "feed_forward_proj": Key("activation", "relu", _Projection),
    "layer_norm_epsilon": Key("norm_eps", 1e-6),
    "dropout_rate": Key("dropout", 0.1),
    "tie_word_embeddings": Key("tie_word_embeddings", True),
    "scale_decoder_outputs": Key("scale_decoder_outputs", None),
    "eos_token_id": Key("eos_token_ids", 1),
    "pad_token_id": Key("pad_token_id", 0),
    "decoder_start_token_id": Key("decoder_start_token_id", None),
}
_MT5 = _KEYS | {
    "vocab_size": Key("vocab_size", 250112),
    "d_ff": Key("d_ff", 1024),
    "num_layers": Key("num_layers", 8),
    "num_heads": Key("num_heads", 6),
    "feed_forward_proj": Key("activation", "gated-gelu", _Projection),
}
# Keys that change what is computed, and their only supported values.
_ONLY: dict[str, tuple[object, ...]] = {
    "is_causal": (True,),
    "is_decoder": (False,),
}
# Derived from feed_forward_proj, of heads that are not implemented, and the context length of pre-training.
_HARMLESS = ("dense_act_fn", "is_gated_act", "is_encoder_decoder", "classifier_dropout", "n_positions")

_HEAD, _WORDS = "lm_head.weight", "shared.weight"
_EMBEDDINGS = {stack: f"{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")}
_DECODER_POSITIONS = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
_UNREAD = {
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "cross-attention has no position bias; "
    "the first converted checkpoints have one, which Mesh TensorFlow did not use",
}


def read_config(config: Mapping[str, Any], where: str, names: Set[str]) -> T5Config:
    """The configuration from a config.json; whether there is a decoder and an untied head follows from the names of the weights."""
    model_type = config["model_type"]
    read = config_json.read(
        config, where, of=T5Config, keys=_KEYS if model_type == "t5" else _MT5, only=_ONLY, harmless=_HARMLESS
    )
    given = read.settings
    given["activation"], given["gated"] = _PROJECTIONS[given["activation"]]
    if given["decoder_start_token_id"] is None:
        given["decoder_start_token_id"] = given["pad_token_id"] or 0
    given["num_decoder_layers"] = given["num_decoder_layers"] or given["num_layers"]
    if names and not any(name.startswith("decoder.") for name in names):
        given["num_decoder_layers"] = 0
    is_tied = given["tie_word_embeddings"]
    if given["scale_decoder_outputs"] is None:
        given["scale_decoder_outputs"] = is_tied and model_type == "t5"
    has_embedding = bool(names & {_WORDS, *_EMBEDDINGS.values()})
    given["tie_word_embeddings"] = (
        _HEAD not in names or not has_embedding or (is_tied and given["scale_decoder_outputs"])
    )
    return config_json.make(T5Config, where, model_type=model_type, kept=read.kept, **given)


def write_config(config: T5Config) -> dict[str, object]:
    """config.json as transformers reads it; unknown keys that were read are written unchanged."""
    written = {name: value for name, value in config.kept.items() if name not in ("torch_dtype", "dense_act_fn")}
    written |= config_json.written(config, _KEYS)
    stem, has_decoder = {"t5": "T5", "mt5": "MT5"}[config.model_type], config.num_decoder_layers > 0
    return written | {
        "model_type": config.model_type,
        "architectures": [f"{stem}ForConditionalGeneration" if has_decoder else f"{stem}EncoderModel"],
        "is_encoder_decoder": has_decoder,
        "num_decoder_layers": config.num_decoder_layers or config.num_layers,
        "feed_forward_proj": _projection(config),
        "tie_word_embeddings": config.tie_word_embeddings,
    }


def _projection(config: T5Config) -> str:
    for theirs, ours in _PROJECTIONS.items():
        if ours == (config.activation, config.gated):
            return theirs
    raise CheckpointError(f"transformers has no T5 with the gated activation {config.activation}")


def _attention(theirs: str, ours: str) -> tuple[WeightMapping, ...]:
    parts = {"q": "query", "k": "key", "v": "value", "o": "output"}
    return tuple(WeightMapping(f"{theirs}.{short}.weight", f"{ours}.{part}.weight") for short, part in parts.items())


def _layer(theirs: str, ours: str, feed_forward: int, config: T5Config) -> tuple[WeightMapping, ...]:
    """The rows of a layer; feed_forward: the index of the feed-forward sublayer in it."""
    dense = f"{theirs}.{feed_forward}.DenseReluDense"
    gate = (WeightMapping(f"{dense}.wi_0.weight", f"{ours}.feed_forward.gate.weight"),) if config.gated else ()
    return (
        *_attention(f"{theirs}.0.SelfAttention", f"{ours}.attention"),
        WeightMapping(f"{theirs}.0.layer_norm.weight", f"{ours}.attention_norm.weight"),
        *gate,
        WeightMapping(f"{dense}.{'wi_1' if config.gated else 'wi'}.weight", f"{ours}.feed_forward.up.weight"),
        WeightMapping(f"{dense}.wo.weight", f"{ours}.feed_forward.down.weight"),
        WeightMapping(f"{theirs}.{feed_forward}.layer_norm.weight", f"{ours}.feed_forward_norm.weight"),
    )


def _encoder(config: T5Config) -> tuple[WeightMapping, ...]:
    return (
        WeightMapping(_WORDS, "token_embedding.weight"),
        WeightMapping(_DECODER_POSITIONS.replace("decoder", "encoder"), "encoder_positions.weight"),
        *_layer("encoder.block.{n}.layer", "encoder.layers.{n}", 1, config),
        WeightMapping("encoder.final_layer_norm.weight", "encoder.norm.weight"),
    )


def _decoder(config: T5Config) -> tuple[WeightMapping, ...]:
    theirs, ours = "decoder.block.{m}.layer", "decoder.layers.{m}"
    return (
        WeightMapping(_DECODER_POSITIONS, "decoder_positions.weight"),
        *_layer(theirs, ours, 2, config),
        *_attention(f"{theirs}.1.EncDecAttention", f"{ours}.cross_attention"),
        WeightMapping(f"{theirs}.1.layer_norm.weight", f"{ours}.cross_attention_norm.weight"),
        WeightMapping("decoder.final_layer_norm.weight", "decoder.norm.weight"),
        *((WeightMapping(_HEAD, "lm_head.weight"),) if not config.tie_word_embeddings else ()),
    )


def _table(config: T5Config) -> Table:
    has_decoder = config.num_decoder_layers > 0
    tied = {_EMBEDDINGS["encoder"]: _WORDS}
    if has_decoder:
        tied[_EMBEDDINGS["decoder"]] = _WORDS
    if has_decoder and config.tie_word_embeddings:
        tied[_HEAD] = _WORDS
    return Table(
        body=_encoder(config) + (_decoder(config) if has_decoder else ()),
        counts={"n": config.num_layers, "m": config.num_decoder_layers},
        tied=tied,
        unread=_UNREAD if has_decoder else {},
    )


FAMILY = Family(read_config=read_config, write_config=write_config, table=_table, build=T5Model)
