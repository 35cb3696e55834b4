"""Checkpoints of GPT-2: the keys of config.json and the names of weights, as in transformers.

The weights of linear layers are stored transposed; query, key and value of a layer are one weight.
"""

from collections.abc import Mapping, Set
from typing import Any

from uwaga.models.checkpoints import config_json
from uwaga.models.checkpoints.config_json import Key, ModelSize
from uwaga.models.checkpoints.tables import TRANSPOSED, Family, Table, WeightMapping, pair, stacked, stacked_transposed
from uwaga.models.gpt2.config import GPT2Config
from uwaga.models.gpt2.model import GPT2Model

_KEYS = {
    "vocab_size": Key("vocab_size", 50257),
    "n_positions": Key("max_position_embeddings", 1024),
    "n_embd": Key("d_model", 768),
    "n_layer": Key("num_layers", 12),
    "n_head": Key("num_heads", 12),
    "n_inner": Key("d_ff", None),
    "activation_function": Key("activation", "gelu_new"),
    "layer_norm_epsilon": Key("norm_eps", 1e-5),
    "resid_pdrop": Key("dropout", 0.1),
    "embd_pdrop": Key("embedding_dropout", 0.1),
    "attn_pdrop": Key("attention_dropout", 0.1),
    "scale_attn_weights": Key("scale_attn_weights", True),
    "scale_attn_by_inverse_layer_idx": Key("scale_attn_by_inverse_layer_idx", False),
    "tie_word_embeddings": Key("tie_word_embeddings", True),
    "eos_token_id": Key("eos_token_ids", 50256),
    "pad_token_id": Key("pad_token_id", None),
}
_BANDED = _KEYS | {"uwaga_band": Key("band", 128, ModelSize)}
# Keys that change what is computed, and their only supported values.
_ONLY: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
}
# Of a head that is not implemented; of the precision of scores, which is float32 here; and n_positions by its old name.
_HARMLESS = (
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
    "reorder_and_upcast_attn",
    "n_ctx",
)

_HEAD, _WORDS = "lm_head.weight", "wte.weight"
_BODY = (
    WeightMapping(_WORDS, "token_embedding.weight"),
    WeightMapping("wpe.weight", "positions.weight"),
    *pair("h.{n}.ln_1", "layers.{n}.attention_norm"),
    WeightMapping(
        "h.{n}.attn.c_attn.weight",
        *(f"layers.{{n}}.attention.{part}.weight" for part in ("query", "key", "value")),
        layout=stacked_transposed(3),
    ),
    WeightMapping(
        "h.{n}.attn.c_attn.bias",
        *(f"layers.{{n}}.attention.{part}.bias" for part in ("query", "key", "value")),
        layout=stacked(3),
    ),
    WeightMapping("h.{n}.attn.c_proj.weight", "layers.{n}.attention.output.weight", layout=TRANSPOSED),
    WeightMapping("h.{n}.attn.c_proj.bias", "layers.{n}.attention.output.bias"),
    *pair("h.{n}.ln_2", "layers.{n}.feed_forward_norm"),
    WeightMapping("h.{n}.mlp.c_fc.weight", "layers.{n}.feed_forward.up.weight", layout=TRANSPOSED),
    WeightMapping("h.{n}.mlp.c_fc.bias", "layers.{n}.feed_forward.up.bias"),
    WeightMapping("h.{n}.mlp.c_proj.weight", "layers.{n}.feed_forward.down.weight", layout=TRANSPOSED),
    WeightMapping("h.{n}.mlp.c_proj.bias", "layers.{n}.feed_forward.down.bias"),
    *pair("ln_f", "norm"),
)
# Names in old files that are not read, and why.
_UNREAD = {
    "h.{n}.attn.bias": "the causal mask; a buffer of transformers before 4.34",
    "h.{n}.attn.masked_bias": "the score of a masked key; a buffer of transformers before 4.34",
}


def read_config(config: Mapping[str, Any], where: str, names: Set[str]) -> GPT2Config:
    """The configuration from a config.json; whether the model has a head of its own follows from the names of the weights."""
    keys = _KEYS if config["model_type"] == "gpt2" else _BANDED
    read = config_json.read(config, where, of=GPT2Config, keys=keys, only=_ONLY, harmless=_HARMLESS)
    given = read.settings
    given["d_ff"] = given["d_ff"] or 4 * given["d_model"]
    given["has_lm_head"] = given["tie_word_embeddings"] or _HEAD in names
    return config_json.make(GPT2Config, where, kept=read.kept, **given)


def write_config(config: GPT2Config) -> dict[str, object]:
    """config.json as transformers reads it; unknown keys that were read are written unchanged."""
    written = {name: value for name, value in config.kept.items() if name != "torch_dtype"}
    written |= config_json.written(config, _KEYS if config.band is None else _BANDED)
    return written | {
        "model_type": config.model_type,
        # transformers writes null for the default, 4 * n_embd.
        "n_inner": None if config.d_ff == 4 * config.d_model else config.d_ff,
        "architectures": ["GPT2LMHeadModel" if config.has_lm_head else "GPT2Model"],
        "tie_word_embeddings": config.tie_word_embeddings,
    }


def _table(config: GPT2Config) -> Table:
    return Table(
        body=_BODY,
        heads=(WeightMapping(_HEAD, "lm_head.weight"),)
        if config.has_lm_head and not config.tie_word_embeddings
        else (),
        prefix="transformer.",
        is_prefixed=config.has_lm_head,
        counts={"n": config.num_layers},
        tied={_HEAD: _WORDS} if config.tie_word_embeddings else {},
        unread={name.replace("{n}", str(n)): why for name, why in _UNREAD.items() for n in range(config.num_layers)},
    )


FAMILY = Family(read_config=read_config, write_config=write_config, table=_table, build=GPT2Model)
