"""Arguments of a wrong type, refused by name before another library says something else of them."""

import os
from collections.abc import Iterable
from pathlib import Path

from uwaga._base.terminal import short


def path_of(value: object, name: str) -> Path:
    """The path. Raises ValueError: it is none."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise ValueError(f"{name} must be a string or a path, not {short(value)}")
    return Path(value)


def check_iterable(value: object, name: str, of: str) -> None:
    """Raises ValueError: it is no iterable, or one string."""
    if isinstance(value, str | bytes):
        raise ValueError(f"{name} must be an iterable of {of}, not one string")
    if not isinstance(value, Iterable):
        raise ValueError(f"{name} must be an iterable of {of}, not {short(value)}")
