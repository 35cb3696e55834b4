"""The families of models that are read from directories of transformers: a table for each model type (`family.Family`).

A new model type is a new table. Loading, saving and generation need no other code:

1. Write NAME.py in this folder with FAMILIES = {"the_model_type": Family(...)}. Start from a related table by `dataclasses.replace`.
2. Put the keys of config.json and the defaults of transformers into `keys`, such as keys(hidden_size=768), and settings that all models of
   the type share into `fixed`.
3. Put keys that `Transformer` does not compute into `only`, with the values that change nothing, and keys without effect into
   `config_json.HARMLESS`.
4. Map the modules of transformers to the modules of `Transformer` in `names`.
5. List the classes of transformers with their outputs in `architectures`, the class without a head first.
6. If a key is more than another name of a setting, compute the setting in `settle` and write the key in `write`.
7. Name the class of tokenizers that transformers registers for the type in `tokenizer`.

tests/models/test_families.py then compares the type with transformers. If no combination of settings computes the model, add a setting to
`Config` and its computation to `Transformer` first.
"""

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
    """Return the model types of all families, as config.json has them, in alphabetical order."""
    return tuple(sorted(_tables()))


@cache
def _tables() -> dict[str, Family]:
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    return {kind: family for module in modules for kind, family in getattr(module, "FAMILIES", {}).items()}


def family_of(model_type: object, where: str) -> Family:
    """Return the family of a model type. `where` is the file that has the type, for messages. Raises CheckpointError."""
    if not isinstance(model_type, str) or model_type not in _tables():
        supported = ", ".join(model_types())
        raise CheckpointError(f"{where}: model_type is {printable(repr(model_type))}; supported: {supported}")
    return _tables()[model_type]


def config(model_type: str, **settings: Any) -> Config:
    """Make the configuration of a model type, for `uwaga.models.Transformer`.

    Args:
        model_type: as in config.json of transformers, such as "bert" or "llama"; "uwaga-transformer" is the original Transformer, "uwaga-gpt3"
            GPT-2 with a band.
        settings: fields of `Config`; all others have the defaults of transformers.

    Raises:
        ValueError: an unknown model type, a setting that it does not have, or one of a wrong type or range.

    >>> config("llama", vocab_size=100, d_model=32, num_layers=2, num_heads=4, d_ff=64).is_causal
    True
    """
    if model_type not in _tables():
        raise ValueError(f"config: {unknown_key(str(model_type), model_types())}".replace("key", "model type", 1))
    return _tables()[model_type].read(model_type, File(), settings)
