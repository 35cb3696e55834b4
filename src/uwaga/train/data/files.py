"""Files of text, plain or gzip: in lines or in pieces. Every error names the file and the line."""

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from uwaga._base import untrusted
from uwaga._base.untrusted import DecompressedFile, Line, TextFileError
from uwaga.train.errors import DataError

# Bytes of a line at most: so much is in memory at once.
LONGEST_LINE = untrusted.LINE_BYTES
# Bytes that are read at once where no line is asked for.
PIECE = 2**20


@contextmanager
def data_errors() -> Iterator[None]:
    """What reading a file of text raises, as DataError."""
    try:
        yield
    except TextFileError as error:
        raise DataError(str(error)) from error


@contextmanager
def opened(path: Path) -> Iterator[DecompressedFile]:
    """A file's bytes, unpacked where its name ends in .gz. Raises DataError, also for what a reader meets on the way."""
    with data_errors(), untrusted.open_decompressed(path) as file:
        yield file


def lines(path: Path) -> Iterator[Line]:
    """All lines of a file. Raises DataError: no such file, an empty one, a line too long or no UTF-8."""
    is_empty = True
    with data_errors():
        for line in untrusted.read_lines(path, LONGEST_LINE):
            is_empty = False
            yield line
    if is_empty:
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
            piece = untrusted.strip_byte_order_mark(file.read(PIECE))
            while True:
                try:
                    text = decoder.decode(piece, final=not piece)
                except UnicodeDecodeError as error:
                    line, column = _moved(line, column, error.object[: error.start])
                    place = f"{self._path}:{line}"
                    raise untrusted.utf8_error(place, error.object[error.start], column) from error
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
