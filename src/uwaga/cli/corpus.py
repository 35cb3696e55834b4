"""Documents from a file: JSON lines, plain lines or parquet. Every error says where."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

from uwaga._base import untrusted
from uwaga._base.untrusted import DamagedGzipError, TextFileError

# Rows of a parquet file that are taken at once.
_ROWS = 1024
_KINDS = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz", ".parquet")


class CorpusError(ValueError):
    """A file of documents that cannot be read; the message begins with the file, and the line or row."""


class Document(NamedTuple):
    """One document."""

    place: str  # for messages
    id: str | None
    text: str


class Corpus:
    """The documents of a file, in its order.

    Args:
        path: .jsonl (an object in each line), .txt (a document in each line), both also with .gz behind, or .parquet.
        text: the field of the text; "text" by default.
        id: the field of a name for the document, a string or a whole number; by default "id" where the first has one.

    Raises:
        CorpusError: the file is not there or of another kind, or, from the iteration, something in it is wrong.

    Attributes:
        size, position: how long the file is and how far it is read, in one unit.
    """

    def __init__(self, path: Path, *, text: str | None = None, id: str | None = None) -> None:
        size = _size(path)
        self._kind = next((kind for kind in _KINDS if path.name.endswith(kind)), None)
        if self._kind is None:
            raise CorpusError(f"{path}: the name must end in {', '.join(_KINDS[:-1])} or {_KINDS[-1]}")
        if self._kind.startswith(".txt") and (text or id):
            raise CorpusError(f"{path}: lines of plain text have no fields")
        self.path, self._text, self._id = path, text or "text", id
        self.size, self.position = size, 0

    def __iter__(self) -> Iterator[Document]:
        if self._kind == ".parquet":
            return self._rows()
        return self._plain() if cast(str, self._kind).startswith(".txt") else self._objects()

    def _plain(self) -> Iterator[Document]:
        for place, line in self._lines():
            yield Document(place, None, line)

    def _objects(self) -> Iterator[Document]:
        for place, line in self._lines():
            try:
                found = untrusted.parse_json(line, strict=False)
            except (ValueError, RecursionError) as error:
                raise CorpusError(f"{place}: is not JSON: {error}") from error
            if not isinstance(found, dict):
                raise CorpusError(f"{place}: must be a JSON object, not {type(found).__name__}")
            self._find_id(list(found))
            yield self._document(place, found)

    def _rows(self) -> Iterator[Document]:
        with _corpus_errors():
            names = untrusted.ParquetRows(self.path, ()).names
            self._find_id(names)
            columns = [name for name in (self._text, self._id) if name]
            found = untrusted.ParquetRows(self.path, columns)
            self.size = max(1, found.count)
            for number, (place, row) in enumerate(found.rows(_ROWS), start=1):
                yield self._document(place, row if set(columns) <= row.keys() else dict.fromkeys(names) | row)
                self.position = number

    def _find_id(self, names: Sequence[str]) -> None:
        """The default, decided by the first document: "" from then on where it has none."""
        if self._id is None:
            self._id = "id" if "id" in names else ""

    def _document(self, place: str, found: dict[str, object]) -> Document:
        text = self._field(place, found, self._text)
        if not isinstance(text, str):
            raise CorpusError(f"{place}: field {self._text!r} must be a string, not {type(text).__name__}")
        if not self._id:
            return Document(place, None, text)
        name = self._field(place, found, self._id)
        if not isinstance(name, str | int) or isinstance(name, bool):
            kind = type(name).__name__
            raise CorpusError(f"{place}: field {self._id!r} must be a string or a whole number, not {kind}")
        return Document(place, str(name), text)

    def _field(self, place: str, found: dict[str, object], name: str) -> object:
        if name not in found:
            raise CorpusError(f"{place}: there is no field {name!r}, but {', '.join(map(repr, found)) or 'none'}")
        return found[name]

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Places and lines, without what ends them."""
        place = f"{self.path}:1"
        with _corpus_errors():
            try:
                for number, line in enumerate(untrusted.read_lines(self.path), start=1):
                    self.position, place = line.position, f"{self.path}:{number + 1}"
                    yield line.place, line.text
            except DamagedGzipError as error:
                raise CorpusError(f"{place}: {error.reason}") from error


def digest(documents: Sequence[Document]) -> str:
    """SHA-256 over names and texts."""
    whole = hashlib.sha256()
    for document in documents:
        for part in (document.id or "", document.text):
            written = part.encode("utf-8", "surrogatepass")
            whole.update(len(written).to_bytes(8, "little") + written)
    return whole.hexdigest()


def _size(path: Path) -> int:
    try:
        return untrusted.stat_regular(path).st_size
    except FileNotFoundError:
        raise CorpusError(f"{path}: there is no such file") from None
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from error


@contextmanager
def _corpus_errors() -> Iterator[None]:
    try:
        yield
    except TextFileError as error:
        raise CorpusError(str(error)) from error
