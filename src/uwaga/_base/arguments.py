"""Rules of one argument, for functions whose callers write Python. What comes from a file or a request is read by `options`."""

import os
from collections.abc import Collection, Iterable
from operator import index
from pathlib import Path
from typing import SupportsIndex, TypeGuard

from uwaga._base.terminal import short


def path_of(value: object, name: str) -> Path:
    """Return the value as a path. Raises ValueError if it is neither a string nor a path."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise ValueError(f"{name} must be a string or a path, not {short(value)}")
    return Path(value)


def check_iterable(value: object, name: str, of: str) -> None:
    """Raise ValueError if the value is not an iterable, or is one string."""
    if isinstance(value, str | bytes):
        raise ValueError(f"{name} must be an iterable of {of}, not one string")
    if not isinstance(value, Iterable):
        raise ValueError(f"{name} must be an iterable of {of}, not {short(value)}")


def is_int(value: object) -> TypeGuard[SupportsIndex]:
    """Return whether a value is an integer of Python, NumPy or PyTorch, and not a bool."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        return False
    return hasattr(value, "__index__") and getattr(value, "ndim", None) in (None, 0)


def integer(value: object, name: str, least: int = -(1 << 40), most: int = 1 << 40) -> int:
    """Return an integer of Python, NumPy or PyTorch as int; without limits, one of 40 bits, so that sums of positions fit into int64.

    >>> integer(3, "top", 1)
    3

    Raises:
        ValueError: another value, or one that is not from `least` to `most`.
    """
    try:
        result = index(value) if is_int(value) else None
    except TypeError:  # a floating tensor
        result = None
    if result is None or not least <= result <= most:
        least_only = f" of at least {least:,}" if least > -(1 << 40) else ""
        rule = (
            f" from {least:,} to {most:,}" if most < 1 << 40 or (result is not None and result > most) else least_only
        )
        raise ValueError(f"{name} must be an integer{rule}, not {short(value)}")
    return result


def choice(value: object, name: str, choices: Collection[object], more: str = "") -> None:
    """Raise ValueError if the value is not one of the choices. more: what the message says after them, such as " or None"."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}{more}, not {short(value)}")


def check(holds: object, message: str) -> None:
    """Raise ValueError with this message unless the condition holds."""
    if not holds:
        raise ValueError(message)
