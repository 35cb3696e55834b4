"""Checkpoints of the original Transformer: Marian (Junczys-Dowmunt et al. 2018) as in transformers, and our own.

A model that transformers does not have is saved under Marian's names of weights; config.json then has our model_type and keys.
"""

from collections.abc import Mapping, Set
from dataclasses import fields
from typing import Any

from uwaga._base.errors import CheckpointError
from uwaga._base.options import field_rules
from uwaga.models.checkpoints import config_json
from uwaga.models.checkpoints.config_json import Key, ModelSize
from uwaga.models.checkpoints.tables import Family, Table, WeightLayout, WeightMapping, pair
from uwaga.models.transformer.config import TransformerConfig
from uwaga.models.transformer.model import Transformer

_KEYS = {
    "vocab_size": Key("vocab_size", 58101),
    "decoder_vocab_size": Key("decoder_vocab_size", None),
    "d_model": Key("d_model", 1024),
    "encoder_layers": Key("num_layers", 12, ModelSize),
    "decoder_layers": Key("num_decoder_layers", 12, ModelSize),
    "encoder_attention_heads": Key("num_heads", 16),
    "decoder_attention_heads": Key("num_decoder_heads", 16, ModelSize),
    "encoder_ffn_dim": Key("d_ff", 4096),
    "decoder_ffn_dim": Key("decoder_d_ff", 4096, ModelSize),
    "activation_function": Key("activation", "gelu"),
    "scale_embedding": Key("scale_embedding", False),
    "dropout": Key("dropout", 0.1),
    "attention_dropout": Key("attention_dropout", 0.0),
    "activation_dropout": Key("activation_dropout", 0.0),
    "eos_token_id": Key("eos_token_ids", 0),
    "pad_token_id": Key("pad_token_id", 58100),
    "decoder_start_token_id": Key("decoder_start_token_id", 58100),
}
# Keys that change what is computed, and their only supported values. The first five are of models related to Marian.
_ONLY: dict[str, tuple[object, ...]] = {
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "add_final_layer_norm": (False,),
    "static_position_embeddings": (True,),
    "extra_pos_embeddings": (0,),
    "tie_word_embeddings": (True,),
    "is_causal": (True,),
    "is_decoder": (False,),
    "is_encoder_decoder": (True,),
}
# The length of the position table, initialisation, training, and defaults of generation.
_HARMLESS = [
    "max_position_embeddings",
    "num_hidden_layers",
    "init_std",
    "encoder_layerdrop",
    "decoder_layerdrop",
    "add_bias_logits",
    "classif_dropout",
    "classifier_dropout",
    "share_encoder_decoder_embeddings",
    "forced_eos_token_id",
    "bad_words_ids",
    "num_beams",
]
# The keys of a model that is not Marian: the names of the fields of TransformerConfig.
_FIELDS = {each.name: each for each in fields(TransformerConfig) if each.name not in ("eos_token_ids", "kept")}
_OWN = {name: Key(name, each.default, field_rules(TransformerConfig)[name]) for name, each in _FIELDS.items()}
_OWN |= {"eos_token_ids": Key("eos_token_ids", 0)}

_HEAD, _SHARED = "lm_head.weight", "model.shared.weight"
_WORDS = {stack: f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")}
_UNREAD = {f"model.{stack}.embed_positions.weight": "sinusoidal positions are computed" for stack in _WORDS}
_ROW = WeightLayout(read=lambda x: (x[0],), write=lambda parts: parts[0][None])


def read_config(config: Mapping[str, Any], where: str, names: Set[str]) -> TransformerConfig:
    """The configuration from a config.json."""
    try:
        return _read_marian(config, where) if config["model_type"] == "marian" else _read_own(config, where)
    except ValueError as error:
        raise error if isinstance(error, CheckpointError) else CheckpointError(f"{where}: {error}") from error


def _read_marian(config: Mapping[str, Any], where: str) -> TransformerConfig:
    read = config_json.read(config, where, of=TransformerConfig, keys=_KEYS, only=_ONLY, harmless=_HARMLESS)
    given = read.settings
    is_shared = config.get("share_encoder_decoder_embeddings", True)
    given["decoder_vocab_size"] = None if is_shared else given["decoder_vocab_size"] or given["vocab_size"]
    return TransformerConfig(sinusoid_layout="halves", lm_head_bias=True, kept=read.kept, **given)


def _read_own(config: Mapping[str, Any], where: str) -> TransformerConfig:
    read = config_json.read(config, where, of=TransformerConfig, keys=_OWN, only={})
    return TransformerConfig(kept=read.kept, **read.settings)


def write_config(config: TransformerConfig) -> dict[str, object]:
    """config.json as transformers reads it, or with our own keys; unknown keys that were read are written unchanged."""
    written = {name: value for name, value in config.kept.items() if name != "torch_dtype"}
    written["model_type"] = config.model_type
    if config.model_type != "marian":
        return written | config_json.written(config, _OWN) | {"architectures": ["Transformer"]}
    written |= config_json.written(config, _KEYS)
    return written | {
        "architectures": ["MarianMTModel"],
        "decoder_vocab_size": config.output_vocab_size,
        "decoder_attention_heads": config.num_decoder_heads or config.num_heads,
        "decoder_ffn_dim": config.decoder_d_ff or config.d_ff,
        "share_encoder_decoder_embeddings": config.decoder_vocab_size is None,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
    }


def _attention(theirs: str, ours: str) -> tuple[WeightMapping, ...]:
    parts = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
    return tuple(row for part, name in parts.items() for row in pair(f"{theirs}.{part}", f"{ours}.{name}"))


def _stack(stack: str, counter: str, *, crosses: bool, has_norm: bool) -> tuple[WeightMapping, ...]:
    theirs, ours = f"model.{stack}.layers.{{{counter}}}", f"{stack}.layers.{{{counter}}}"
    cross = (
        *_attention(f"{theirs}.encoder_attn", f"{ours}.cross_attention"),
        *pair(f"{theirs}.encoder_attn_layer_norm", f"{ours}.cross_attention_norm"),
    )
    return (
        *_attention(f"{theirs}.self_attn", f"{ours}.attention"),
        *pair(f"{theirs}.self_attn_layer_norm", f"{ours}.attention_norm"),
        *(cross if crosses else ()),
        *pair(f"{theirs}.fc1", f"{ours}.feed_forward.up"),
        *pair(f"{theirs}.fc2", f"{ours}.feed_forward.down"),
        *pair(f"{theirs}.final_layer_norm", f"{ours}.feed_forward_norm"),
        *(pair(f"model.{stack}.layer_norm", f"{stack}.norm") if has_norm else ()),
    )


def _table(config: TransformerConfig) -> Table:
    is_shared, has_encoder, has_decoder = (
        config.decoder_vocab_size is None,
        config.num_layers > 0,
        config.num_decoder_layers > 0,
    )
    is_pre = config.norm == "pre"
    words: tuple[WeightMapping, ...] = (
        WeightMapping(_SHARED if is_shared else _WORDS["encoder"], "token_embedding.weight"),
    )
    if not is_shared:
        words += (WeightMapping(_WORDS["decoder"], "decoder_token_embedding.weight"),)
    body = words + (_stack("encoder", "n", crosses=False, has_norm=is_pre) if has_encoder else ())
    tied = dict.fromkeys(_WORDS.values(), _SHARED) if is_shared else {}
    if has_decoder:
        body += _stack("decoder", "m", crosses=has_encoder, has_norm=is_pre)
        body += (WeightMapping("final_logits_bias", "lm_head_bias", layout=_ROW),) if config.lm_head_bias else ()
        if not config.tie_word_embeddings:
            body += (WeightMapping(_HEAD, "lm_head.weight"),)
        else:
            tied[_HEAD] = _SHARED if is_shared else _WORDS["decoder"]
    counts = {"n": config.num_layers, "m": config.num_decoder_layers}
    return Table(body=body, counts=counts, tied=tied, unread=_UNREAD)


FAMILY = Family(read_config=read_config, write_config=write_config, table=_table, build=Transformer)
