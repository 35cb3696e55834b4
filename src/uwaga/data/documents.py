"""Documents from files of plain text, JSON lines, CSV and parquet, for encoding and for training.

Every error is a DataError whose message begins with the file, and the line or row if there is one. What is read of a file
is bounded by the limits of `uwaga._base.untrusted`.
"""

import codecs
import csv
import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from uwaga._base import untrusted
from uwaga._base.errors import DataError
from uwaga._base.untrusted import DamagedGzipError, Line

MAX_LINE_BYTES = untrusted.LINE_BYTES  # a line is in memory as a whole
CHUNK_BYTES = 2**20  # read at once if a document is a whole file
_PARQUET_ROWS = 256  # read at once
SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".txt", ".txt.gz", ".md", ".md.gz", ".parquet")
_KINDS = {".jsonl": "jsonl", ".csv": "csv", ".txt": "text", ".md": "text", ".parquet": "parquet"}


class InvalidDocumentError(DataError):
    """A document that cannot be read, in a file whose other documents may be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text of a corpus."""

    place: str  # file and line or row, for messages
    pieces: Iterable[str]  # parts of the text, in order; can be iterated over repeatedly
    id: str | None = None
    position: float = 0.0  # the fraction of the file up to its end, from 0 to 1
    error: str | None = None  # why it cannot be read, if invalid documents are kept; its text is empty

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def digest(self) -> bytes:
        """Return the SHA-256 of the text in UTF-8."""
        whole = hashlib.sha256()
        for piece in self.pieces:
            whole.update(piece.encode())
        return whole.digest()

    def length(self) -> int:
        """Return the length in characters."""
        return sum(map(len, self.pieces))


class DocumentFile:
    """The documents of a file, in its order.

    Args:
        path: of the file.
        kind: "text", "jsonl" (a JSON object in each line), "csv" (RFC 4180, the columns' names in the first line) or "parquet"; None: by
            the ending of the name, .txt, .md, .jsonl, .csv (all
            also with .gz after them) or .parquet.
        unit: what a document of plain text is: "line", "paragraph" (up to an empty line) or "file".
        text_field: the field of the text in JSON lines and parquet; "text" by default.
        id_field: the field of a document's id, a string or a whole number; None: "id" if the first document has one; "":
            no ids are read.
        skip_empty: leave out documents of no characters.
        skip_blank: of plain text by lines, leave out those without a character that is not a space.
        keep_invalid: of lines, JSON lines, CSV and parquet, documents that cannot be read are empty, and have the error.

    Raises:
        DataError: the file does not exist, or its name has another ending; while iterating: the file is damaged.
        InvalidDocumentError: while iterating: a line, row or field is invalid.
    """

    def __init__(
        self,
        path: Path,
        *,
        kind: str | None = None,
        unit: str = "line",
        text_field: str | None = None,
        id_field: str | None = None,
        skip_empty: bool = False,
        skip_blank: bool = False,
        keep_invalid: bool = False,
    ) -> None:
        file_status(path)
        self._kind = _kind(path) if kind is None else kind
        if self._kind == "text" and (text_field or id_field):
            raise DataError(f"{path}: lines of plain text have no fields")
        self.path = path
        self._unit, self._skip_empty, self._keep_invalid = unit, skip_empty, keep_invalid
        self._skip_blank = skip_blank
        self._text_field, self._id_field = text_field or "text", "" if self._kind == "text" else id_field

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents. Raises DataError."""
        for document in self._documents():
            if not (self._skip_empty and document.pieces == ("",)):
                yield document

    def _documents(self) -> Iterator[Document]:
        if self._kind == "text" and self._unit == "file":
            yield Document(place=str(self.path), pieces=FileChunks(self.path), position=1.0)
        elif self._kind == "text" and self._unit == "paragraph":
            yield from _paragraphs(self.path)
        else:
            yield from map(self._document, self._records())

    def _records(self) -> "Iterator[Record]":
        if self._kind == "jsonl":
            return json_objects(self.path, keep_invalid=True)
        if self._kind == "csv":
            return csv_rows(self.path)
        if self._kind == "parquet":
            self._find_id(() if self._id_field is not None else _parquet(self.path, ()).names)
            return parquet_rows(self.path, [name for name in (self._text_field, self._id_field) if name])
        records = _line_records(self.path)
        return (x for x in records if not self._skip_blank or x.error or str(x.fields["text"]).strip())

    def _document(self, record: "Record") -> Document:
        """Return the document of a record. Raises InvalidDocumentError, unless invalid documents are kept."""
        place, fields, position, error = record
        try:
            if error is not None:
                raise error
            self._find_id(fields)
            text, id = text_field(place, fields, self._text_field), _id(place, fields, self._id_field)
        except DataError as invalid:
            if not self._keep_invalid:
                raise InvalidDocumentError(str(invalid)) from invalid
            return Document(place=place, pieces=("",), position=position, error=str(invalid).removeprefix(f"{place}: "))
        return Document(place=place, pieces=(text,), id=id, position=position)

    def _find_id(self, names: Iterable[str]) -> None:
        """Set the default of the id field, from the fields of the first document."""
        if self._id_field is None:
            self._id_field = "id" if "id" in names else ""


def lines(path: Path, *, keep_invalid: bool = False) -> Iterator[Line]:
    """Yield all lines of a file. keep_invalid: as in `untrusted.read_lines`.

    Raises DataError if the file does not exist or is empty; without keep_invalid, for a line that is too long or not UTF-8.
    """
    place = f"{path}:1"
    is_empty = True
    try:
        for number, line in enumerate(untrusted.read_lines(path, MAX_LINE_BYTES, keep_invalid=keep_invalid), start=1):
            is_empty, place = False, f"{path}:{number + 1}"
            yield line
    except DamagedGzipError as error:
        raise DataError(f"{place}: {error.reason}") from error
    if is_empty:
        raise DataError(f"{path}: is empty")


class Record(NamedTuple):
    """A row of a file by the names of its fields."""

    place: str
    fields: dict[str, object]
    progress: float  # the fraction of the file that was read
    error: DataError | None = None  # why it has no fields, if invalid rows are kept


def _line_records(path: Path) -> Iterator[Record]:
    size = file_status(path).st_size
    for line in lines(path, keep_invalid=True):
        yield Record(line.place, {"text": line.text}, line.position / size, line.error)


def csv_rows(path: Path) -> Iterator[Record]:
    """Yield the rows of a CSV file that are not blank, by the names in the first row.

    A row that cannot be read has an error: a line that is not UTF-8, quotes that do not match, a field of more than 131,072 characters (such
    as one that is never closed), or another number of fields. Raises DataError as `lines`, and if there are no names of columns.
    """
    size = file_status(path).st_size
    begun: list[Line] = []  # the lines of the row that is being read

    def texts() -> Iterator[str]:
        for line in lines(path, keep_invalid=True):
            begun.append(line)
            yield line.text + "\n"

    rows, names = csv.reader(texts(), strict=True), list[str]()
    while True:
        begun.clear()
        row: list[str] = []
        error: DataError | None = None
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as invalid:
            if not begun:
                return
            error = DataError(f"{begun[0].place}: is not CSV: {invalid}")
        error = next((line.error for line in begun if line.error is not None), error)
        if not row and error is None:
            continue
        place = begun[0].place
        if names:
            if error is None and len(row) != len(names):
                error = DataError(f"{place}: has {len(row)} fields, and the first line {len(names)}")
            fields: dict[str, object] = {} if error is not None else dict(zip(names, row, strict=True))
            yield Record(place, fields, begun[-1].position / size, error)
        elif error is not None:
            raise error
        elif twice := [name for name in row if row.count(name) > 1]:
            raise DataError(f"{place}: column {twice[0]!r} comes twice")
        else:
            names = row


class FileChunks:
    """The text of a whole file as an iterable of strings of bounded size; each iteration reads the file again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[str]:
        """Yield the pieces of the text. Raises DataError if the file is missing, empty or not UTF-8."""
        decoder, chunk, is_empty = codecs.getincrementaldecoder("utf-8-sig")(), b" ", True
        with untrusted.open_decompressed(self._path) as file:
            while chunk:
                chunk = file.read(CHUNK_BYTES)
                try:
                    text = decoder.decode(chunk, final=not chunk)
                except UnicodeDecodeError:
                    deque(lines(self._path), maxlen=0)  # raises an error with the line and the byte
                    raise
                if text:
                    is_empty = False
                    yield text
        if is_empty:
            deque(lines(self._path), maxlen=0)  # the decoder drops a part of a byte-order mark, which is not UTF-8
            raise DataError(f"{self._path}: is empty")


def json_objects(path: Path, *, keep_invalid: bool = False) -> Iterator[Record]:
    """Yield the objects of a file of JSON lines. Raises DataError."""
    size = file_status(path).st_size
    for line in lines(path, keep_invalid=keep_invalid):
        fields: dict[str, object] = {}
        error: DataError | None = line.error
        try:
            fields = {} if error is not None else _json_object(line)
        except DataError as invalid:
            if not keep_invalid:
                raise
            error = invalid
        yield Record(line.place, fields, line.position / size, error)


def _json_object(line: Line) -> dict[str, object]:
    try:
        parsed = untrusted.parse_json(line.text, strict=False)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{line.place}: is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise DataError(f"{line.place}: must be a JSON object, not {type(parsed).__name__}")
    return parsed


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    """Yield the rows of a parquet file, with those of these columns that it has. Raises DataError."""
    result = _parquet(path, columns)
    if not result.count:
        raise DataError(f"{path}: is empty")
    # So that the message about a missing column lists all columns of the file.
    others = {} if set(columns) <= set(result.names) else dict.fromkeys(result.names)
    for number, (place, row) in enumerate(result.rows(_PARQUET_ROWS), start=1):
        yield Record(place, {**others, **row}, number / result.count)


def text_field(place: str, fields: dict[str, object], name: str) -> str:
    """Return a field that must be a string of Unicode characters. Raises DataError."""
    text = _field(place, fields, name)
    if not isinstance(text, str):
        raise DataError(f"{place}: field {name!r} must be a string, not {type(text).__name__}")
    return _unicode(place, name, text)


def _unicode(place: str, name: str, text: str) -> str:
    """Return the text. Raises DataError if UTF-8 cannot write it."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{place}: field {name!r} has a lone surrogate at character {error.start + 1}") from error
    return text


def _id(place: str, fields: dict[str, object], name: str | None) -> str | None:
    if not name:
        return None
    result = _field(place, fields, name)
    if not isinstance(result, str | int) or isinstance(result, bool):
        kind = type(result).__name__
        raise DataError(f"{place}: field {name!r} must be a string or a whole number, not {kind}")
    return _unicode(place, name, str(result))


def _field(place: str, fields: dict[str, object], name: str) -> object:
    if name not in fields:
        raise DataError(f"{place}: there is no field {name!r}; the fields are {', '.join(map(repr, fields)) or 'none'}")
    result = fields[name]
    if isinstance(result, DataError):  # a value of parquet that cannot be read
        raise result
    return result


def _paragraphs(path: Path) -> Iterator[Document]:
    file_size = file_status(path).st_size
    gathered: list[str] = []
    place, size = "", 0
    for line in lines(path):
        if not line.text.strip():
            if gathered:
                yield Document(place=place, pieces=("\n".join(gathered),), position=line.position / file_size)
            gathered, size = [], 0
            continue
        place = place if gathered else line.place
        gathered.append(line.text)
        size += len(line.text)
        if size > MAX_LINE_BYTES:
            raise DataError(f"{place}: the paragraph is longer than {MAX_LINE_BYTES:,} characters")
    if gathered:
        yield Document(place=place, pieces=("\n".join(gathered),), position=1.0)


def file_status(path: Path) -> os.stat_result:
    """Return the status of a file. Raises DataError if it cannot be read."""
    try:
        return untrusted.stat_regular(path)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a directory, not a file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _kind(path: Path) -> str:
    if not path.name.endswith(SUFFIXES):
        raise DataError(f"{path}: the name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return _KINDS[Path(path.name.removesuffix(".gz")).suffix]


def _parquet(path: Path, columns: Iterable[str]) -> untrusted.ParquetRows:
    try:
        return untrusted.ParquetRows(path, columns)
    except ModuleNotFoundError as error:
        raise DataError(f"{path}: parquet files need pyarrow: pip install 'uwaga[encode]'") from error
