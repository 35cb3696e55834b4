"""The families of models that are read from directories of transformers: a table for each model type (`family.Family`)."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from uwaga._base.errors import CheckpointError
from uwaga._base.options import unknown_key
from uwaga._base.terminal import printable
from uwaga.models.configuration import Config
from uwaga.models.families.family import Family, File


@cache
def model_types() -> tuple[str, ...]:
    """Of all families, as config.json has them."""
    return tuple(sorted(_tables()))


@cache
def _tables() -> dict[str, Family]:
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    return {kind: family for module in modules for kind, family in getattr(module, "FAMILIES", {}).items()}


def family_of(model_type: object, where: str) -> Family:
    """The family of a model type; `where` is the file that has it, for messages. Raises CheckpointError."""
    if not isinstance(model_type, str) or model_type not in _tables():
        supported = ", ".join(model_types())
        raise CheckpointError(f"{where}: model_type is {printable(repr(model_type))}; supported: {supported}")
    return _tables()[model_type]


def config(model_type: str, **settings: Any) -> Config:
    """The configuration of a model of a type, for `uwaga.models.Transformer`.

    Args:
        model_type: as in config.json of transformers, such as "bert" or "llama"; "uwaga-transformer" is the original Transformer, "uwaga-gpt3"
            GPT-2 with a band.
        settings: fields of the configuration; others have the values of transformers.

    Raises:
        ValueError: an unknown model type, a setting that it does not have, or one of a wrong type or range.

    >>> config("llama", vocab_size=100, d_model=32, num_layers=2, num_heads=4, d_ff=64).is_causal
    True
    """
    if model_type not in _tables():
        raise ValueError(f"config: {unknown_key(str(model_type), model_types())}".replace("key", "model type", 1))
    return _tables()[model_type].read(model_type, File(), settings)
