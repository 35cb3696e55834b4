"""Checkpoints of BERT and related models: the keys of config.json and the names of weights, by model type, as in transformers.

To add a model type: its keys in KEYS, its names in NAMES, and a line in checkpoints/load_save.py.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from uwaga._base.errors import CheckpointError
from uwaga._base.options import POSITIVE, SWITCH, whole
from uwaga._base.terminal import printable
from uwaga.models.bert.config import OUTPUTS, WITHOUT_TYPES, BertConfig
from uwaga.models.bert.model import BertModel
from uwaga.models.checkpoints import config_json
from uwaga.models.checkpoints.config_json import (
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
from uwaga.models.checkpoints.tables import Family, Table, WeightMapping, pair

# Bounded, since labels are made for all classes before the shape of the classifier is known.
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
_MPNET = {name: key for name, key in _BERT.items() if name not in ("type_vocab_size", "classifier_dropout")} | {
    "vocab_size": Key("vocab_size", SIZE, 30527),
    # transformers counts positions from 1 and has 32 buckets, whatever the file says.
    "pad_token_id": Key("pad_token_id", whole(1, 1), 1),
    "relative_attention_num_buckets": Key("num_buckets", whole(32, 32), 32),
}
# By model type.
KEYS = {
    "bert": _BERT,
    "camembert": _XLM_ROBERTA,
    "distilbert": _DISTILBERT,
    "mpnet": _MPNET,
    "roberta": _ROBERTA,
    "xlm-roberta": _XLM_ROBERTA,
}
# Keys that change what is computed, and their only supported values.
_ONLY: dict[str, tuple[object, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}
# DistilBERT's initialisation of positions, and settings of heads that are not implemented.
_HARMLESS = ("sinusoidal_pos_embds", "qa_dropout", "tie_weights_")


# The names of weights: theirs on the left, ours on the right. `{n}` counts layers.
_WORDS = "embeddings.word_embeddings.weight"

_EMBEDDING_ROWS = (
    WeightMapping(_WORDS, "embeddings.token_embedding.weight"),
    WeightMapping("embeddings.position_embeddings.weight", "embeddings.positions.weight"),
    *pair("embeddings.LayerNorm", "embeddings.norm"),
)
_BERT_ROWS = (
    *_EMBEDDING_ROWS,
    WeightMapping("embeddings.token_type_embeddings.weight", "embeddings.token_types.weight"),
    *pair("encoder.layer.{n}.attention.self.query", "encoder.layers.{n}.attention.query"),
    *pair("encoder.layer.{n}.attention.self.key", "encoder.layers.{n}.attention.key"),
    *pair("encoder.layer.{n}.attention.self.value", "encoder.layers.{n}.attention.value"),
    *pair("encoder.layer.{n}.attention.output.dense", "encoder.layers.{n}.attention.output"),
    *pair("encoder.layer.{n}.attention.output.LayerNorm", "encoder.layers.{n}.attention_norm"),
    *pair("encoder.layer.{n}.intermediate.dense", "encoder.layers.{n}.feed_forward.up"),
    *pair("encoder.layer.{n}.output.dense", "encoder.layers.{n}.feed_forward.down"),
    *pair("encoder.layer.{n}.output.LayerNorm", "encoder.layers.{n}.feed_forward_norm"),
)
_DISTILBERT_ROWS = (
    *_EMBEDDING_ROWS,
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
    *_EMBEDDING_ROWS,
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
_POOLER = pair("pooler.dense", "pooler.dense")
_TOKENS = pair("classifier", "tokens.output")

# Names in old files that are not read, and why.
_UNREAD = {"embeddings.position_ids": "counts up from 0; a buffer of transformers before 4.31"}
# Of the architecture that ColBERT's own code writes (Khattab and Zaharia 2020): a BertModel and this weight.
COLBERT = "HF_ColBERT"
_UNREAD_PROJECTION = "ColBERT's projection of hidden states, which TextEncoder reads"
_UNREAD_BIAS = "transformers adds the decoder's own bias where the decoder is not tied"
# TensorFlow's names, which the first converted checkpoints have, among them bert-base-uncased.
_LEGACY = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of one model type."""

    stem: str  # the start of its architectures' names: Bert of BertForMaskedLM
    prefix: str
    body: tuple[WeightMapping, ...]
    heads: dict[str, tuple[WeightMapping, ...]]  # by output; for masked_lm without the output projection
    decoder: str  # the output projection of the masked-LM head
    decoder_bias: str  # the name of its bias where the projection is tied
    architectures: dict[str, tuple[str, ...]] = field(repr=False)  # end of the architecture's name -> its outputs

    def table(self, config: BertConfig) -> Table:
        """The table of names of a model with this configuration."""
        heads = [row for name in config.outputs for row in self.heads[name] if name != "pooled"]
        tied: dict[str, str] = {}
        unread = dict(_UNREAD)
        if config.kept.get("architectures") == [COLBERT]:
            unread["linear.weight"] = _UNREAD_PROJECTION
        if "masked_lm" in config.outputs and config.tie_word_embeddings:
            heads.append(WeightMapping(self.decoder_bias, "masked_lm.bias"))
            tied = {f"{self.decoder}.weight": _WORDS, f"{self.decoder}.bias": self.decoder_bias}
            tied.pop(self.decoder_bias, None)
        elif "masked_lm" in config.outputs:
            heads.append(WeightMapping(f"{self.decoder}.weight", "masked_lm.decoder.weight"))
            heads.append(WeightMapping(f"{self.decoder}.bias", "masked_lm.bias"))
            if self.decoder_bias != f"{self.decoder}.bias":
                unread[self.decoder_bias] = _UNREAD_BIAS
        return Table(
            body=self.body + (self.heads["pooled"] if "pooled" in config.outputs else ()),
            heads=tuple(heads),
            prefix=self.prefix,
            is_prefixed=self.architecture(config.outputs) != f"{self.stem}Model",
            counts={"n": config.num_layers},
            tied=tied,
            unread=unread,
            legacy=_LEGACY,
        )

    def architecture(self, outputs: tuple[str, ...]) -> str:
        """The architecture with these outputs in transformers, with or without a pooler. Raises CheckpointError: there is none."""
        for suffix, has in self.architectures.items():
            if set(outputs) | {"pooled"} == set(has) | {"pooled"}:
                return self.stem + suffix
        raise CheckpointError(f"transformers has no {self.stem} model with the outputs {', '.join(outputs)}")

    def outputs(self, architecture: str | None, names: Set[str]) -> tuple[str, ...]:
        """The outputs of an architecture, and those whose weights are in the file. Raises KeyError: an unknown architecture."""
        of_architecture = self.architectures[architecture.removeprefix(self.stem)] if architecture else ()
        bare = {name.removeprefix(self.prefix) for name in names}
        # Not by `classifier`: the same name is used for sequences and for tokens.
        shown = {name for name in ("pooled", "masked_lm", "next_sentence") if name in self.heads}
        results = {name for name in shown if any(row.theirs in bare for row in self.heads[name])}
        return tuple(name for name in OUTPUTS if name in results.union(of_architecture))


def _roberta(stem: str, prefix: str = "roberta.", body: tuple[WeightMapping, ...] = _BERT_ROWS) -> Names:
    return Names(
        stem=stem,
        prefix=prefix,
        body=body,
        heads={
            "pooled": _POOLER,
            "masked_lm": (*pair("lm_head.dense", "masked_lm.dense"), *pair("lm_head.layer_norm", "masked_lm.norm")),
            "sequence": (
                *pair("classifier.dense", "sequence.dense"),
                *pair("classifier.out_proj", "sequence.output"),
            ),
            "tokens": _TOKENS,
        },
        decoder="lm_head.decoder",
        decoder_bias="lm_head.bias",
        architectures=_ARCHITECTURES,
    )


_ARCHITECTURES = {
    "Model": (),
    "ForMaskedLM": ("masked_lm",),
    "ForSequenceClassification": ("sequence",),
    "ForTokenClassification": ("tokens",),
}

NAMES = {
    "bert": Names(
        stem="Bert",
        prefix="bert.",
        body=_BERT_ROWS,
        heads={
            "pooled": _POOLER,
            "masked_lm": (
                *pair("cls.predictions.transform.dense", "masked_lm.dense"),
                *pair("cls.predictions.transform.LayerNorm", "masked_lm.norm"),
            ),
            "next_sentence": pair("cls.seq_relationship", "next_sentence"),
            "sequence": pair("classifier", "sequence.output"),
            "tokens": _TOKENS,
        },
        decoder="cls.predictions.decoder",
        decoder_bias="cls.predictions.bias",
        architectures=_ARCHITECTURES
        | {
            "ForPreTraining": ("pooled", "masked_lm", "next_sentence"),
            "ForNextSentencePrediction": ("pooled", "next_sentence"),
            "ForSequenceClassification": ("pooled", "sequence"),
        },
    ),
    "distilbert": Names(
        stem="DistilBert",
        prefix="distilbert.",
        body=_DISTILBERT_ROWS,
        heads={
            "masked_lm": (*pair("vocab_transform", "masked_lm.dense"), *pair("vocab_layer_norm", "masked_lm.norm")),
            "sequence": (*pair("pre_classifier", "sequence.dense"), *pair("classifier", "sequence.output")),
            "tokens": _TOKENS,
        },
        decoder="vocab_projector",
        decoder_bias="vocab_projector.bias",
        architectures=_ARCHITECTURES,
    ),
    "roberta": _roberta("Roberta"),
    "xlm-roberta": _roberta("XLMRoberta"),
    "camembert": _roberta("Camembert"),
    "mpnet": _roberta("MPNet", "mpnet.", _MPNET_ROWS),
}


def read_config(config: Mapping[str, Any], where: str, names: Set[str]) -> BertConfig:
    """The configuration from a config.json; `outputs` follow from its architecture and from the names of the weights."""
    model_type = config["model_type"]
    read = config_json.read(config, where, keys=KEYS[model_type], only=_ONLY, harmless=_HARMLESS)
    given = read.settings
    given["activation"] = read_activation(given["activation"])
    if given.get("classifier_dropout") is None:
        given["classifier_dropout"] = given["dropout"]
    if model_type in WITHOUT_TYPES:
        given["type_vocab_size"] = 0
    given |= {"outputs": _outputs(NAMES[model_type], config, where, names), "labels": _labels(config, where)}
    try:
        return BertConfig(model_type=model_type, kept=read.kept, **given)
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}") from error


def write_config(config: BertConfig) -> dict[str, object]:
    """config.json as transformers reads it; unknown keys that were read are written unchanged."""
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


def _outputs(names: Names, config: Mapping[str, Any], where: str, stored: Set[str]) -> tuple[str, ...]:
    architectures = config.get("architectures") or [None]
    if not isinstance(architectures, list) or len(architectures) > 1:
        raise CheckpointError(
            f"{where}: architectures must be a list of one name, not {printable(repr(architectures))}"
        )
    known = [names.stem + suffix for suffix in names.architectures]
    if architectures == [COLBERT] and names.stem == "Bert":
        return names.outputs(None, stored)
    if architectures[0] not in (None, *known):
        raise CheckpointError(
            f"{where}: architecture {printable(repr(architectures[0]))}; supported: {', '.join(known)}"
        )
    return names.outputs(architectures[0], stored)


def _labels(config: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The names of the classes by index; the defaults of transformers where there are none."""
    labels = config.get("id2label")
    if labels is None:
        number = config.get("num_labels", 2)
        if not _CLASSES.accepts(number):
            raise CheckpointError(f"{where}: num_labels must be {_CLASSES.words}, not {printable(repr(number))}")
        labels = {str(n): f"LABEL_{n}" for n in range(number)}
    if not isinstance(labels, dict) or set(labels) != {str(n) for n in range(len(labels))}:
        raise CheckpointError(f"{where}: id2label must have the keys 0, 1, ... without a gap")
    return tuple(str(labels[str(n)]) for n in range(len(labels)))


def _table(config: BertConfig) -> Table:
    return NAMES[config.model_type].table(config)


FAMILY = Family(read_config=read_config, write_config=write_config, table=_table, build=BertModel)
