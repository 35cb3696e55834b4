"""Pairs of a source and a target: tab-separated, as in CMUdict, JSON lines, parquet, or two files side by side."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from uwaga.models.text.corpus import json_objects, lines, parquet_rows, text_field
from uwaga.train.errors import DataError
from uwaga.train.sections import DataConfig


class Pair(NamedTuple):
    """What an encoder reads and a decoder answers."""

    place: str  # for messages
    source: str
    target: str


def pairs(path: Path, answers: Path | None, data: DataConfig) -> Iterator[Pair]:
    """The pairs of a file, or of two. Raises DataError, also where a side is empty."""
    dropped = str.maketrans("", "", data.remove_characters)
    for pair in _read(path, answers, data):
        target = pair.target.translate(dropped) if dropped else pair.target
        for side, text in (("source", pair.source), ("target", target)):
            if not text.strip():
                raise DataError(f"{pair.place}: the {side} is empty")
        yield pair._replace(target=target)


def _read(path: Path, answers: Path | None, data: DataConfig) -> Iterator[Pair]:
    if answers is not None:
        return _parallel(path, answers)
    if data.pair_format in ("jsonl", "parquet"):
        columns = (data.source_field, data.target_field)
        rows = json_objects(path) if data.pair_format == "jsonl" else parquet_rows(path, columns)
        return (Pair(place, *(text_field(place, row, name) for name in columns)) for place, row, _ in rows)
    return _cmudict(path) if data.pair_format == "cmudict" else _tabs(path)


def _tabs(path: Path) -> Iterator[Pair]:
    for place, line, _ in lines(path):
        fields = line.split("\t")
        if len(fields) != 2:
            count = f"{len(fields)} field{'s' if len(fields) > 1 else ''}"
            raise DataError(f"{place}: a pair is 2 fields with a tab between them, and here {_is(len(fields))} {count}")
        yield Pair(place, *fields)


def _cmudict(path: Path) -> Iterator[Pair]:
    for place, line, _ in lines(path):
        fields = line.split()
        if len(fields) < 3 or not (fields[1].isascii() and fields[1].isdigit()):
            raise DataError(f"{place}: must be a word, a whole number and phonemes, with spaces between them")
        yield Pair(place, fields[0], " ".join(fields[2:]))


def _parallel(path: Path, answers: Path) -> Iterator[Pair]:
    for count, (source, target) in enumerate(zip_longest(lines(path), lines(answers))):
        if source is None or target is None:
            longer, shorter = (answers, path) if source is None else (path, answers)
            raise DataError(
                f"{longer}:{count + 1}: there is no such line in {shorter}, which ends after {count}: "
                "line n of one file must answer line n of the other"
            )
        yield Pair(source.place, source.text, target.text)


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
