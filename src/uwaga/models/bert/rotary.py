"""Checkpoints of GTE, NomicBERT and Jina v3, which are BERT with rotary positions: the keys of config.json and the names of weights.

Names are those of the authors' files, which transformers reads and writes too (its conversion_mapping.py).
"""

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.bert.checkpoint import BERT_KEYS
from uwaga.models.bert.config import BertConfig
from uwaga.models.bert.family import Tables
from uwaga.models.bert.names import ARCHITECTURES, POOLER, TOKENS, TYPES, WORDS, Names
from uwaga.models.checkpoints.config_json import Key, ModelSize
from uwaga.models.checkpoints.tables import WeightMapping, pair, stacked

_GTE = BERT_KEYS | {
    "vocab_size": Key("vocab_size", 250048),
    "head_dim": Key("d_k", None),
    "max_position_embeddings": Key("max_position_embeddings", 8192),
    "type_vocab_size": Key("type_vocab_size", 1),
    "pad_token_id": Key("pad_token_id", 1),
    "attention_probs_dropout_prob": Key("attention_dropout", 0.0),
}
_NOMIC = BERT_KEYS | {
    "vocab_size": Key("vocab_size", 30528),
    "head_dim": Key("d_k", None),
    "hidden_act": Key("activation", "silu"),
    "hidden_dropout_prob": Key("dropout", 0.0),
    "attention_probs_dropout_prob": Key("attention_dropout", 0.0),
    "max_position_embeddings": Key("max_position_embeddings", 2048),
    "type_vocab_size": Key("type_vocab_size", 2, ModelSize),
}
_JINA = BERT_KEYS | {
    "vocab_size": Key("vocab_size", 250002),
    "hidden_size": Key("d_model", 1024),
    "num_hidden_layers": Key("num_layers", 24),
    "num_attention_heads": Key("num_heads", 16),
    "head_dim": Key("d_k", None),
    "intermediate_size": Key("d_ff", 4096),
    "max_position_embeddings": Key("max_position_embeddings", 8194),
    "type_vocab_size": Key("type_vocab_size", 1, ModelSize),
    "layer_norm_eps": BERT_KEYS["layer_norm_eps"]._replace(default=1e-5),
    "pad_token_id": Key("pad_token_id", 1),
}
KEYS = {"gte": _GTE, "jina_embeddings_v3": _JINA, "nomic_bert": _NOMIC}
_BASES = {"gte": 160000.0, "jina_embeddings_v3": 20000.0, "nomic_bert": 1000.0}
# Keys of the authors' own code, whose other values change what it computes.
_ONLY: dict[str, tuple[object, ...]] = {
    "position_embedding_type": ("absolute", "rope", "rotary", None),
    "layer_norm_type": ("layer_norm", None),
    "logn_attention_scale": (False, None),
}
# transformers reads no size of a NomicBERT from the keys of its authors' code, and takes its defaults: those of v1.5, which say this.
_NOMIC_OWN: dict[str, tuple[object, ...]] = {
    "n_embd": (768,), "n_head": (12,), "n_inner": (3072,), "n_layer": (12,), "activation_function": ("swiglu",), "causal": (False,),
    "layer_norm_epsilon": (1e-12,), "prenorm": (False,), "parallel_block": (False,), "use_rms_norm": (False, None),
    "qkv_proj_bias": (False,), "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,), "rotary_emb_base": (1000,),
    "rotary_emb_fraction": (1.0,), "rotary_emb_interleaved": (False,), "rotary_emb_scale_base": (None,), "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
}  # fmt: skip
_OWN_CODE = "of the authors' own code; saved by a class of transformers 5, the model has the keys that are read here"
_EXPERTS = "a mixture of experts, which is not computed"


def read_config(config: Mapping[str, Any], where: str, names: Set[str]) -> BertConfig:
    """As of other families; a mixture of experts, and keys of the authors' code alone, are refused by name."""
    refused = {"num_experts": _EXPERTS, "moe_every_n_layers": _EXPERTS, "lora_adaptations": _OWN_CODE}
    if config["model_type"] == "nomic_bert" and "hidden_size" not in config:
        for name, values in _NOMIC_OWN.items():
            if config.get(name, values[0]) not in values:
                given = f"{name} is {printable(repr(config[name]))}, a key of the authors' own code"
                rule = f"transformers reads none of these and has the sizes of v1.5, where it is {values[0]!r}"
                raise CheckpointError(f"{where}: {given}; {rule}")
    for name, why in refused.items():
        if config.get(name):
            raise CheckpointError(f"{where}: {name} is {printable(repr(config[name]))}: {why}")
    return _TABLES.read_config(config, where, names)


def _qkv(theirs: str, *, bias: bool) -> list[WeightMapping]:
    names = [f"encoder.layers.{{n}}.attention.{name}" for name in ("query", "key", "value")]
    parts = ("weight", "bias")[: 1 + bias]
    return [WeightMapping(f"{theirs}.{x}", *(f"{name}.{x}" for name in names), layout=stacked(3)) for x in parts]


def _gte_rows(config: BertConfig) -> tuple[WeightMapping, ...]:
    there, here = "encoder.layer.{n}", "encoder.layers.{n}"
    return (
        WORDS,
        *pair("embeddings.LayerNorm", "embeddings.norm"),
        *((TYPES,) if config.type_vocab_size else ()),
        *_qkv(f"{there}.attention.qkv_proj", bias=True),
        *pair(f"{there}.attention.o_proj", f"{here}.attention.output"),
        *pair(f"{there}.attn_ln", f"{here}.attention_norm"),
        WeightMapping(
            f"{there}.mlp.up_gate_proj.weight",
            f"{here}.feed_forward.up.weight",
            f"{here}.feed_forward.gate.weight",
            layout=stacked(2),
        ),
        *pair(f"{there}.mlp.down_proj", f"{here}.feed_forward.down"),
        *pair(f"{there}.mlp_ln", f"{here}.feed_forward_norm"),
    )


def _flash_rows(attention: str, feed_forward: dict[str, str], *, bias: bool) -> tuple[WeightMapping, ...]:
    there, here = "encoder.layers.{n}", "encoder.layers.{n}"
    rows = [WORDS, *pair("emb_ln", "embeddings.norm"), TYPES, *_qkv(f"{there}.{attention}.Wqkv", bias=bias)]
    rows += pair(f"{there}.{attention}.out_proj", f"{here}.attention.output", bias=bias)
    for theirs, ours in feed_forward.items():
        rows += pair(f"{there}.mlp.{theirs}", f"{here}.feed_forward.{ours}", bias=bias)
    rows += pair(f"{there}.norm1", f"{here}.attention_norm")
    return (*rows, *pair(f"{there}.norm2", f"{here}.feed_forward_norm"))


_NOMIC_ROWS = _flash_rows("attn", {"fc11": "up", "fc12": "gate", "fc2": "down"}, bias=False)
_JINA_ROWS = _flash_rows("mixer", {"fc1": "up", "fc2": "down"}, bias=True)
_POOLED_CLASSIFIER = ARCHITECTURES | {"ForSequenceClassification": ("pooled", "sequence")}
NAMES = {
    "gte": Names(
        stem="Gte",
        prefix="gte.",
        old_prefixes=("new.",),
        body=_gte_rows,
        heads={
            "pooled": POOLER,
            "masked_lm": (*pair("lm_head.dense", "masked_lm.dense"), *pair("lm_head.norm", "masked_lm.norm")),
            "sequence": pair("classifier", "sequence.output"),
            "tokens": TOKENS,
        },
        decoder="lm_head.decoder",
        decoder_bias="lm_head.decoder.bias",
        architectures=_POOLED_CLASSIFIER,
    ),
    "nomic_bert": Names(
        stem="NomicBert",
        prefix="nomic_bert.",
        body=lambda _: _NOMIC_ROWS,
        heads={
            "pooled": POOLER,
            "masked_lm": (
                *pair("cls.predictions.transform.dense", "masked_lm.dense"),
                *pair("cls.predictions.transform.layer_norm", "masked_lm.norm"),
            ),
            "sequence": pair("classifier", "sequence.output"),
            "tokens": TOKENS,
        },
        decoder="cls.predictions.decoder",
        decoder_bias="cls.predictions.bias",
        architectures=_POOLED_CLASSIFIER,
    ),
    "jina_embeddings_v3": Names(
        stem="JinaEmbeddingsV3",
        prefix="roberta.",
        body=lambda _: _JINA_ROWS,
        heads={
            "pooled": POOLER,
            "masked_lm": (*pair("lm_head.dense", "masked_lm.dense"), *pair("lm_head.layer_norm", "masked_lm.norm")),
            "sequence": (*pair("classifier.dense", "sequence.dense"), *pair("classifier.out_proj", "sequence.output")),
            "tokens": TOKENS,
        },
        decoder="lm_head.decoder",
        decoder_bias="lm_head.bias",
        architectures=ARCHITECTURES,
    ),
}
_HARMLESS = {
    *_NOMIC_OWN, "attn_pdrop", "auto_map", "dense_seq_output", "embd_pdrop", "fused_bias_fc", "fused_dropout_add_ln", "last_layer_subset",
    "max_trained_positions", "n_positions", "pad_vocab_size_multiple", "reorder_and_upcast_attn", "resid_pdrop", "rotary_scaling_factor",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "use_flash_attn",
    "use_xentropy",
}  # fmt: skip
_TABLES = Tables(keys=KEYS, names=NAMES, rotary_bases=_BASES, only=_ONLY, harmless=_HARMLESS)
FAMILY = replace(_TABLES.family(), read_config=read_config)
