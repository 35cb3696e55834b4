"""Checkpoints of BERT and related models: the keys of config.json and the names of weights, by model type, as in transformers.

To add a model type: its keys in KEYS, its names in NAMES, and a line in checkpoints/load_save.py.
"""

from typing import Annotated, Any

from annotated_types import Ge, Le

from uwaga._base.options import FractionBelow1, Integer, Words
from uwaga.models.bert.family import Tables
from uwaga.models.bert.names import ARCHITECTURES, BERT_LAYERS, EMBEDDINGS, POOLER, POSITIONS, TOKENS, TYPES, Names
from uwaga.models.checkpoints.config_json import Key
from uwaga.models.checkpoints.tables import WeightMapping, pair


def _of_mpnet(value: int) -> Any:
    words = f"{value} (MPNet of transformers takes {value} for it, whatever the file says: positions of another model have other rows)"
    return Annotated[Integer, Ge(value), Le(value), Words(words)]


COMMON_KEYS = {
    "vocab_size": Key("vocab_size", 30522),
    "max_position_embeddings": Key("max_position_embeddings", 512),
    "pad_token_id": Key("pad_token_id", 0),
    "tie_word_embeddings": Key("tie_word_embeddings", True),
}
BERT_KEYS = COMMON_KEYS | {
    "hidden_size": Key("d_model", 768),
    "num_hidden_layers": Key("num_layers", 12),
    "num_attention_heads": Key("num_heads", 12),
    "intermediate_size": Key("d_ff", 3072),
    "type_vocab_size": Key("type_vocab_size", 2),
    "hidden_act": Key("activation", "gelu"),
    "layer_norm_eps": Key("norm_eps", 1e-12),
    "hidden_dropout_prob": Key("dropout", 0.1),
    "attention_probs_dropout_prob": Key("attention_dropout", 0.1),
    "classifier_dropout": Key("classifier_dropout", None),
}
_XLM_ROBERTA = BERT_KEYS | {"pad_token_id": Key("pad_token_id", 1)}
_ROBERTA = _XLM_ROBERTA | {"vocab_size": Key("vocab_size", 50265)}
_DISTILBERT = COMMON_KEYS | {
    "dim": Key("d_model", 768),
    "n_layers": Key("num_layers", 6),
    "n_heads": Key("num_heads", 12),
    "hidden_dim": Key("d_ff", 3072),
    "activation": Key("activation", "gelu"),
    "dropout": Key("dropout", 0.1),
    "attention_dropout": Key("attention_dropout", 0.1),
    "seq_classif_dropout": Key("classifier_dropout", 0.2, FractionBelow1 | None),
}
_MPNET = {name: key for name, key in BERT_KEYS.items() if name not in ("type_vocab_size", "classifier_dropout")} | {
    "vocab_size": Key("vocab_size", 30527),
    "pad_token_id": Key("pad_token_id", 1, _of_mpnet(1)),
    "relative_attention_num_buckets": Key("num_buckets", 32, _of_mpnet(32)),
}
# By model type.
KEYS = {
    "bert": BERT_KEYS,
    "camembert": _XLM_ROBERTA,
    "distilbert": _DISTILBERT,
    "mpnet": _MPNET,
    "roberta": _ROBERTA,
    "xlm-roberta": _XLM_ROBERTA,
}
# DistilBERT's initialisation of positions, and settings of heads that are not implemented.
_HARMLESS = ("sinusoidal_pos_embds", "qa_dropout", "tie_weights_")


_BERT_ROWS = (*EMBEDDINGS, POSITIONS, TYPES, *BERT_LAYERS)
_DISTILBERT_ROWS = (
    *EMBEDDINGS,
    POSITIONS,
    *pair("transformer.layer.{n}.attention.q_lin", "encoder.layers.{n}.attention.query"),
    *pair("transformer.layer.{n}.attention.k_lin", "encoder.layers.{n}.attention.key"),
    *pair("transformer.layer.{n}.attention.v_lin", "encoder.layers.{n}.attention.value"),
    *pair("transformer.layer.{n}.attention.out_lin", "encoder.layers.{n}.attention.output"),
    *pair("transformer.layer.{n}.sa_layer_norm", "encoder.layers.{n}.attention_norm"),
    *pair("transformer.layer.{n}.ffn.lin1", "encoder.layers.{n}.feed_forward.up"),
    *pair("transformer.layer.{n}.ffn.lin2", "encoder.layers.{n}.feed_forward.down"),
    *pair("transformer.layer.{n}.output_layer_norm", "encoder.layers.{n}.feed_forward_norm"),
)
_MPNET_ROWS = (
    *EMBEDDINGS,
    POSITIONS,
    WeightMapping("encoder.relative_attention_bias.weight", "relative_positions.weight"),
    *pair("encoder.layer.{n}.attention.attn.q", "encoder.layers.{n}.attention.query"),
    *pair("encoder.layer.{n}.attention.attn.k", "encoder.layers.{n}.attention.key"),
    *pair("encoder.layer.{n}.attention.attn.v", "encoder.layers.{n}.attention.value"),
    *pair("encoder.layer.{n}.attention.attn.o", "encoder.layers.{n}.attention.output"),
    *pair("encoder.layer.{n}.attention.LayerNorm", "encoder.layers.{n}.attention_norm"),
    *pair("encoder.layer.{n}.intermediate.dense", "encoder.layers.{n}.feed_forward.up"),
    *pair("encoder.layer.{n}.output.dense", "encoder.layers.{n}.feed_forward.down"),
    *pair("encoder.layer.{n}.output.LayerNorm", "encoder.layers.{n}.feed_forward_norm"),
)


def _roberta(stem: str, prefix: str = "roberta.", body: tuple[WeightMapping, ...] = _BERT_ROWS) -> Names:
    return Names(
        stem=stem,
        prefix=prefix,
        body=lambda _: body,
        heads={
            "pooled": POOLER,
            "masked_lm": (*pair("lm_head.dense", "masked_lm.dense"), *pair("lm_head.layer_norm", "masked_lm.norm")),
            "sequence": (
                *pair("classifier.dense", "sequence.dense"),
                *pair("classifier.out_proj", "sequence.output"),
            ),
            "tokens": TOKENS,
        },
        decoder="lm_head.decoder",
        decoder_bias="lm_head.bias",
        architectures=ARCHITECTURES,
    )


NAMES = {
    "bert": Names(
        stem="Bert",
        prefix="bert.",
        body=lambda _: _BERT_ROWS,
        heads={
            "pooled": POOLER,
            "masked_lm": (
                *pair("cls.predictions.transform.dense", "masked_lm.dense"),
                *pair("cls.predictions.transform.LayerNorm", "masked_lm.norm"),
            ),
            "next_sentence": pair("cls.seq_relationship", "next_sentence"),
            "sequence": pair("classifier", "sequence.output"),
            "tokens": TOKENS,
        },
        decoder="cls.predictions.decoder",
        decoder_bias="cls.predictions.bias",
        architectures=ARCHITECTURES
        | {
            "ForPreTraining": ("pooled", "masked_lm", "next_sentence"),
            "ForNextSentencePrediction": ("pooled", "next_sentence"),
            "ForSequenceClassification": ("pooled", "sequence"),
        },
    ),
    "distilbert": Names(
        stem="DistilBert",
        prefix="distilbert.",
        body=lambda _: _DISTILBERT_ROWS,
        heads={
            "masked_lm": (*pair("vocab_transform", "masked_lm.dense"), *pair("vocab_layer_norm", "masked_lm.norm")),
            "sequence": (*pair("pre_classifier", "sequence.dense"), *pair("classifier", "sequence.output")),
            "tokens": TOKENS,
        },
        decoder="vocab_projector",
        decoder_bias="vocab_projector.bias",
        architectures=ARCHITECTURES,
    ),
    "roberta": _roberta("Roberta"),
    "xlm-roberta": _roberta("XLMRoberta"),
    "camembert": _roberta("Camembert"),
    "mpnet": _roberta("MPNet", "mpnet.", _MPNET_ROWS),
}


FAMILY = Tables(keys=KEYS, names=NAMES, harmless=_HARMLESS).family()
