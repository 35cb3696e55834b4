"""Reading config.json: the types of its keys, and the values of activations and eos_token_id.

A key is read (a `Key`), or supported with some values only (another would change what is computed), or without effect
here, or unknown. Keys that are not read are kept, and saving writes them unchanged; unknown ones cause a warning.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga._base.validators import FRACTION_BELOW_1, OptionValidator, one_of, optional, whole

# The product of two sizes, in bytes, must stay far below 2**63.
_LARGEST_SIZE = 2**28


SIZE, COUNT = whole(1, _LARGEST_SIZE), whole(0, _LARGEST_SIZE)
OPTIONAL_SIZE, OPTIONAL_COUNT = optional(SIZE), optional(COUNT)
PROBABILITY = FRACTION_BELOW_1
OPTIONAL_PROBABILITY = optional(PROBABILITY)
IDS = OptionValidator("a tuple of ids", lambda x: isinstance(x, tuple) and all(map(COUNT.accepts, x)))
# eos_token_id in a config.json of transformers.
EOS_TOKEN_ID = OptionValidator(
    "an id, a list of ids or None",
    lambda x: x is None or COUNT.accepts(x) or (isinstance(x, list) and all(map(COUNT.accepts, x))),
)
# Names in transformers -> ours; of several names of one function saving writes the first.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
ACTIVATION = one_of(*_ACTIVATIONS)


# Second names of keys in transformers (its `attribute_map`), by the keys of the families that have them: there the second name wins.
SECOND_NAMES = {
    "head_dim": ("d_kv",),
    "hidden_size": ("d_model", "dim", "n_embd"),
    "max_position_embeddings": ("n_positions",),
    "num_attention_heads": ("encoder_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_hidden_layers": ("encoder_layers", "n_layer", "n_layers", "num_layers"),
}
# Keys that change what every model computes, and their only supported values.
_ONLY: dict[str, tuple[object, ...]] = {"per_layer_config": (None,), "quantization_config": (None,)}


LOCAL, GLOBAL = LAYER_TYPES = ("sliding_attention", "full_attention")


class Key(NamedTuple):
    """A key of config.json: our name of the setting, the kind of its value, and the default of transformers."""

    ours: str
    kind: OptionValidator
    default: object


class Read(NamedTuple):
    """The content of a config.json: the settings by our names, and the keys that are kept unchanged."""

    settings: dict[str, Any]  # values are of the kind of their Key
    kept: dict[str, object]


def read(
    config: Mapping[str, object],
    where: str,
    *,
    keys: Mapping[str, Key],
    only: Mapping[str, tuple[object, ...]],
    harmless: Iterable[str] = (),
) -> Read:
    """The settings of a config.json. Raises CheckpointError: a value that is not supported. Warns of unknown keys.

    Args:
        found: the content of the file.
        where: its path, for messages.
        keys: the settings, by their keys in the file.
        only: the supported values of further keys, which may be absent.
        harmless: keys without effect here, besides HARMLESS.
    """
    for name, key in keys.items():
        if name in config and not key.kind.accepts(config[name]):
            raise CheckpointError(f"{where}: {name} must be {key.kind.words}, not {printable(repr(config[name]))}")
    only = _ONLY | dict(only)
    for name, values in only.items():
        if name in config and config[name] not in values:
            allowed = " or ".join(map(repr, values))
            raise CheckpointError(f"{where}: {name} is {printable(repr(config[name]))}; only {allowed} is supported")
    seconds = {second: first for second, names in SECOND_NAMES.items() for first in names if first in keys}
    for second, first in seconds.items():
        value = config.get(first, keys[first].default)
        if config.get(second, value) != value:
            shown = printable(repr(config[second]))
            raise CheckpointError(
                f"{where}: {second} is another name of {first}, which is {value!r}, not {shown}: remove one"
            )
    kept = {name: value for name, value in config.items() if name not in keys}
    unknown = sorted(map(printable, kept.keys() - set(only) - set(harmless) - set(seconds) - HARMLESS))
    if unknown:
        warnings.warn(f"{where} has unknown keys, which have no effect: {', '.join(unknown)}")
    return Read(settings={key.ours: config.get(name, key.default) for name, key in keys.items()}, kept=kept)


def check_architecture(config: Mapping[str, Any], where: str, known: Sequence[str]) -> None:
    """Raises CheckpointError: `architectures` is there, and not one of those that are known."""
    if config.get("architectures") and config["architectures"] not in ([name] for name in known):
        shown = printable(repr(config["architectures"]))
        raise CheckpointError(f"{where}: architectures is {shown}; supported: {', '.join(known)}")


def head_width(settings: Mapping[str, Any], where: str) -> int:
    """d_model / num_heads. Raises CheckpointError: it is no whole number."""
    width, heads = settings["d_model"], settings["num_heads"]
    if width % heads:
        raise CheckpointError(f"{where}: hidden_size {width} is not a multiple of {heads} heads")
    return int(width // heads)


def read_eos_token_id(ids: int | list[int] | None) -> tuple[int, ...]:
    """
    >>> read_eos_token_id(None), read_eos_token_id(5), read_eos_token_id([5, 6])
    ((), (5,), (5, 6))
    """
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (ids,)


def write_eos_token_id(ids: tuple[int, ...]) -> int | list[int] | None:
    """
    >>> write_eos_token_id(()), write_eos_token_id((5,)), write_eos_token_id((5, 6))
    (None, 5, [5, 6])
    """
    if len(ids) > 1:
        return list(ids)
    return ids[0] if ids else None


def read_activation(theirs: str) -> str:
    """
    >>> read_activation("swish")
    'silu'
    """
    return _ACTIVATIONS[theirs]


def write_activation(ours: str) -> str:
    """
    >>> write_activation("gelu_tanh")
    'gelu_new'
    """
    return next(theirs for theirs, name in _ACTIVATIONS.items() if name == ours)


def read_layer_types(types: object, where: str, default: Sequence[str]) -> tuple[str, ...]:
    """`layer_types`: for each layer "sliding_attention" or "full_attention"; None: the default. Raises CheckpointError."""
    types = list(default) if types is None else types
    if not isinstance(types, list) or len(types) != len(default) or set(map(str, types)) - set(LAYER_TYPES):
        raise CheckpointError(
            f"{where}: layer_types must be {len(default)} of {' and '.join(LAYER_TYPES)}, not {printable(repr(types))}"
        )
    return tuple(types)


def windows_of(types: Sequence[str], window: int | None, where: str) -> tuple[int | None, ...]:
    """For each layer, its window; None: it sees all. Raises CheckpointError: a layer needs one, and there is none."""
    if window is None and LOCAL in types:
        raise CheckpointError(f"{where}: layer_types has {LOCAL}, and there is no sliding_window")
    return tuple(window if each == LOCAL else None for each in types)


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
