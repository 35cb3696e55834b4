"""Kinds of options, and the check that every option is of its kind: of configs, of training, of text generation.

These 50 lines in place of a validation library: pydantic, attrs and msgspec would bring their own messages, which differ from version
to version, and pydantic as much import time as the rest of this package without torch. Every message here has a test.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard


class OptionValidator(NamedTuple):
    """What an option may be: in words that follow "must be", and as a predicate."""

    words: str
    accepts: Callable[[Any], bool]
    is_real: bool = False  # an integer is accepted, and means the same as the float


def is_number(x: Any) -> TypeGuard[float]:
    """A number that fits into float64 and is not NaN or infinite; no bool."""
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= sys.float_info.max


def number(words: str, accepts: Callable[[float], bool]) -> OptionValidator:
    return OptionValidator(words, lambda x: is_number(x) and accepts(x), is_real=True)


def whole(least: int, most: int | None = None) -> OptionValidator:
    """An integer of at least `least`; of at most 2**62 - 1 where `most` is None, so that it fits into 64 bits."""
    if most is None:
        return OptionValidator(f"a whole number of at least {least}", lambda x: type(x) is int and least <= x < 2**62)
    return OptionValidator(f"a whole number from {least} to {most}", lambda x: type(x) is int and least <= x <= most)


def one_of(*values: str) -> OptionValidator:
    return OptionValidator(f"one of {', '.join(map(repr, values))}", lambda x: isinstance(x, str) and x in values)


def optional(kind: OptionValidator) -> OptionValidator:
    return OptionValidator(f"None or {kind.words}", lambda x: x is None or kind.accepts(x))


SWITCH = OptionValidator("true or false", lambda x: isinstance(x, bool))
POSITIVE = number("a positive number", lambda x: x > 0)
FRACTION_BELOW_1 = number("a number from 0 to less than 1", lambda x: 0 <= x < 1)


def check(owner: str, options: object, kinds: Mapping[str, OptionValidator]) -> None:
    """ValueError "OWNER: NAME must be KIND, not VALUE" for the first attribute of `options` that is not of its kind."""
    for name, kind in kinds.items():
        value = getattr(options, name)
        if not kind.accepts(value):
            raise ValueError(f"{owner}: {name} must be {kind.words}, not {value!r}")
