"""Which documents and pairs of data files are for validation, and the pairs of a source and a target.

What is for validation is a function of the content alone, so that new files do not move old documents: those whose SHA-256,
read as a fraction of 2**256, is below a fraction; of a document's text in UTF-8, or of a pair's source in lower case, so that all
targets of a source are in one split. Or a text is split by position: its end is for validation.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, TypeVar

from uwaga._base.errors import DataError
from uwaga.data.documents import Document, json_objects, lines, parquet_rows, text_field

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)


class Pair(NamedTuple):
    """What an encoder reads, and what a decoder shall write."""

    place: str  # file and line or row, for messages
    source: str
    target: str

    def digest(self) -> bytes:
        """Return the SHA-256 of the source in lower case."""
        return hashlib.sha256(self.source.casefold().encode()).digest()


_ItemT = TypeVar("_ItemT", Document, Pair)
_FileT = TypeVar("_FileT")


def split(
    train: Iterable[_FileT], validation: Sequence[_FileT], read: Callable[[_FileT], Iterable[_ItemT]], fraction: float
) -> Iterator[tuple[str, _ItemT]]:
    """Yield all documents or pairs with their splits, in the order of the files. Without files for validation, it gets a fraction."""
    for name, files in ((TRAIN, train), (VALIDATION, validation)):
        for file in files:
            for item in read(file):
                held_out = name == VALIDATION or (not validation and is_validation(item.digest(), fraction))
                yield VALIDATION if held_out else TRAIN, item


def is_validation(digest: bytes, fraction: float) -> bool:
    """
    >>> is_validation(bytes(32), 0.1), is_validation(bytes([128]) + bytes(31), 0.5)
    (True, False)
    >>> [word for word in ("letters", "sounds", "Sounds", "words") if is_validation(Pair("", word, "").digest(), 0.5)]
    ['letters', 'sounds', 'Sounds']
    """
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def split_by_position(
    files: Sequence[Path], read: Callable[[Path], Iterable[Document]], fraction: float
) -> Iterator[tuple[str, Document]]:
    """Yield the first characters for training and the last fraction for validation, as nanoGPT does. Pieces can be read once."""
    total = sum(document.length() for path in files for document in read(path))
    edge, begin = int(total * (1 - fraction)), 0
    for path in files:
        for document in read(path):
            stop, inside = document.length(), min(max(edge - begin, 0), document.length())
            for name, first, last in ((TRAIN, 0, inside), (VALIDATION, inside, stop)):
                if first < last:
                    yield name, Document(place=document.place, pieces=_characters(document.pieces, first, last))
            begin += stop


def _characters(pieces: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """Yield the characters from start up to stop."""
    begin = 0
    for piece in pieces:
        if part := piece[max(start - begin, 0) : max(stop - begin, 0)]:
            yield part
        begin += len(piece)
        if begin >= stop:
            return


def pairs(
    path: Path,
    target_path: Path | None = None,
    *,
    pair_format: str = "tsv",
    source_field: str = "source",
    target_field: str = "target",
    remove_characters: str = "",
) -> Iterator[Pair]:
    """Yield the pairs of a file, or of two parallel files.

    Args:
        path, target_path: line n of the second one is the target of line n of the first.
        pair_format: of one file: "tsv", "cmudict", "jsonl" or "parquet".
        source_field, target_field: of JSON lines and parquet.
        remove_characters: from targets.

    Raises:
        DataError: invalid lines, an empty source or target.
    """
    removed = str.maketrans("", "", remove_characters)
    if target_path is not None:
        found = _parallel_pairs(path, target_path)
    elif pair_format in ("jsonl", "parquet"):
        columns = (source_field, target_field)
        rows = json_objects(path) if pair_format == "jsonl" else parquet_rows(path, columns)
        found = (Pair(place, *(text_field(place, row, name) for name in columns)) for place, row, *_ in rows)
    else:
        found = _cmudict_pairs(path) if pair_format == "cmudict" else _tsv_pairs(path)
    for place, source, target in found:
        pair = Pair(place, source, target.translate(removed) if removed else target)
        for name, text in zip(("source", "target"), pair[1:], strict=True):
            if not text.strip():
                raise DataError(f"{place}: the {name} is empty")
        yield pair


def _tsv_pairs(path: Path) -> Iterator[Pair]:
    for place, line, *_ in lines(path):
        fields = line.split("\t")
        if len(fields) != 2:
            raise DataError(f"{place}: a pair must have 2 fields, separated by a tab, not {len(fields)}")
        yield Pair(place, *fields)


def _cmudict_pairs(path: Path) -> Iterator[Pair]:
    for place, line, *_ in lines(path):
        fields = line.split()
        if len(fields) < 3 or not (fields[1].isascii() and fields[1].isdigit()):
            raise DataError(f"{place}: must be a word, a whole number and phonemes, separated by spaces")
        yield Pair(place, fields[0], " ".join(fields[2:]))


def _parallel_pairs(path: Path, target_path: Path) -> Iterator[Pair]:
    for count, (source, target) in enumerate(zip_longest(lines(path), lines(target_path))):
        if source is None or target is None:
            longer, shorter = (target_path, path) if source is None else (path, target_path)
            raise DataError(
                f"{longer}:{count + 1}: there is no such line in {shorter}, which ends after {count}: "
                "line n of one file must answer line n of the other"
            )
        yield Pair(source.place, source.text, target.text)
