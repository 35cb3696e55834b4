"""The families of models, and what each of them must offer."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from torch import nn

from uwaga._base.errors import CheckpointError
from uwaga.models.json_files import printable
from uwaga.models.tables import Table


class Config(Protocol):
    """A frozen dataclass of plain settings."""

    @property
    def model_type(self) -> str:
        """The name that transformers has for the kind of model, as in config.json."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Everything that loading and saving need to know of one kind of model; `FAMILY` of its checkpoint.py."""

    read_config: Callable[[Mapping[str, Any], str, Set[str]], Config]  # config.json, its path, names of weights
    # Of the family's own configs alone, which a type cannot say of a value that is looked up by name.
    write_config: Callable[[Any], dict[str, object]]  # config.json as transformers reads it
    table: Callable[[Any], Table]
    build: Callable[[Any], nn.Module]  # a module with the attribute `config`


# What transformers calls the kind of model -> the module that has its FAMILY.
_HOME = {
    "bert": "uwaga.models.bert.checkpoint",
    "camembert": "uwaga.models.bert.checkpoint",
    "distilbert": "uwaga.models.bert.checkpoint",
    "gpt2": "uwaga.models.gpt2.checkpoint",
    "marian": "uwaga.models.transformer.checkpoint",
    "mt5": "uwaga.models.t5.checkpoint",
    "roberta": "uwaga.models.bert.checkpoint",
    "t5": "uwaga.models.t5.checkpoint",
    "uwaga-gpt3": "uwaga.models.gpt2.checkpoint",
    "uwaga-transformer": "uwaga.models.transformer.checkpoint",
    "xlm-roberta": "uwaga.models.bert.checkpoint",
}
MODEL_TYPES = tuple(sorted(_HOME))


def of(model_type: object, where: str) -> Family:
    """The family of a model type; `where` is the file that names it. Raises CheckpointError."""
    if not isinstance(model_type, str) or model_type not in _HOME:
        known = ", ".join(MODEL_TYPES)
        raise CheckpointError(f"{where}: model_type is {printable(repr(model_type))}; those that load here: {known}")
    return cast(Family, import_module(_HOME[model_type]).FAMILY)
