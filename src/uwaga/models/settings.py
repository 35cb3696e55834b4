"""What a setting of a model may be, and how settings are read from a config.json of transformers.

A key of config.json is one of four things: a setting that is read (a `Key`), one that is understood at one value only (a
quiet default would compute something else), one that changes nothing that is computed here, or one that is not known.
Keys of the last two kinds are kept, so that saving gives them back; unknown ones are warned of.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from uwaga._base.errors import CheckpointError
from uwaga.models.json_files import printable

# Sizes multiply to the size of a weight in bytes, which must stay far below 2**63.
_LARGEST_SIZE = 2**28


class Kind(NamedTuple):
    """What a setting may be, in words that end "must be ...", and as a test."""

    words: str
    accepts: Callable[[Any], bool]


def is_number(x: Any) -> bool:
    """A number that float64 has, neither NaN nor infinite; 10**400 is none."""
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= sys.float_info.max


def whole(least: int, most: int) -> Kind:
    return Kind(f"a whole number from {least} to {most}", lambda x: type(x) is int and least <= x <= most)


def one_of(*values: str) -> Kind:
    return Kind(f"one of {', '.join(map(repr, values))}", lambda x: isinstance(x, str) and x in values)


SIZE, COUNT = whole(1, _LARGEST_SIZE), whole(0, _LARGEST_SIZE)
OPTIONAL_COUNT = Kind(f"None or {COUNT.words}", lambda x: x is None or COUNT.accepts(x))
CHANCE = Kind("a number from 0 to less than 1", lambda x: is_number(x) and 0 <= x < 1)
OPTIONAL_CHANCE = Kind(f"None or {CHANCE.words}", lambda x: x is None or CHANCE.accepts(x))
POSITIVE = Kind("a positive number", lambda x: is_number(x) and x > 0)
SWITCH = Kind("true or false", lambda x: isinstance(x, bool))


def check(owner: str, settings: object, kinds: Mapping[str, Kind]) -> None:
    """Each setting of a config is of its kind, or ValueError."""
    for name, kind in kinds.items():
        value = getattr(settings, name)
        if not kind.accepts(value):
            raise ValueError(f"{owner}: {name} must be {kind.words}, not {value!r}")


class Key(NamedTuple):
    """A key of config.json: our setting, its kind there, what transformers takes where the key is absent."""

    ours: str
    kind: Kind
    default: object


class Read(NamedTuple):
    """What a config.json says: our settings by our names, and the keys that are kept as they are."""

    settings: dict[str, Any]  # each of its Key's kind
    kept: dict[str, object]


def read(
    found: Mapping[str, object],
    where: str,
    *,
    keys: Mapping[str, Key],
    only: Mapping[str, tuple[object, ...]],
    harmless: Iterable[str] = (),
) -> Read:
    """The settings in a config.json. Raises CheckpointError; warns of keys that are not known here.

    Args:
        found: the object in the file.
        where: its path, for messages.
        keys: the settings, by their names there.
        only: values, of which the key must have one, or be absent.
        harmless: more keys that change nothing that is computed here, beyond those of every model.
    """
    for name, key in keys.items():
        if name in found and not key.kind.accepts(found[name]):
            raise CheckpointError(f"{where}: {name} must be {key.kind.words}, not {printable(repr(found[name]))}")
    for name, values in only.items():
        if name in found and found[name] not in values:
            allowed = " or ".join(map(repr, values))
            raise CheckpointError(f"{where}: {name} is {printable(repr(found[name]))}; only {allowed} is computed here")
    kept = {name: value for name, value in found.items() if name not in keys}
    unknown = sorted(map(printable, kept.keys() - set(only) - set(harmless) - HARMLESS))
    if unknown:
        warnings.warn(f"{where} has keys that are not known here and change nothing: {', '.join(unknown)}")
    return Read(settings={key.ours: found.get(name, key.default) for name, key in keys.items()}, kept=kept)


# Keys of every model that say how it was made, what to return, or how a tokenizer or a generation goes.
HARMLESS = frozenset(
    [
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attn_implementation",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "gradient_checkpointing",
        "id2label",
        "initializer_factor",
        "initializer_range",
        "label2id",
        "language",
        "max_length",
        "model_type",
        "name_or_path",
        "num_labels",
        "_num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "sep_token_id",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "use_cache",
    ]
)
