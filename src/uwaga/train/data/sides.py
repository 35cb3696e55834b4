"""Which documents are for validation: told by their content alone, so that new files do not move old documents.

The SHA-256 of a document's text in UTF-8, or of a pair's source in small letters (all answers to a source stay on one side),
read as a fraction of 2**256, is below the share. In windows of one long text it is the end of the text instead.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from uwaga.models.text.corpus import Document, DocumentFile, DocumentSlice
from uwaga.train.data.pairs import Pair, pairs
from uwaga.train.sections import DataConfig

TRAIN, VALIDATION = "train", "validation"
SIDES = (TRAIN, VALIDATION)


class Sided(NamedTuple):
    """A document and its side."""

    side: str
    document: Document


class SidedPair(NamedTuple):
    """A pair and its side."""

    side: str
    pair: Pair


Places = Mapping[
    str, tuple[Path, ...]
]  # the files of each side, and "target" and "validation_target" where they are pairs


def is_valid(digest: bytes, share: float) -> bool:
    """
    >>> is_valid(bytes(32), 0.1), is_valid(bytes([128]) + bytes(31), 0.5)
    (True, False)
    """
    return int.from_bytes(digest[:8], "big") < share * 2**64


def is_valid_source(source: str, share: float) -> bool:
    """
    >>> [word for word in ("letters", "sounds", "Sounds", "words") if is_valid_source(word, 0.5)]
    ['letters', 'sounds', 'Sounds']
    """
    return is_valid(hashlib.sha256(source.casefold().encode()).digest(), share)


def sided_documents(places: Places, data: DataConfig) -> Iterator[Sided]:
    """All documents with their sides, in the order of the files. Raises DataError."""
    if data.windows and not places[VALIDATION]:
        yield from _by_position(places[TRAIN], data)
        return
    for path in places[TRAIN]:
        for document in _documents(path, data):
            held = not places[VALIDATION] and is_valid(document.digest(), data.validation_fraction)
            yield Sided(VALIDATION if held else TRAIN, document)
    for path in places[VALIDATION]:
        for document in _documents(path, data):
            yield Sided(VALIDATION, document)


def sided_pairs(places: Places, data: DataConfig) -> Iterator[SidedPair]:
    """The same of pairs."""
    for side, answers in ((TRAIN, "target"), (VALIDATION, "validation_target")):
        targets = places[answers] or (None,) * len(places[side])
        for path, target in zip(places[side], targets, strict=True):
            for pair in pairs(path, target, data):
                held = side == VALIDATION or (
                    not places[VALIDATION] and is_valid_source(pair.source, data.validation_fraction)
                )
                yield SidedPair(VALIDATION if held else TRAIN, pair)


def _documents(path: Path, data: DataConfig) -> DocumentFile:
    """Those that are not empty."""
    field = None if data.kind == "text" else data.text_field
    return DocumentFile(path, kind=data.kind, unit=data.document, text_field=field, id_field="", skip_empty=True)


def _by_position(paths: tuple[Path, ...], data: DataConfig) -> Iterator[Sided]:
    """The first characters for training, and the last share of them for validation, as nanoGPT splits."""
    total = sum(document.length() for path in paths for document in _documents(path, data))
    edge, begin = int(total * (1 - data.validation_fraction)), 0
    for path in paths:
        for document in _documents(path, data):
            stop, inside = document.length(), min(max(edge - begin, 0), document.length())
            for side, first, last in ((TRAIN, 0, inside), (VALIDATION, inside, stop)):
                if first < last:
                    part = DocumentSlice(document=document, start=first, stop=last)
                    yield Sided(side, Document(place=document.place, pieces=part))
            begin += stop
