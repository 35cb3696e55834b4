"""Documents from files of text, JSON lines and parquet."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from uwaga._base import untrusted
from uwaga.train.data.files import LONGEST_LINE, Pieces, data_errors, lines
from uwaga.train.errors import DataError
from uwaga.train.sections import DataConfig

# Rows of a parquet file that are taken at once.
_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text that is a row's only world: no row reads two."""

    place: str  # for messages
    pieces: Iterable[str]  # one after the other they are the text; can be read again

    def digest(self) -> bytes:
        """SHA-256 of the text."""
        whole = hashlib.sha256()
        for piece in self.pieces:
            whole.update(piece.encode())
        return whole.digest()

    def length(self) -> int:
        """In characters."""
        return sum(map(len, self.pieces))


@dataclass(frozen=True, kw_only=True)
class Part:
    """The characters from start up to stop of a document, as pieces."""

    document: Document
    start: int
    stop: int

    def __iter__(self) -> Iterator[str]:
        begin = 0
        for piece in self.document.pieces:
            if part := piece[max(self.start - begin, 0) : max(self.stop - begin, 0)]:
                yield part
            begin += len(piece)
            if begin >= self.stop:
                return


def documents(path: Path, data: DataConfig) -> Iterator[Document]:
    """The documents of a file that hold anything. Raises DataError."""
    if data.kind == "jsonl":
        return _told(_rows(json_lines(path), data.text_field))
    if data.kind == "parquet":
        return _told(_rows(parquet_rows(path, (data.text_field,)), data.text_field))
    if data.document == "file":
        return iter((Document(place=str(path), pieces=Pieces(path)),))
    return _told((line.place, line.text) for line in lines(path)) if data.document == "line" else _paragraphs(path)


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Places and objects. Raises DataError."""
    for place, line, _ in lines(path):
        try:
            found = untrusted.parse_json(line, strict=False)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise DataError(f"{place}: must be a JSON object, not {type(found).__name__}")
        yield place, found


def parquet_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, object]]]:
    """Places and rows. Raises DataError."""
    try:
        with data_errors():
            found = untrusted.ParquetRows(path, columns)
            if not found.count:
                raise DataError(f"{path}: is empty")
            yield from found.rows(_ROWS)
    except ModuleNotFoundError as error:
        raise DataError(f"{path}: parquet files need pyarrow: pip install 'uwaga[train]'") from error


def text_field(place: str, row: dict[str, object], name: str) -> str:
    """A field that must be a string. Raises DataError."""
    if name not in row:
        raise DataError(f"{place}: there is no field {name!r}, but {', '.join(map(repr, row)) or 'none'}")
    text = row[name]
    if not isinstance(text, str):
        raise DataError(f"{place}: field {name!r} must be a string, not {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{place}: field {name!r} has half a surrogate pair at character {error.start + 1}"
            ) from error
    return text


def _rows(rows: Iterable[tuple[str, dict[str, object]]], field: str) -> Iterator[tuple[str, str]]:
    for place, row in rows:
        yield place, text_field(place, row, field)


def _told(texts: Iterable[tuple[str, str]]) -> Iterator[Document]:
    """Without the empty ones."""
    for place, text in texts:
        if text:
            yield Document(place=place, pieces=(text,))


def _paragraphs(path: Path) -> Iterator[Document]:
    gathered: list[str] = []
    place, size = "", 0
    for line in lines(path):
        if not line.text.strip():
            yield from _joined(place, gathered)
            gathered, size = [], 0
            continue
        place = place if gathered else line.place
        gathered.append(line.text)
        size += len(line.text)
        if size > LONGEST_LINE:
            raise DataError(f"{place}: the paragraph is longer than {LONGEST_LINE:,} characters")
    yield from _joined(place, gathered)


def _joined(place: str, gathered: list[str]) -> Iterator[Document]:
    if gathered:
        yield Document(place=place, pieces=("\n".join(gathered),))
