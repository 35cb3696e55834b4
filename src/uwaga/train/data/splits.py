"""Documents and pairs of the data files, each with its split.

Which are for validation is a function of their content alone, so that new files do not move old documents: those whose SHA-256,
read as a fraction of 2**256, is below data.validation_fraction; of a document's text in UTF-8, or of a pair's source in lower
case, so that all targets of a source are in one split. Texts that are read by windows are split by position instead: their end
is for validation.
"""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from uwaga.data.documents import (
    Document,
    DocumentFile,
    DocumentSlice,
    json_objects,
    lines,
    parquet_rows,
    text_field,
)
from uwaga.train.config import DataConfig
from uwaga.train.errors import DataError

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)
# The files of each split; and of parallel files of pairs "target" and "validation_target".
SplitFiles = Mapping[str, tuple[Path, ...]]


class Pair(NamedTuple):
    """What an encoder reads, and what a decoder shall write."""

    place: str  # file and line or row, for messages
    source: str
    target: str


class SplitDocument(NamedTuple):
    """A document and its split."""

    split: str
    document: Document


class SplitPair(NamedTuple):
    """A pair and its split."""

    split: str
    pair: Pair


def is_validation(digest: bytes, fraction: float) -> bool:
    """
    >>> is_validation(bytes(32), 0.1), is_validation(bytes([128]) + bytes(31), 0.5)
    (True, False)
    """
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def is_validation_source(source: str, fraction: float) -> bool:
    """
    >>> [word for word in ("letters", "sounds", "Sounds", "words") if is_validation_source(word, 0.5)]
    ['letters', 'sounds', 'Sounds']
    """
    return is_validation(hashlib.sha256(source.casefold().encode()).digest(), fraction)


def split_documents(files: SplitFiles, data: DataConfig) -> Iterator[SplitDocument]:
    """All documents with their splits, in the order of the files. Raises DataError."""
    if data.windows and not files[VALIDATION]:
        yield from _split_by_position(files[TRAIN], data)
        return
    for path in files[TRAIN]:
        for document in _documents(path, data):
            held_out = not files[VALIDATION] and is_validation(document.digest(), data.validation_fraction)
            yield SplitDocument(VALIDATION if held_out else TRAIN, document)
    for path in files[VALIDATION]:
        for document in _documents(path, data):
            yield SplitDocument(VALIDATION, document)


def split_pairs(files: SplitFiles, data: DataConfig) -> Iterator[SplitPair]:
    """All pairs with their splits, in the order of the files. Raises DataError."""
    for split, name in ((TRAIN, "target"), (VALIDATION, "validation_target")):
        targets = files[name] or (None,) * len(files[split])
        for path, target in zip(files[split], targets, strict=True):
            for pair in pairs(path, target, data):
                held_out = split == VALIDATION or (
                    not files[VALIDATION] and is_validation_source(pair.source, data.validation_fraction)
                )
                yield SplitPair(VALIDATION if held_out else TRAIN, pair)


def _documents(path: Path, data: DataConfig) -> DocumentFile:
    """Those that are not empty."""
    field = None if data.kind == "text" else data.text_field
    return DocumentFile(path, kind=data.kind, unit=data.document, text_field=field, id_field="", skip_empty=True)


def _split_by_position(paths: tuple[Path, ...], data: DataConfig) -> Iterator[SplitDocument]:
    """The first characters for training and the last fraction of them for validation, as in nanoGPT."""
    total = sum(document.length() for path in paths for document in _documents(path, data))
    edge, begin = int(total * (1 - data.validation_fraction)), 0
    for path in paths:
        for document in _documents(path, data):
            stop, inside = document.length(), min(max(edge - begin, 0), document.length())
            for split, first, last in ((TRAIN, 0, inside), (VALIDATION, inside, stop)):
                if first < last:
                    part = DocumentSlice(document=document, start=first, stop=last)
                    yield SplitDocument(split, Document(place=document.place, pieces=part))
            begin += stop


# Pairs of a source and a target.


def pairs(path: Path, target_path: Path | None, data: DataConfig) -> Iterator[Pair]:
    """The pairs of a file, or of two parallel files. Raises DataError: invalid lines, an empty source or target."""
    removed = str.maketrans("", "", data.remove_characters)
    for pair in _read_pairs(path, target_path, data):
        target = pair.target.translate(removed) if removed else pair.target
        for name, text in (("source", pair.source), ("target", target)):
            if not text.strip():
                raise DataError(f"{pair.place}: the {name} is empty")
        yield pair._replace(target=target)


def _read_pairs(path: Path, target_path: Path | None, data: DataConfig) -> Iterator[Pair]:
    if target_path is not None:
        return _parallel_pairs(path, target_path)
    if data.pair_format in ("jsonl", "parquet"):
        columns = (data.source_field, data.target_field)
        rows = json_objects(path) if data.pair_format == "jsonl" else parquet_rows(path, columns)
        return (Pair(place, *(text_field(place, row, name) for name in columns)) for place, row, _ in rows)
    return _cmudict_pairs(path) if data.pair_format == "cmudict" else _tsv_pairs(path)


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
