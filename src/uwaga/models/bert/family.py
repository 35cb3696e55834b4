"""What the checkpoints of BERT-like models share: reading and writing config.json.

A family is then a table of the keys of config.json (`Key`) and one of the names of weights (`bert.names`), by model type.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Le

from uwaga._base.errors import CheckpointError
from uwaga._base.options import Integer
from uwaga._base.terminal import printable
from uwaga.models.bert.config import WITHOUT_TYPES, BertConfig
from uwaga.models.bert.model import BertModel
from uwaga.models.bert.names import COLBERT, Names
from uwaga.models.checkpoints import config_json, rope_parameters
from uwaga.models.checkpoints.config_json import Key
from uwaga.models.checkpoints.rope_parameters import Rope
from uwaga.models.checkpoints.tables import Family

# Bounded, since labels are made for all classes before the shape of the classifier is known.
_Classes = Annotated[Integer, Ge(1), Le(2**16)]

# Keys that change what is computed, and their only supported values.
_ONLY: dict[str, tuple[object, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
}

# By position_embedding_type of files with model_type bert or xlm-roberta: models with code in their own directory.
_OWN_CODE = {
    "alibi": "a Jina v2, whose code is in its own directory; transformers has no class for it to compare with, so that it is not read",
    "rotary": "a Jina v3 or GTE of code in its own directory; those of transformers have the model_type jina_embeddings_v3 and gte",
}


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
        harmless = {*self.harmless, *(rope_parameters.KEYS if model_type in self.rotary_bases else ())}
        read = config_json.read(config, where, of=BertConfig, keys=self.keys[model_type], only=only, harmless=harmless)
        given = read.settings
        if model_type in self.rotary_bases:
            given["rotary_base"], given["rotary_scaling"] = rope_parameters.read(
                config, where, self.rotary_bases[model_type], given["max_position_embeddings"]
            )
            given["d_k"] = given.get("d_k") or config_json.head_width(given, where)
        if given.get("classifier_dropout") is None:
            given["classifier_dropout"] = given["dropout"]
        if model_type in WITHOUT_TYPES:
            given["type_vocab_size"] = 0
        given |= {"outputs": _outputs(self.names[model_type], config, where, names), "labels": _labels(config, where)}
        return config_json.make(BertConfig, where, model_type=model_type, kept=read.kept, **given)

    def write_config(self, config: BertConfig) -> dict[str, object]:
        """config.json as transformers reads it; unknown keys that were read are written unchanged."""
        dropped = ("torch_dtype", "num_labels", *(rope_parameters.KEYS if config.rotary_base else ()))
        written = {name: value for name, value in config.kept.items() if name not in dropped}
        written |= config_json.written(config, self.keys[config.model_type])
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
        number = config_json.setting(config, where, "num_labels", _Classes, 2)
        labels = {str(n): f"LABEL_{n}" for n in range(number)}
    if not isinstance(labels, dict) or set(labels) != {str(n) for n in range(len(labels))}:
        raise CheckpointError(f"{where}: id2label must have the keys 0, 1, ... without a gap")
    return tuple(str(labels[str(n)]) for n in range(len(labels)))
