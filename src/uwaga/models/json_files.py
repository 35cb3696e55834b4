"""JSON from untrusted files: bounded, without duplicate keys (`uwaga._base.untrusted`); every error names the file."""

import errno
from pathlib import Path
from typing import TypeVar

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.untrusted import JSON_BYTES as LARGEST

_WORDS = {dict: "object", list: "list"}
_T = TypeVar("_T", dict, list)


def read(path: Path, of: type[_T] = dict) -> _T:  # type: ignore[assignment]  # mypy has no defaults of such
    """What a file holds, which must be an object, or where asked a list. Raises CheckpointError."""
    found = _read(path, is_needed=True)
    assert found is not None
    return parse(found, str(path), of)


def optional(path: Path, of: type[_T] = dict) -> _T | None:  # type: ignore[assignment]
    """The same; None where there is no such file."""
    found = _read(path, is_needed=False)
    return None if found is None else parse(found, str(path), of)


def parse(text: bytes, where: str, of: type[_T] = dict) -> _T:  # type: ignore[assignment]
    """The same of a text; `where` is what errors call it."""
    try:
        value = untrusted.parse_json(text)
    except RecursionError:
        raise CheckpointError(f"{where} is nested too deeply") from None
    except ValueError as error:  # JSON's own, UTF-8's, numbers of thousands of digits, and those of reading
        raise CheckpointError(f"{where} is no proper JSON: {error}") from error
    if not isinstance(value, of):
        raise CheckpointError(f"{where} must hold a JSON {_WORDS[of]}, not {type(value).__name__}")
    return value


def _read(path: Path, *, is_needed: bool) -> bytes | None:
    try:
        return untrusted.read_file(path, LARGEST) if is_needed else untrusted.read_file_if_exists(path, LARGEST)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise CheckpointError(f"{path} is longer than {LARGEST} bytes of JSON") from error
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
