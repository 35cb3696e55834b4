"""Passages of text files in a soft database: a row for each, with its text and where it is from."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from uwaga._base import untrusted
from uwaga._base.arguments import check_iterable
from uwaga._base.errors import DataError
from uwaga.data.documents import SUFFIXES, DocumentFile, InvalidDocumentError
from uwaga.data.passages import SPLITS, Span, Split, split_spans
from uwaga.store.encoders import check_database, check_encoder

if TYPE_CHECKING:
    from torch import Tensor

    from uwaga.encode.encoder import TextEncoder
    from uwaga.encode.inference import Encoded
    from uwaga.ops.ragged import Ragged
    from uwaga.store.database import SoftDatabase
    from uwaga.store.token_database import TokenDatabase

# How a file of plain text is read; a sentence is in one paragraph.
_UNITS = {"paragraph": "paragraph", "sentence": "paragraph", "line": "line", "document": "file"}
_AT_ONCE = 512  # passages of one transaction


class AddedFiles(NamedTuple):
    """What `add_files` did."""

    added: int  # passages
    known: int  # passages that were in the database already
    skipped: list[str]  # the place of each document or passage that was left out, and why


class _Document(NamedTuple):
    """A text whose passages get their vectors in one pass over it."""

    text: str
    spans: list[Span]
    records: list[dict[str, Any]]  # of the passages
    known: int  # the first so many passages are in the database already
    share: tuple[float, float] = (0.0, 0.0)  # of all files up to its end; of that, what was in the database already


def add_files(
    db: "SoftDatabase | TokenDatabase",
    files: Iterable[str | os.PathLike[str]],
    encoder: "TextEncoder",
    *,
    split: Split = "paragraph",
    late_chunking: bool = False,
    text_field: str | None = None,
    skip_invalid: bool = False,
    progress: Callable[[float, float], object] | None = None,
) -> AddedFiles:
    """Adds the passages of files that are not in the database. A call that was interrupted is resumed by the same call; a file whose
    content is there already, split in the same way, adds nothing.

    The record of a passage has the fields text, source (the path), document (its id in a file of several), part (its number in the file)
    and file (the content and the way it was split). Passages of several files share a transaction of up to 512.

    Args:
        db: a database whose keys are vectors of `encoder`: made with key_width=encoder.embedding_dim; or a TokenDatabase of a ColBERT
            model, made with that width. A passage that is longer than the model has the vectors of all its windows there.
        files: paths of .txt, .md, .jsonl, .csv and .parquet files, or folders of them.
        encoder: `encoder_of(db)` gives that of a database.
        split: what a passage is.
        late_chunking: the vector of a passage is made with its whole document in sight (`TextEncoder.encode` with spans); documents longer
            than the model are read in windows that share a quarter of its tokens. A file of plain text is one document.
        text_field: of the text in .jsonl, .csv and .parquet; None: text.
        skip_invalid: leave out documents that cannot be read or encoded; else the first one raises.
        progress: called with the share that is added, from 0 to 1, and with the part of it that was in the database already.

    Raises:
        DataError: a file or document that cannot be read or encoded (InvalidDocumentError: with skip_invalid it would be left out).
        ValueError, SoftDatabaseError: as `SoftDatabase.append`; late chunking with a model whose vector is the state of one token.
    """
    check_database("add_files", db)
    check_encoder("add_files", encoder)
    check_iterable(files, "add_files: files", "paths")
    if split not in SPLITS:
        raise ValueError(f"add_files: split must be one of {', '.join(SPLITS)}, not {split!r}")
    paths = find_files(files)
    stored, known, added = db.counts("file"), 0, 0
    skipped: list[str] | None = [] if skip_invalid else None

    def documents() -> Iterator[_Document]:
        """Those that have a passage which is not in the database."""
        nonlocal known
        at, earlier, is_resuming = 0.0, 0.0, True
        for number, path in enumerate(paths):
            try:
                key = f"{_digest(path)}:{split}:{text_field or 'text'}" + (":late" if late_chunking else "")
            except InvalidDocumentError as error:
                if skipped is None:
                    raise
                skipped.append(str(error))
                continue
            left, count = int(stored.get(key, 0)), 0
            for document in _documents(path, key, split, text_field, skipped, late_chunking=late_chunking):
                before, at = at, (number + document.share[0]) / len(paths)
                count += len(document.spans)
                if left and (not skip_invalid or _has_tokens(encoder, document)):
                    here = min(left, len(document.spans))
                    left, known = left - here, known + here
                    document = document._replace(known=here)
                if document.known < len(document.spans):
                    is_resuming = False
                    yield document._replace(share=(at, earlier))
                    continue
                earlier += at - before
                if progress is not None and is_resuming:
                    progress(at, at)
            stored[key] = count  # another file may have the same content

    if encoder.has_token_vectors != db.has_tokens:
        raise ValueError(
            "add_files: a ColBERT model, which gives a vector to every token, needs a TokenDatabase, and no other model has one"
        )
    if late_chunking and db.has_tokens:
        raise ValueError(
            "add_files: late chunking gives one vector to a passage, and a TokenDatabase has one for every token"
        )
    for vectors, records, share in _encoded(encoder, documents(), skipped, late_chunking=late_chunking):
        db.append(vectors, records=records)  # type: ignore[arg-type]
        added += len(records)
        if progress is not None:
            progress(*share)
    if progress is not None:
        progress(1.0, 0.0)
    # One that was killed has left small segments, though nothing is added now.
    if added or db.stats()["segments"] > 1:
        db.compact()
    return AddedFiles(added, known, skipped or [])


def find_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files, and those of folders in the order of their names. Raises DataError: a folder without any, or nothing of that name."""
    results = []
    for path in map(Path, paths):
        if not os.path.lexists(path):
            raise DataError(f"{path}: there is no such file or folder")
        inside = [path]
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.name.endswith(SUFFIXES) and not each.is_dir())
        if not inside:
            raise DataError(f"{path}: the folder has no file whose name ends in {', '.join(SUFFIXES)}")
        results += inside
    return results


def _has_tokens(encoder: "TextEncoder", document: _Document) -> bool:
    """Whether all passages of a document can be encoded, so that they are in the database."""
    from uwaga.encode.preprocessing import span_tokens

    prompt = encoder.config.prompt or ""
    (tokens,) = encoder.tokenizer.encode([prompt + document.text], with_offsets=True)
    if len(document.spans) == 1:
        return len(tokens) > 0
    return not isinstance(span_tokens(document.text, document.spans, tokens.offsets, len(prompt)), str)


def _digest(path: Path) -> str:
    """Raises InvalidDocumentError: it is no file that can be read, or its name cannot be in a record."""
    try:
        str(path).encode()
        return untrusted.sha256(path)
    except UnicodeEncodeError as error:
        raise InvalidDocumentError(
            f"{path}: its name is not UTF-8, which a record needs for its source; rename it"
        ) from error
    except OSError as error:
        raise InvalidDocumentError(f"{path}: cannot be read: {error.strerror or error}") from error


def _documents(
    path: Path,
    key: str,
    split: Split,
    text_field: str | None,
    skipped: list[str] | None,
    *,
    late_chunking: bool,
) -> Iterator[_Document]:
    """The documents of a file with their passages, or each passage as a document of its own. What cannot be read is added to `skipped`;
    None: it is an error. Raises DataError."""
    part = 0
    documents = DocumentFile(
        path, unit="file" if late_chunking else _UNITS[split], text_field=text_field, keep_invalid=skipped is not None
    )
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
            text = document.text
            spans = split_spans(text, split)
            records = [
                {
                    "text": text[start:stop].strip(),
                    "source": str(path),
                    "document": document.id,
                    "part": part + number,
                    "file": key,
                }
                for number, (start, stop) in enumerate(spans)
            ]
            part += len(spans)
            if late_chunking and spans:
                yield _Document(text, spans, records, 0, (document.position, 0.0))
            elif not late_chunking:
                for record in records:
                    passage = str(record["text"])
                    yield _Document(passage, [(0, len(passage))], [record], 0, (document.position, 0.0))
    except DataError as error:  # of plain text, and of what is not divided into documents: all from there on
        if skipped is None:
            raise
        skipped.append(str(error))


def _encoded(
    encoder: "TextEncoder", documents: Iterator[_Document], skipped: list[str] | None, *, late_chunking: bool
) -> Iterator[tuple["Tensor | Ragged", list[dict[str, Any]], tuple[float, float]]]:
    """Vectors (n, D), or those of the tokens of n passages, and records of the passages that are not known, and the share of the last one, in groups. A group of the model is tokenised while another is
    computed. What cannot be encoded is added to `skipped`; None: it is an error. Raises DataError."""
    import torch  # not with the module: the command reads its names

    from uwaga.encode.preprocessing import groups
    from uwaga.encode.report import DocumentError

    waiting: dict[int, _Document] = {}  # by number

    def texts() -> Iterator[list[str]]:
        numbers = itertools.count()
        for group in groups(documents, lambda each: len(each.text), max_documents=_AT_ONCE):
            waiting.update((next(numbers), document) for document in group)
            yield [each.text for each in group]

    def reason(error: DocumentError) -> str:
        record = waiting[error.document].records[0]
        return f"{record['source']}: passage {record['part'] + 1}: {error.reason}"

    options: dict[str, Any] = {"overflow": "mean"}
    if encoder.has_token_vectors:
        options = {"output": "tokens", "overflow": "windows", "task": "document"}
    if late_chunking:
        overlap = encoder.max_tokens // 4
        options = {"overflow": "windows", "overlap": overlap, "spans": lambda number, _: waiting[number].spans}
    try:
        for encoded in encoder.stream(texts(), skip_invalid=skipped is not None, **options):
            if skipped is not None:
                skipped += [reason(error) for error in encoded.invalid]
            listed = list(dict.fromkeys(encoded.report.document.tolist()))
            is_new = [n >= waiting[each].known for each in listed for n in range(len(waiting[each].spans))]
            records = [record for each in listed for record in waiting[each].records[waiting[each].known :]]
            share = (0.0, 0.0)
            for number in (*listed, *(error.document for error in encoded.invalid)):
                share = max(share, waiting.pop(number).share)
            if records and encoded.lengths is None:
                yield encoded.values[torch.tensor(is_new)], records, share
            elif records:
                yield _of_passages(encoded), records, share
    except DocumentError as error:
        raise InvalidDocumentError(reason(error)) from error


def _of_passages(encoded: "Encoded") -> "Ragged":
    """The vectors of each passage: those of all its windows together."""
    import torch

    from uwaga.ops.ragged import Ragged

    counts = torch.zeros(int(encoded.report.is_last.sum()), dtype=torch.int64)
    passage = torch.from_numpy(encoded.report.is_last).cumsum(0) - torch.from_numpy(encoded.report.is_last).long()
    counts.index_add_(0, passage, torch.from_numpy(encoded.lengths))
    return Ragged(encoded.values.cpu(), torch.cat([counts.new_zeros(1), counts.cumsum(0)]))
