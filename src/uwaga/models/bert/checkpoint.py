"""BERT's checkpoints: config.json and the names of its weights, as transformers writes them for each model type.

To add a model type: its keys of config.json here, its names in names.py, and a line in families.py.
"""

from collections.abc import Mapping, Set
from typing import Any

from uwaga._base.errors import CheckpointError
from uwaga._base.options import POSITIVE, SWITCH, whole
from uwaga.models import config_json
from uwaga.models.bert.config import BertConfig
from uwaga.models.bert.model import BertModel
from uwaga.models.bert.names import NAMES, Names
from uwaga.models.config_json import (
    ACTIVATION,
    COUNT,
    OPTIONAL_COUNT,
    OPTIONAL_PROBABILITY,
    PROBABILITY,
    SIZE,
    Key,
    read_activation,
    write_activation,
)
from uwaga.models.families import Family
from uwaga.models.json_files import printable
from uwaga.models.tables import Table

# Each gets a name of its own, before the weights have said how many there are.
_CLASSES = whole(1, 2**16)

_COMMON = {
    "vocab_size": Key("vocab_size", SIZE, 30522),
    "max_position_embeddings": Key("max_position_embeddings", SIZE, 512),
    "pad_token_id": Key("pad_token_id", OPTIONAL_COUNT, 0),
    "tie_word_embeddings": Key("tie_word_embeddings", SWITCH, True),
}
_BERT = _COMMON | {
    "hidden_size": Key("d_model", SIZE, 768),
    "num_hidden_layers": Key("num_layers", COUNT, 12),
    "num_attention_heads": Key("num_heads", SIZE, 12),
    "intermediate_size": Key("d_ff", SIZE, 3072),
    "type_vocab_size": Key("type_vocab_size", COUNT, 2),
    "hidden_act": Key("activation", ACTIVATION, "gelu"),
    "layer_norm_eps": Key("norm_eps", POSITIVE, 1e-12),
    "hidden_dropout_prob": Key("dropout", PROBABILITY, 0.1),
    "attention_probs_dropout_prob": Key("attention_dropout", PROBABILITY, 0.1),
    "classifier_dropout": Key("classifier_dropout", OPTIONAL_PROBABILITY, None),
}
_XLM_ROBERTA = _BERT | {"pad_token_id": Key("pad_token_id", OPTIONAL_COUNT, 1)}
_ROBERTA = _XLM_ROBERTA | {"vocab_size": Key("vocab_size", SIZE, 50265)}
_DISTILBERT = _COMMON | {
    "dim": Key("d_model", SIZE, 768),
    "n_layers": Key("num_layers", COUNT, 6),
    "n_heads": Key("num_heads", SIZE, 12),
    "hidden_dim": Key("d_ff", SIZE, 3072),
    "activation": Key("activation", ACTIVATION, "gelu"),
    "dropout": Key("dropout", PROBABILITY, 0.1),
    "attention_dropout": Key("attention_dropout", PROBABILITY, 0.1),
    "seq_classif_dropout": Key("classifier_dropout", OPTIONAL_PROBABILITY, 0.2),
}
# By model type.
KEYS = {
    "bert": _BERT,
    "camembert": _XLM_ROBERTA,
    "distilbert": _DISTILBERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _XLM_ROBERTA,
}
# Options that change what is computed, and their one value here.
_ONLY: dict[str, tuple[object, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}
# How DistilBERT's position table was first drawn, and a setting of a head that is not here.
_HARMLESS = ("sinusoidal_pos_embds", "qa_dropout", "tie_weights_")


def read_config(found: Mapping[str, Any], where: str, names: Set[str]) -> BertConfig:
    """The settings in a config.json, with the outputs that its architecture and the names of the weights tell of."""
    model_type = found["model_type"]
    read = config_json.read(found, where, keys=KEYS[model_type], only=_ONLY, harmless=_HARMLESS)
    given = read.settings
    given["activation"] = read_activation(given["activation"])
    if given["classifier_dropout"] is None:
        given["classifier_dropout"] = given["dropout"]
    if model_type == "distilbert":
        given["type_vocab_size"] = 0
    given |= {"outputs": _outputs(NAMES[model_type], found, where, names), "labels": _labels(found, where)}
    try:
        return BertConfig(model_type=model_type, kept=read.kept, **given)
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}") from error


def write_config(config: BertConfig) -> dict[str, object]:
    """config.json as transformers reads it; keys that were read and not understood come back as they were."""
    written = {name: value for name, value in config.kept.items() if name not in ("torch_dtype", "num_labels")}
    for name, key in KEYS[config.model_type].items():
        written[name] = getattr(config, key.ours)
    named = "activation" if config.model_type == "distilbert" else "hidden_act"
    written[named] = write_activation(config.activation)
    return written | {
        "model_type": config.model_type,
        "architectures": [NAMES[config.model_type].architecture(config.outputs)],
        "id2label": {str(n): label for n, label in enumerate(config.labels)},
        "label2id": {label: n for n, label in enumerate(config.labels)},
    }


def _outputs(names: Names, found: Mapping[str, Any], where: str, stored: Set[str]) -> tuple[str, ...]:
    architectures = found.get("architectures") or [None]
    if not isinstance(architectures, list) or len(architectures) > 1:
        raise CheckpointError(f"{where}: architectures must list one name, not {printable(repr(architectures))}")
    known = [names.stem + suffix for suffix in names.architectures]
    if architectures[0] not in (None, *known):
        raise CheckpointError(
            f"{where}: architecture {printable(repr(architectures[0]))}; those that load here: {', '.join(known)}"
        )
    return names.outputs(architectures[0], stored)


def _labels(found: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The names of the classes, in the order of their numbers; transformers' own where there are none."""
    labels = found.get("id2label")
    if labels is None:
        number = found.get("num_labels", 2)
        if not _CLASSES.accepts(number):
            raise CheckpointError(f"{where}: num_labels must be {_CLASSES.words}, not {printable(repr(number))}")
        labels = {str(n): f"LABEL_{n}" for n in range(number)}
    if not isinstance(labels, dict) or set(labels) != {str(n) for n in range(len(labels))}:
        raise CheckpointError(f"{where}: id2label must name the classes 0, 1, ... without a gap")
    return tuple(str(labels[str(n)]) for n in range(len(labels)))


def _table(config: BertConfig) -> Table:
    return NAMES[config.model_type].table(config)


FAMILY = Family(read_config=read_config, write_config=write_config, table=_table, build=BertModel)
