"""Texts in a database: passages of files as rows, each with its text and where it is from; the encoder that made the keys; and questions."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from uwaga._base import untrusted
from uwaga._base.arguments import check, check_iterable
from uwaga._base.errors import DataError
from uwaga._base.terminal import short
from uwaga.data.documents import SUFFIXES, DocumentFile, InvalidDocumentError
from uwaga.data.passages import SPLITS, Span, Split, split_spans
from uwaga.models.checkpoints import directories

if TYPE_CHECKING:  # not with the module: the command reads its names
    from torch import Tensor

    from uwaga.encode.encoder import TextEncoder
    from uwaga.ops.ragged import Ragged
    from uwaga.store.catalog import Parameters
    from uwaga.store.database import Answer, SoftDatabase, Top
    from uwaga.store.token_database import TokenDatabase

COSINE_SCALE = 20.0  # of scores, before softmax
# How a file of plain text is read; a sentence is in one paragraph.
_UNITS = {"paragraph": "paragraph", "sentence": "paragraph", "line": "line", "document": "file"}
_AT_ONCE = 512  # passages of one transaction


def model_name(model: str | os.PathLike[str]) -> str:
    """Return the name of a model for `SoftDatabase.create`: the name that you pass, and the fingerprint of its files.

    model: as `TextEncoder.load` takes it. Raises CheckpointError.
    """
    return f"{os.fspath(model)}@{directories.fingerprint(directories.find(model, None))[:32]}"


def encoder_of(db: "SoftDatabase | TokenDatabase", model: str | os.PathLike[str] | None = None) -> "TextEncoder":
    """Load the encoder that made the keys of a database.

    Args:
        db: created with `model=model_name(...)`.
        model: the model's present place, as `TextEncoder.load` takes it. None loads the model that the database names, but only a
            bundled model, because a name in a database of a stranger must load nothing.

    Raises:
        DataError: the database names no bundled model, or the fingerprint of the model's files is another one.
        CheckpointError: the model cannot be loaded.
    """
    from uwaga.encode.encoder import TextEncoder

    _check("encoder_of", db)
    made, _, expected = (db.model or "").rpartition("@")
    if model is None:
        if made not in directories.BUNDLED:
            raise DataError(f"{db.path}: was made with {made or 'no known model'}; give the option model to load it")
        model = made
    folder = directories.find(model, None)
    found = directories.fingerprint(folder)[:32]
    if found != expected:
        raise DataError(
            f"{db.path}: its keys were made by {db.model}, not by {os.fspath(model)}@{found}; give the directory of that "
            "model, or make the database again"
        )
    return TextEncoder.load(folder)


def _check(place: str, db: object, *encoders: object) -> None:
    """Raise ValueError if a database or an encoder is something else."""
    from uwaga.encode.encoder import TextEncoder
    from uwaga.store.stored import StoredDatabase

    if not isinstance(db, StoredDatabase):
        raise ValueError(f"{place}: db must be a database, such as open_database(path) gives, not {short(db)}")
    for encoder in encoders:
        if not isinstance(encoder, TextEncoder):
            raise ValueError(
                f"{place}: encoder must be a TextEncoder, such as encoder_of(db) gives, not {short(encoder)}"
            )


class AddedFiles(NamedTuple):
    """The result of `add_files`."""

    added: int  # passages
    present: int  # passages that were in the database already
    skipped: list[str]  # the place of each document or passage that was left out, and why


class _Text(NamedTuple):
    """A text that is read at once, whose passages get their vectors from that."""

    text: str
    spans: list[Span]
    records: list[dict[str, Any]]  # of the passages
    share: float  # of its file, up to its end; then of all files
    is_new: list[bool]  # of each passage, whether it is to be added


def add_files(
    db: "SoftDatabase | TokenDatabase",
    files: Iterable[str | os.PathLike[str]],
    encoder: "TextEncoder",
    *,
    split: Split = "paragraph",
    late_chunking: bool = False,
    text_field: str | None = None,
    skip_invalid: bool = False,
    progress: Callable[[float], object] | None = None,
) -> AddedFiles:
    """Add the passages of files that are not in the database. A call that was interrupted is resumed by the same call; a file whose
    content is there already, split in the same way, adds nothing.

    The record of a passage has the fields text, source (the path), document (its id in a file of several), part (its number in the file)
    and file (the content and the way it was split). Passages of several files share a transaction of up to 512.

    Args:
        db: a database whose keys are vectors of `encoder`: made with key_width=encoder.embedding_dim; or a TokenDatabase of a ColBERT
            model, made with that width. A passage that is longer than the model has the vectors of all its windows there.
        files: paths of .txt, .md, .jsonl, .csv and .parquet files, or folders of them.
        encoder: the model of the database, such as `encoder_of(db)`.
        split: the unit of text that becomes one passage.
        late_chunking: the vector of a passage is made with its whole document in sight (`TextEncoder.encode` with spans); documents longer
            than the model are read in windows that share a quarter of its tokens. A file of plain text is one document.
        text_field: the field or column of the text in .jsonl, .csv and .parquet files; None for "text".
        skip_invalid: skip documents that cannot be read or encoded; otherwise the first of them raises an error.
        progress: called with the share that is in the database, from 0 to 1, after each transaction.

    Raises:
        DataError: a file or document that cannot be read or encoded (InvalidDocumentError: with skip_invalid it would be left out).
        ValueError, SoftDatabaseError: as `SoftDatabase.append`; late chunking with a model whose vector is the state of one token.
    """
    _check("add_files", db, encoder)
    check_iterable(files, "add_files: files", "paths")
    check(split in SPLITS, f"add_files: split must be one of {', '.join(SPLITS)}, not {split!r}")
    check(
        encoder.has_token_vectors == db.has_tokens,
        "add_files: a ColBERT model, which gives a vector to every token, needs a TokenDatabase, and no other model has one",
    )
    check(
        not (late_chunking and db.has_tokens),
        "add_files: late chunking gives one vector to a passage, and a TokenDatabase has one for every token",
    )
    paths = find_files(files)
    stored, seen = db.parts(), dict[str, set[str]]()  # the numbers of passages that are there, by the field file
    present, added, skipped = 0, 0, list[str]()

    def leave_out(error: DataError) -> None:
        if not skip_invalid:
            raise error
        skipped.append(str(error))

    def texts() -> Iterator[_Text]:
        """Yield the texts with a passage that is not in the database."""
        nonlocal present
        for number, path in enumerate(paths):
            try:
                key = f"{_digest(path)}:{split}:{text_field or 'text'}" + (":late" if late_chunking else "")
                there = seen.setdefault(key, set(stored.get(key, "").split(",")))
                for text in _texts(path, key, split, text_field, leave_out, late_chunking=late_chunking):
                    parts = [str(record["part"]) for record in text.records]
                    is_new = [part not in there for part in parts]
                    present += len(is_new) - sum(is_new)
                    there.update(parts)  # another file may have the same content
                    if any(is_new):
                        yield text._replace(share=(number + text.share) / len(paths), is_new=is_new)
            except DataError as error:  # of plain text, and of what is not divided into documents: all from there on
                leave_out(error)

    for vectors, records, share in _encoded(
        encoder, texts(), skipped, skip_invalid=skip_invalid, late_chunking=late_chunking
    ):
        db.append(vectors, records=records)  # type: ignore[arg-type]
        added += len(records)
        if progress is not None:
            progress(share)
    # One that was killed has left small segments, though nothing is added now.
    if added or db.stats()["segments"] > 1:
        db.compact()
    return AddedFiles(added, present, skipped)


def find_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the files, and the files of folders in the order of their names. Raises DataError: a folder without any, or nothing of that name."""
    results = []
    for path in map(Path, paths):
        if not os.path.lexists(path):
            raise DataError(f"{path}: there is no such file or folder")
        inside = [path]
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES) and not file.is_dir())
        if not inside:
            raise DataError(f"{path}: the folder has no file whose name ends in {', '.join(SUFFIXES)}")
        results += inside
    return results


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises InvalidDocumentError: the file cannot be read, or its name cannot be in a record.
    """
    try:
        str(path).encode()
        return untrusted.sha256(path)
    except UnicodeEncodeError as error:
        raise InvalidDocumentError(
            f"{path}: its name is not UTF-8, which a record needs for its source; rename it"
        ) from error
    except OSError as error:
        raise InvalidDocumentError(f"{path}: cannot be read: {error.strerror or error}") from error


def _texts(
    path: Path,
    key: str,
    split: Split,
    text_field: str | None,
    leave_out: Callable[[DataError], None],
    *,
    late_chunking: bool,
) -> Iterator[_Text]:
    """Yield the documents of a file with their passages, or each passage as a text. What cannot be read is left out.
    Raises DataError."""
    part = 0
    unit = "file" if late_chunking else _UNITS[split]
    for document in DocumentFile(path, unit=unit, text_field=text_field, keep_invalid=True):
        error = document.error
        if error is None and document.length() > untrusted.LINE_BYTES:
            error = f"is longer than {untrusted.LINE_BYTES:,} characters; split it into paragraphs"
        if error is not None:
            leave_out(InvalidDocumentError(f"{document.place}: {error}"))
            continue
        text, share = document.text, document.position
        spans = split_spans(text, split)
        passages = [text[start:stop].strip() for start, stop in spans]
        of_file = {"source": str(path), "document": document.id}
        records = [{"text": passage, **of_file, "part": n, "file": key} for n, passage in enumerate(passages, part)]
        part += len(spans)
        if not late_chunking:
            yield from (_Text(p, [(0, len(p))], [r], share, []) for p, r in zip(passages, records, strict=True))
        elif spans:
            yield _Text(text, spans, records, share, [])


def _encoded(
    encoder: "TextEncoder", texts: Iterator[_Text], skipped: list[str], *, skip_invalid: bool, late_chunking: bool
) -> Iterator[tuple["Tensor | Ragged", list[dict[str, Any]], float]]:
    """Yield groups of new passages: their vectors (n, D), or the vectors of their tokens, their records, and the share of
    the last one. A group of the model is tokenised while another is computed. What cannot be encoded is added to
    `skipped`, or is an error. Raises DataError."""
    import torch

    from uwaga.encode.preprocessing import groups
    from uwaga.encode.report import DocumentError
    from uwaga.ops.ragged import Ragged

    waiting: dict[int, _Text] = {}  # by number

    def strings() -> Iterator[list[str]]:
        numbers = itertools.count()
        for group in groups(texts, lambda text: len(text.text), max_documents=_AT_ONCE):
            waiting.update((next(numbers), text) for text in group)
            yield [text.text for text in group]

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
        for encoded in encoder.stream(strings(), skip_invalid=skip_invalid, **options):
            skipped += [reason(error) for error in encoded.invalid]
            encoded_texts = [waiting.pop(number) for number in dict.fromkeys(encoded.report.document.tolist())]
            left_out = [waiting.pop(error.document) for error in encoded.invalid]
            is_new = [is_new for text in encoded_texts for is_new in text.is_new]
            records = list(itertools.compress((record for text in encoded_texts for record in text.records), is_new))
            share = max((text.share for text in encoded_texts + left_out), default=0.0)
            if not records:
                continue
            if encoded.lengths is None:
                yield encoded.values[torch.tensor(is_new)], records, share
            else:  # the vectors of a passage are those of all its windows
                ends = torch.from_numpy(encoded.lengths.cumsum()[encoded.report.is_last])
                yield Ragged(encoded.values.cpu(), torch.cat([ends.new_zeros(1), ends])), records, share
    except DocumentError as error:
        raise InvalidDocumentError(reason(error)) from error


class Match(NamedTuple):
    """A token of a question and the token of a passage that it found."""

    token: str  # of the question, as the vocabulary writes it
    found: str  # of the passage; its place in it, if the record has not the text of these tokens
    product: float


class TokenAnswer(NamedTuple):
    """The answer of a database of token vectors to a question."""

    top: "Top"  # of (k,): the passages with the largest MaxSim
    matches: "list[list[Match]]"  # of each passage, for each token of the question; the products sum to the score


def ask(
    db: "SoftDatabase | TokenDatabase",
    question: str,
    encoder: "TextEncoder",
    *,
    scale: float | None = None,
    where: str | None = None,
    parameters: "Parameters" = (),
    top: int = 5,
) -> "Answer | TokenAnswer":
    """Ask a question. Returns `SoftDatabase.attend` of its vector, or for a TokenDatabase the passages with the largest MaxSim and the
    tokens that match.

    Args:
        db: a database with keys that the encoder made.
        question: any text; for a TokenDatabase, not longer than the model's queries.
        encoder: `encoder_of(db)`.
        scale: the factor on the cosines before the softmax; larger values concentrate the weight. None for 20. Not for a TokenDatabase.
        where, parameters: as `SoftDatabase.attend`.
        top: the largest number of passages to list.

    Raises:
        ValueError: an argument is none of these, or the question is too long; otherwise as `SoftDatabase.attend` or `TokenDatabase.search`.
    """
    import torch

    from uwaga.store.database import SoftDatabase

    _check("ask", db, encoder)
    if isinstance(db, SoftDatabase):
        (vector,) = torch.from_numpy(encoder.encode([question], overflow="mean"))
        factor = COSINE_SCALE if scale is None else scale
        return db.attend(vector, scale=factor, where=where, parameters=parameters, top=top)
    check(
        scale is None, f"ask: scale multiplies cosines before softmax, and {db.path} stores token vectors; omit scale"
    )
    query = encoder.encode([question], output="tokens", task="query")
    tokens = encoder.token_strings(question, task="query")
    found = db.search(query, top, where=where, parameters=parameters)
    ids, records = found.ids[0], found.records[0]
    matches = []
    for number, record in zip(ids.tolist(), records, strict=True):
        row_matches, text = db.matches(query.values, number), record.get("text")
        names = _token_names(encoder, text, len(db.tokens(number)))
        rows = zip(tokens, row_matches.tokens.tolist(), row_matches.products.tolist(), strict=True)
        matches.append([Match(token, names[place], product) for token, place, product in rows])
    return TokenAnswer(
        found._replace(ids=ids, weights=found.weights[0], scores=found.scores[0], records=records), matches
    )


def _token_names(encoder: "TextEncoder", text: object, count: int) -> list[str]:
    """Return the tokens of a passage, or their places if `text` has another number of tokens."""
    names = encoder.token_strings(text, task="document", overflow="windows") if isinstance(text, str) and text else []
    return names if len(names) == count else [str(n) for n in range(count)]
