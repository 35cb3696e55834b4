"""The texts that the arguments of a command name: a text itself, a file, or standard input."""

import re
import sys
from pathlib import Path

from uwaga._base import untrusted
from uwaga.integrations.view_text import RecordError

# Not meant as a text: a path, or a file name with the extension of a text file.
_LIKE_A_FILE = re.compile(r"\S*[/\\]\S*|\S+\.(?:txt|md|rst|tex|html?|json|csv|log|py|text)", re.IGNORECASE)


def read_prompt_text(argument: str) -> str:
    """The text of an argument: of stdin for "-", of the file at a path, else the argument itself. Raises RecordError."""
    if argument == "-":
        return _decoded(_read(argument), "stdin")
    path = Path(argument)
    try:
        is_file, is_folder = path.is_file(), bool(argument) and path.is_dir()  # "" would be the current directory
    except (OSError, ValueError):  # too long for a path, or with a character that paths cannot have
        is_file = is_folder = False
    if is_file:
        return _decoded(_read(argument), argument)
    if is_folder:
        raise RecordError(f"{argument} is a directory, not a text or a file")
    if _LIKE_A_FILE.fullmatch(argument):
        raise RecordError(f"there is no file {argument}")
    try:
        argument.encode()  # bytes that are not UTF-8 arrive as lone surrogates
    except UnicodeError as error:
        raise RecordError("the text is not valid UTF-8") from error
    return argument


def _read(argument: str) -> bytes:
    try:
        if argument == "-":
            return untrusted.read_stream(sys.stdin.buffer, "stdin", untrusted.LINE_BYTES)
        return untrusted.read_file(Path(argument), untrusted.LINE_BYTES)
    except OSError as error:
        raise RecordError(f"{error.filename} cannot be read: {error.strerror}") from error


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeError as error:
        raise RecordError(f"{name} is not valid UTF-8") from error
