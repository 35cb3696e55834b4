"""Checks of arguments whose type another library would reject without naming them."""

import os
from collections.abc import Iterable
from pathlib import Path

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
