"""Checkpoints of ELECTRA and ALBERT, whose embeddings are narrower than the model: keys of config.json and names of weights.

ALBERT's layers share weights by groups (`BertConfig.layer_weights`).
"""

from uwaga.models.bert.checkpoint import BERT_KEYS, COMMON_KEYS
from uwaga.models.bert.config import BertConfig
from uwaga.models.bert.family import Tables
from uwaga.models.bert.names import ARCHITECTURES, BERT_LAYERS, EMBEDDINGS, POSITIONS, TOKENS, TYPES, Names
from uwaga.models.checkpoints.config_json import Key, ModelSize
from uwaga.models.checkpoints.tables import WeightMapping, pair, shared

_ELECTRA = BERT_KEYS | {
    "embedding_size": Key("embedding_size", 128, ModelSize),
    "hidden_size": Key("d_model", 256),
    "num_attention_heads": Key("num_heads", 4),
    "intermediate_size": Key("d_ff", 1024),
}
_ALBERT = COMMON_KEYS | {
    "vocab_size": Key("vocab_size", 30000),
    "embedding_size": Key("embedding_size", 128, ModelSize),
    "hidden_size": Key("d_model", 4096),
    "num_hidden_layers": Key("num_layers", 12, ModelSize),
    "num_hidden_groups": Key("num_hidden_groups", 1, ModelSize),
    "inner_group_num": Key("inner_group_num", 1),
    "num_attention_heads": Key("num_heads", 64),
    "intermediate_size": Key("d_ff", 16384),
    "type_vocab_size": Key("type_vocab_size", 2),
    "hidden_act": Key("activation", "gelu_new"),
    "layer_norm_eps": Key("norm_eps", 1e-12),
    "hidden_dropout_prob": Key("dropout", 0.0),
    "attention_probs_dropout_prob": Key("attention_dropout", 0.0),
    "classifier_dropout_prob": Key("classifier_dropout", 0.1),
}
# Of heads of ELECTRA that are not implemented, and of ALBERT's first code, which nothing reads.
_HARMLESS = (
    "summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout", "down_scale_factor", "gap_size",
    "layers_to_keep", "net_structure_type", "num_memory_blocks",
)  # fmt: skip
_ALBERT_LAYER = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.dense": "attention.output",
    "attention.LayerNorm": "attention_norm",
    "ffn": "feed_forward.up",
    "ffn_output": "feed_forward.down",
    "full_layer_layer_norm": "feed_forward_norm",
}


def _electra_rows(config: BertConfig) -> tuple[WeightMapping, ...]:
    projection = pair("embeddings_project", "embedding_projection") if config.projects_embeddings else ()
    return (*EMBEDDINGS, POSITIONS, TYPES, *projection, *BERT_LAYERS)


def _albert_rows(config: BertConfig) -> tuple[WeightMapping, ...]:
    rows = [*EMBEDDINGS, POSITIONS, TYPES, *pair("encoder.embedding_hidden_mapping_in", "embedding_projection")]
    for own in sorted(set(config.layer_weights)):
        group, inner = divmod(own, config.inner_group_num)
        layers = [n for n, weights in enumerate(config.layer_weights) if weights == own]
        for theirs, ours in _ALBERT_LAYER.items():
            for part in ("weight", "bias"):
                there = f"encoder.albert_layer_groups.{group}.albert_layers.{inner}.{theirs}.{part}"
                here = (f"encoder.layers.{n}.{ours}.{part}" for n in layers)
                rows.append(WeightMapping(there, *here, layout=shared(len(layers))))
    return tuple(rows)


NAMES = {
    "electra": Names(
        stem="Electra",
        prefix="electra.",
        body=_electra_rows,
        heads={
            "masked_lm": (
                *pair("generator_predictions.dense", "masked_lm.dense"),
                *pair("generator_predictions.LayerNorm", "masked_lm.norm"),
            ),
            "sequence": (*pair("classifier.dense", "sequence.dense"), *pair("classifier.out_proj", "sequence.output")),
            "tokens": TOKENS,
            "replaced": (
                *pair("discriminator_predictions.dense", "replaced.dense"),
                *pair("discriminator_predictions.dense_prediction", "replaced.output"),
            ),
        },
        decoder="generator_lm_head",
        decoder_bias="generator_lm_head.bias",
        architectures=ARCHITECTURES | {"ForPreTraining": ("replaced",)},
    ),
    "albert": Names(
        stem="Albert",
        prefix="albert.",
        body=_albert_rows,
        heads={
            "pooled": pair("pooler", "pooler.dense"),
            "masked_lm": (
                *pair("predictions.dense", "masked_lm.dense"),
                *pair("predictions.LayerNorm", "masked_lm.norm"),
            ),
            "sequence": pair("classifier", "sequence.output"),
            "tokens": TOKENS,
        },
        decoder="predictions.decoder",
        decoder_bias="predictions.bias",
        architectures=ARCHITECTURES | {"ForSequenceClassification": ("pooled", "sequence")},
    ),
}
KEYS = {"electra": _ELECTRA, "albert": _ALBERT}
FAMILY = Tables(keys=KEYS, names=NAMES, harmless=_HARMLESS).family()
