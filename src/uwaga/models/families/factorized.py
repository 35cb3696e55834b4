"""ELECTRA (Clark et al. 2020) and ALBERT (Lan et al. 2020), whose embeddings are narrower than the model. ALBERT's layers share
their weights."""

from dataclasses import replace
from typing import Any

from uwaga.models.checkpoints.config_json import Key, ModelSize, keys
from uwaga.models.configuration import Config
from uwaga.models.families import bert
from uwaga.models.families.family import File, classes, post_norm_layers

_REPLACED = "of the head that says whether a token was replaced, which is not computed"
_ORDER = "of the head that says which of two sentences is first, which is not computed"


def _settle_electra(settings: dict[str, Any], file: File) -> None:
    bert.settle(settings, file)
    settings["projects_embeddings"] = settings["embedding_size"] != settings["d_model"]


_ELECTRA = replace(
    bert.BERT,
    keys=bert.BERT_KEYS | keys(
        embedding_size=Key("embedding_size", 128, ModelSize), hidden_size=256, num_attention_heads=4, intermediate_size=1024,
    ),
    fixed=bert.BERT.fixed | {"head_activation": "gelu", "classifier": "gelu"},
    outputs=(),
    names=bert.BODY | {
        "embeddings_project": "embeddings.projection",
        "generator_predictions.dense": "lm_head.dense",
        "generator_predictions.LayerNorm": "lm_head.norm",
        "classifier.dense": "sequence.dense",
        "classifier.out_proj": "sequence.output",
        "classifier": "tokens.output",
    },
    prefix="electra.",
    logits=("generator_lm_head", "generator_lm_head.bias"),
    architectures=classes("Electra", bert.HEADS | {"ForPreTraining": ()}),
    unread=bert.UNREAD | {
        f"discriminator_predictions.{name}.{part}": _REPLACED for name in ("dense", "dense_prediction") for part in ("weight", "bias")
    },
    settle=_settle_electra,
)  # fmt: skip

_ALBERT_LAYER = "attention.query attention.key attention.value attention.dense attention.LayerNorm ffn ffn_output full_layer_layer_norm"


def _albert_names(config: Config) -> dict[str, str]:
    sharing = "|".join(map(str, range(config.num_layers)))
    there = "encoder.albert_layer_groups.0.albert_layers.0"
    return (
        bert.EMBEDDINGS
        | bert.TYPES
        | post_norm_layers(there, _ALBERT_LAYER, f"encoder.layers.({sharing})", mark="=")
        | {
            "encoder.embedding_hidden_mapping_in": "embeddings.projection",
            "pooler": "pooler.dense",
            "predictions.dense": "lm_head.dense",
            "predictions.LayerNorm": "lm_head.norm",
            "classifier": "sequence.output/tokens.output",
        }
    )


_ALBERT = replace(
    bert.BERT,
    keys=bert.COMMON_KEYS | keys(
        vocab_size=30000, embedding_size=Key("embedding_size", 128, ModelSize), hidden_size=4096, num_hidden_layers=12,
        num_attention_heads=64, intermediate_size=16384,
        type_vocab_size=2, hidden_act="gelu_new", layer_norm_eps=1e-12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.1,
    ),
    fixed=bert.BERT.fixed | {"projects_embeddings": True, "shares_layers": True},
    only=bert.BERT.only | {"num_hidden_groups": (1,), "inner_group_num": (1,)},
    names=_albert_names,
    prefix="albert.",
    logits=("predictions.decoder", "predictions.bias"),
    architectures=classes("Albert", bert.POOLED_HEADS | {"ForPreTraining": ("logits",)}),
    tokenizer="AlbertTokenizer",
    unread=bert.UNREAD | dict.fromkeys(("sop_classifier.classifier.weight", "sop_classifier.classifier.bias"), _ORDER),
)  # fmt: skip
FAMILIES = {"albert": _ALBERT, "electra": _ELECTRA}
