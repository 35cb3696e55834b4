"""JSON from strangers: bounded in size, without duplicate keys; every error names the file."""

import json
from pathlib import Path
from typing import TypeVar

from uwaga._base.errors import CheckpointError

# A few thousand weights take some hundred kilobytes; this many bytes of JSON become about a gigabyte of Python objects.
LARGEST = 16 * 2**20
_WORDS = {dict: "object", list: "list"}
_T = TypeVar("_T", dict, list)


def read(path: Path, of: type[_T] = dict) -> _T:  # type: ignore[assignment]  # mypy has no defaults of such
    """What a file holds, which must be an object, or where asked a list. Raises CheckpointError."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > LARGEST:
        raise CheckpointError(f"{path} is longer than {LARGEST} bytes of JSON")
    return parse(text, str(path), of)


def parse(text: bytes, where: str, of: type[_T] = dict) -> _T:  # type: ignore[assignment]
    """The same of a text; `where` is what errors call it."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except RecursionError:
        raise CheckpointError(f"{where} is nested too deeply") from None
    except ValueError as error:  # JSON's own, UTF-8's, numbers of thousands of digits, and the two below
        raise CheckpointError(f"{where} is no proper JSON: {error}") from error
    if not isinstance(value, of):
        raise CheckpointError(f"{where} must hold a JSON {_WORDS[of]}, not {type(value).__name__}")
    return value


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        first = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{shown(first)} is there twice")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def shown(name: str) -> str:
    """A name from a file as messages show it: no control characters, which a terminal would obey, and not for ever."""
    text = name if name.isprintable() and name.isascii() else ascii(name)
    return text if len(text) <= 200 else text[:200] + "..."
