"""What the checkpoints of BERT-like models share: reading and writing config.json, and tables with the heads of an architecture.

A family is then a table of the keys of config.json (`Key`) and one of the names of weights (`Names`), by model type.
"""

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from uwaga._base.errors import CheckpointError
from uwaga._base.options import whole
from uwaga._base.terminal import printable
from uwaga.models.bert.config import OUTPUTS, WITHOUT_TYPES, BertConfig
from uwaga.models.bert.model import BertModel
from uwaga.models.checkpoints import config_json, rope_parameters
from uwaga.models.checkpoints.config_json import Key, read_activation, write_activation
from uwaga.models.checkpoints.rope_parameters import Rope
from uwaga.models.checkpoints.tables import Family, Table, WeightMapping, pair

# Bounded, since labels are made for all classes before the shape of the classifier is known.
_CLASSES = whole(1, 2**16)

# Keys that change what is computed, and their only supported values.
_ONLY: dict[str, tuple[object, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}

_WORDS = "embeddings.word_embeddings.weight"
# Names in old files that are not read, and why.
_UNREAD = {"embeddings.position_ids": "counts up from 0; a buffer of transformers before 4.31"}
# Of the architecture that ColBERT's own code writes (Khattab and Zaharia 2020): a BertModel and this weight.
COLBERT = "HF_ColBERT"
_UNREAD_PROJECTION = "ColBERT's projection of hidden states, which TextEncoder reads"
_UNREAD_BIAS = "transformers adds the decoder's own bias where the decoder is not tied"
# TensorFlow's names, which the first converted checkpoints have, among them bert-base-uncased.
_LEGACY = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}
# Keys that `rope_parameters` reads; a saved file has that of today.
_ROTARY = ("rope_parameters", "rope_scaling", "rope_theta")
# By position_embedding_type of files with model_type bert or xlm-roberta: models with code in their own directory.
_OWN_CODE = {
    "alibi": "a Jina v2, whose code is in its own directory; transformers has no class for it to compare with, so that it is not read",
    "rotary": "a Jina v3 or GTE of code in its own directory; those of transformers have the model_type jina_embeddings_v3 and gte",
}
# The end of an architecture's name -> its outputs.
ARCHITECTURES = {
    "Model": (),
    "ForMaskedLM": ("masked_lm",),
    "ForSequenceClassification": ("sequence",),
    "ForTokenClassification": ("tokens",),
}

# The names of weights that many families have: theirs on the left, ours on the right. `{n}` counts layers.
WORDS = WeightMapping(_WORDS, "embeddings.token_embedding.weight")
EMBEDDINGS = (WORDS, *pair("embeddings.LayerNorm", "embeddings.norm"))
POSITIONS = WeightMapping("embeddings.position_embeddings.weight", "embeddings.positions.weight")
TYPES = WeightMapping("embeddings.token_type_embeddings.weight", "embeddings.token_types.weight")
POOLER = pair("pooler.dense", "pooler.dense")
TOKENS = pair("classifier", "tokens.output")
BERT_LAYERS = (
    *pair("encoder.layer.{n}.attention.self.query", "encoder.layers.{n}.attention.query"),
    *pair("encoder.layer.{n}.attention.self.key", "encoder.layers.{n}.attention.key"),
    *pair("encoder.layer.{n}.attention.self.value", "encoder.layers.{n}.attention.value"),
    *pair("encoder.layer.{n}.attention.output.dense", "encoder.layers.{n}.attention.output"),
    *pair("encoder.layer.{n}.attention.output.LayerNorm", "encoder.layers.{n}.attention_norm"),
    *pair("encoder.layer.{n}.intermediate.dense", "encoder.layers.{n}.feed_forward.up"),
    *pair("encoder.layer.{n}.output.dense", "encoder.layers.{n}.feed_forward.down"),
    *pair("encoder.layer.{n}.output.LayerNorm", "encoder.layers.{n}.feed_forward_norm"),
)


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of one model type."""

    stem: str  # the start of its architectures' names: Bert of BertForMaskedLM
    prefix: str
    old_prefixes: tuple[str, ...] = ()  # as in Table
    body: Callable[[BertConfig], tuple[WeightMapping, ...]]
    heads: dict[str, tuple[WeightMapping, ...]]  # by output; for masked_lm without the output projection
    decoder: str  # the output projection of the masked-LM head
    decoder_bias: str  # the name of its bias where the projection is tied
    architectures: dict[str, tuple[str, ...]] = field(repr=False)  # as ARCHITECTURES

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
            body=self.body(config) + (self.heads["pooled"] if "pooled" in config.outputs else ()),
            heads=tuple(heads),
            prefix=self.prefix,
            old_prefixes=self.old_prefixes,
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
        canonical = Table(body=(), prefix=self.prefix, old_prefixes=self.old_prefixes).canonical
        bare = set(map(canonical, names))
        # Not by `classifier`: the same name is used for sequences and for tokens.
        shown = {name for name in ("pooled", "masked_lm", "next_sentence", "replaced") if name in self.heads}
        results = {name for name in shown if any(row.theirs in bare for row in self.heads[name])}
        return tuple(name for name in OUTPUTS if name in results.union(of_architecture))


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables of some families, by model type."""

    keys: Mapping[str, Mapping[str, Key]]
    names: Mapping[str, Names]
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # besides those of all families
    harmless: Collection[str] = ()
    rotary_bases: Mapping[str, float] = field(default_factory=dict)  # by default, of types with rotary positions

    def family(self) -> Family:
        return Family(
            read_config=self.read_config,
            write_config=self.write_config,
            table=lambda config: self.names[config.model_type].table(config),
            build=BertModel,
        )

    def read_config(self, config: Mapping[str, Any], where: str, names: Set[str]) -> BertConfig:
        """The configuration from a config.json; `outputs` follow from its architecture and from the names of the weights."""
        model_type = config["model_type"]
        own_code = _OWN_CODE.get(str(config.get("position_embedding_type")))
        if own_code is not None and model_type not in self.rotary_bases:
            raise CheckpointError(
                f"{where}: position_embedding_type is {config['position_embedding_type']!r}: {own_code}"
            )
        only = _ONLY | dict(self.only)
        harmless = {*self.harmless, *(_ROTARY if model_type in self.rotary_bases else ())}
        read = config_json.read(config, where, keys=self.keys[model_type], only=only, harmless=harmless)
        given = read.settings
        if model_type in self.rotary_bases:
            base, length = self.rotary_bases[model_type], given["max_position_embeddings"]
            rope = {"rope_theta": config.get("rope_theta")}, config.get("rope_scaling"), config.get("rope_parameters")
            given["rotary_base"], given["rotary_scaling"] = rope_parameters.read(where, base, length, *rope)
            given["d_k"] = given.get("d_k") or config_json.head_width(given, where)
        given["activation"] = read_activation(given["activation"])
        if given.get("classifier_dropout") is None:
            given["classifier_dropout"] = given["dropout"]
        if model_type in WITHOUT_TYPES:
            given["type_vocab_size"] = 0
        given |= {"outputs": _outputs(self.names[model_type], config, where, names), "labels": _labels(config, where)}
        try:
            return BertConfig(model_type=model_type, kept=read.kept, **given)
        except ValueError as error:
            raise CheckpointError(f"{where}: {error}") from error

    def write_config(self, config: BertConfig) -> dict[str, object]:
        """config.json as transformers reads it; unknown keys that were read are written unchanged."""
        dropped = ("torch_dtype", "num_labels", *(_ROTARY if config.rotary_base else ()))
        written = {name: value for name, value in config.kept.items() if name not in dropped}
        for name, key in self.keys[config.model_type].items():
            value = getattr(config, key.ours)
            written[name] = write_activation(value) if key.ours == "activation" else value
        if config.rotary_base is not None:
            written["rope_parameters"] = rope_parameters.write(Rope(config.rotary_base, config.rotary_scaling))
        return written | {
            "model_type": config.model_type,
            "architectures": [self.names[config.model_type].architecture(config.outputs)],
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
