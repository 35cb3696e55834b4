"""Files of text, plain or gzip: in lines or in pieces. Every error names the file and the line."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from uwaga.train.errors import DataError

# Bytes of a line at most: so much is in memory at once.
LONGEST_LINE = 2**28
# Bytes that are read at once where no line is asked for.
PIECE = 2**20
_MARK = b"\xef\xbb\xbf"  # of byte order: how some editors begin a file; no part of the text


class Line(NamedTuple):
    """A line without what ends it."""

    place: str  # file:number, for messages
    text: str


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file's bytes, unpacked where its name ends in .gz. Raises DataError, also for what a reader meets on the way."""
    try:
        with path.open("rb") as raw:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the gzip file is damaged: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def lines(path: Path) -> Iterator[Line]:
    """All lines of a file. Raises DataError: no such file, an empty one, a line too long or no UTF-8."""
    number = 0
    with opened(path) as file:
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            place = f"{path}:{number}"
            if len(line) > LONGEST_LINE:
                raise DataError(f"{place}: the line is longer than {LONGEST_LINE:,} bytes")
            line = line.removeprefix(_MARK) if number == 1 else line
            try:
                yield Line(place, line.rstrip(b"\r\n").decode("utf-8"))
            except UnicodeDecodeError as error:
                raise _not_utf8(place, line[error.start], error.start) from error
    if not number:
        raise DataError(f"{path}: is empty")


class Pieces:
    """The text of a whole file in pieces, as often as asked; no more than one piece is in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[str]:
        """Raises DataError: no such file, an empty one, no UTF-8."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        line, column, is_empty = 1, 0, True  # of the first byte that is not decoded yet
        with opened(self._path) as file:
            piece = file.read(PIECE).removeprefix(_MARK)
            while True:
                try:
                    text = decoder.decode(piece, final=not piece)
                except UnicodeDecodeError as error:
                    line, column = _moved(line, column, error.object[: error.start])
                    raise _not_utf8(f"{self._path}:{line}", error.object[error.start], column) from error
                line, column = _moved(line, column, text.encode())
                if text:
                    is_empty = False
                    yield text
                if not piece:
                    break
                piece = file.read(PIECE)
        if is_empty:
            raise DataError(f"{self._path}: is empty")


def _moved(line: int, column: int, read: bytes) -> tuple[int, int]:
    """Where the text goes on after some bytes."""
    newlines = read.count(b"\n")
    return line + newlines, len(read) - read.rfind(b"\n") - 1 if newlines else column + len(read)


def _not_utf8(place: str, byte: int, column: int) -> DataError:
    return DataError(f"{place}: is not UTF-8: byte 0x{byte:02x} at byte {column + 1}")
