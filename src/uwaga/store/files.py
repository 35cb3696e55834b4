"""Passages of text files in a soft database: a row for each, with its text and where it is from."""

import itertools
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from uwaga._base import untrusted
from uwaga._base.errors import DataError
from uwaga.models.text.corpus import SUFFIXES, DocumentFile, InvalidDocumentError

if TYPE_CHECKING:
    import numpy as np

    from uwaga.models.text.encoder import TextEncoder
    from uwaga.store.database import SoftDatabase

Split = Literal["paragraph", "sentence", "line", "document"]

# How a file of plain text is read; a sentence is in one paragraph.
_UNITS = {"paragraph": "paragraph", "sentence": "paragraph", "line": "line", "document": "file"}
_AT_ONCE = 512  # passages of one transaction
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*")
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")


class AddedFiles(NamedTuple):
    """What `add_files` did."""

    added: int  # passages
    known: int  # passages that were in the database already
    skipped: list[str]  # the place of each document or passage that was left out, and why


class _Passage(NamedTuple):
    text: str
    record: dict[str, Any]


def add_files(
    db: "SoftDatabase",
    files: Iterable[str | os.PathLike[str]],
    encoder: "TextEncoder",
    *,
    split: Split = "paragraph",
    text_field: str | None = None,
    skip_invalid: bool = False,
    progress: Callable[[float], object] | None = None,
) -> AddedFiles:
    """Adds the passages of files that are not in the database. A call that was interrupted is resumed by the same call; a file whose
    content is there already, split in the same way, adds nothing.

    The record of a passage has the fields text, source (the path), document (its id in a file of several), part (its number in the file)
    and file (the content and the way it was split). Passages of several files share a transaction of up to 512.

    Args:
        db: a database whose keys are vectors of `encoder`: made with key_width=encoder.embedding_dim.
        files: paths of .txt, .md, .jsonl, .csv and .parquet files, or folders of them.
        encoder: `encoder_of(db)` gives that of a database.
        split: what a passage is.
        text_field: of the text in .jsonl, .csv and .parquet; None: text.
        skip_invalid: leave out documents that cannot be read or encoded; else the first one raises.
        progress: called with the share that is read, from 0 to 1.

    Raises:
        DataError: a file or document that cannot be read or encoded (InvalidDocumentError: with skip_invalid it would be left out).
        ValueError, SoftDatabaseError: as `SoftDatabase.append`.
    """
    import torch  # not with the module: the command reads its names

    if split not in _UNITS:
        raise ValueError(f"add_files: split must be one of {', '.join(get_args(Split))}, not {split!r}")
    paths = find_files(files)
    stored, known, added = db.counts("file"), 0, 0
    skipped: list[str] | None = [] if skip_invalid else None

    def passages() -> Iterator[_Passage]:
        nonlocal known
        for number, path in enumerate(paths):

            def listener(share: float, number: int = number) -> None:
                if progress is not None:
                    progress((number + share) / len(paths))

            key = f"{_digest(path)}:{split}:{text_field or 'text'}"
            left, count = int(stored.get(key, 0)), 0
            for passage in _passages(path, key, split, text_field, listener, skipped):
                count += 1
                if not left:
                    yield passage
                elif not skip_invalid or _has_tokens(encoder, passage.text):
                    left, known = left - 1, known + 1
            stored[key] = count  # another file may have the same content
            listener(1.0)

    for vectors, records in _encoded(encoder, passages(), skipped):
        db.append(torch.from_numpy(vectors), records=records)
        added += len(records)
    # One that was killed has left small segments, though nothing is added now.
    if added or db.stats()["segments"] > 1:
        db.compact()
    return AddedFiles(added, known, skipped or [])


def find_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files, and those of folders in the order of their names. Raises DataError: a folder without any, or nothing of that name."""
    results = []
    for path in map(Path, paths):
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder")
        inside = sorted(each for each in path.rglob("*") if each.name.endswith(SUFFIXES)) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"{path}: the folder has no file whose name ends in {', '.join(SUFFIXES)}")
        results += inside
    return results


def _has_tokens(encoder: "TextEncoder", text: str) -> bool:
    """Whether a passage can be encoded, and so is in the database."""
    (tokens,) = encoder.tokenizer.encode([(encoder.config.prompt or "") + text], with_offsets=False)
    return len(tokens) > 0


def _digest(path: Path) -> str:
    try:
        return untrusted.sha256(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _passages(
    path: Path,
    key: str,
    split: Split,
    text_field: str | None,
    listener: Callable[[float], None],
    skipped: list[str] | None,
) -> Iterator[_Passage]:
    """The passages of a file. What cannot be read is added to `skipped`; None: it is an error. Raises DataError."""
    part = 0
    documents = DocumentFile(path, unit=_UNITS[split], text_field=text_field, keep_invalid=skipped is not None)
    try:
        for document in documents:
            error = document.error
            if error is None and document.length() > untrusted.LINE_BYTES:
                error = f"is longer than {untrusted.LINE_BYTES:,} characters; split it into paragraphs"
            if error is not None:
                if skipped is None:
                    raise InvalidDocumentError(f"{document.place}: {error}")
                skipped.append(f"{document.place}: {error}")
                continue
            for text in split_text(document.text, split):
                record = {"text": text, "source": str(path), "document": document.id, "part": part, "file": key}
                yield _Passage(text, record)
                part += 1
            listener(document.position)
    except DataError as error:  # of plain text, and of what is not divided into documents: all from there on
        if skipped is None:
            raise
        skipped.append(str(error))


def split_text(text: str, split: Split) -> Iterator[str]:
    """The passages of a text, without white space around them.

    >>> list(split_text("One. Two!\\nThree\\n\\nFour.", "sentence"))
    ['One.', 'Two!', 'Three', 'Four.']
    >>> list(split_text("One. Two!\\nThree\\n\\nFour.", "paragraph"))
    ['One. Two!\\nThree', 'Four.']
    """
    if split == "document":
        parts = [text]
    elif split == "line":
        parts = text.splitlines()
    else:
        parts = _PARAGRAPH_END.split(text)
        if split == "sentence":
            parts = [sentence for part in parts for line in part.splitlines() for sentence in _SENTENCE_END.split(line)]
    return (part.strip() for part in parts if part.strip())


def _encoded(
    encoder: "TextEncoder", passages: Iterator[_Passage], skipped: list[str] | None
) -> Iterator[tuple["np.ndarray", list[dict[str, Any]]]]:
    """Vectors (n, D) and records of passages, in groups. A group of the model is tokenised while another is computed. What cannot be
    encoded is added to `skipped`; None: it is an error. Raises DataError."""
    from uwaga.models.text.report import DocumentError

    waiting: deque[list[_Passage]] = deque()
    finished = 0  # passages

    def texts() -> Iterator[list[str]]:
        while group := list(itertools.islice(passages, _AT_ONCE)):
            waiting.append(group)
            yield [each.text for each in group]

    def reason(record: dict[str, Any], error: DocumentError) -> str:
        return f"{record['source']}: passage {record['part'] + 1}: {error.reason}"

    try:
        for encoded in encoder.encode_groups(texts(), overflow="mean", skip_invalid=skipped is not None):
            group = waiting.popleft()
            invalid = {error.document - finished: error for error in encoded.invalid}
            if skipped is not None:
                skipped += [reason(group[number].record, error) for number, error in invalid.items()]
            records = [passage.record for number, passage in enumerate(group) if number not in invalid]
            finished += len(group)
            if records:
                yield encoded.vectors, records
    except DocumentError as error:
        # Results come in order: the error is in the first group that has none.
        raise InvalidDocumentError(reason(waiting[0][error.document - finished].record, error)) from error
