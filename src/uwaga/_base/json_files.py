"""Reading JSON from untrusted files: bounded size, no duplicate keys (`uwaga._base.untrusted`). Errors name the file."""

import errno
from pathlib import Path
from typing import TypeVar

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.untrusted import JSON_BYTES as LARGEST

_WORDS = {dict: "object", list: "list"}
_T = TypeVar("_T", dict, list)


def read(path: Path, of: type[_T] = dict) -> _T:  # type: ignore[assignment]  # mypy supports no defaults of type variables
    """The content of a JSON file, of the type `of`: an object (dict) or a list. Raises CheckpointError."""
    result = _read(path, is_needed=True)
    assert result is not None
    return parse(result, str(path), of)


def optional(path: Path, of: type[_T] = dict) -> _T | None:  # type: ignore[assignment]
    """As `read`; None where the file does not exist."""
    result = _read(path, is_needed=False)
    return None if result is None else parse(result, str(path), of)


def parse(text: bytes, where: str, of: type[_T] = dict) -> _T:  # type: ignore[assignment]
    """As `read`, of bytes; `where` names them in errors."""
    try:
        value = untrusted.parse_json(text)
    except RecursionError:
        raise CheckpointError(f"{where} is nested too deeply") from None
    except (
        ValueError
    ) as error:  # invalid JSON or UTF-8, a number with too many digits, or a limit of untrusted.parse_json
        raise CheckpointError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, of):
        raise CheckpointError(f"{where} must contain a JSON {_WORDS[of]}, not {type(value).__name__}")
    return value


def _read(path: Path, *, is_needed: bool) -> bytes | None:
    try:
        return untrusted.read_file(path, LARGEST) if is_needed else untrusted.read_file_if_exists(path, LARGEST)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise CheckpointError(f"{path} is longer than {LARGEST} bytes of JSON") from error
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
