"""`uwaga store`: passages of texts in a soft database, and what they say to a question."""

import itertools
import json
import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError, DataError, SoftDatabaseError
from uwaga.cli.terminal import echo, echo_json, error_text, fail, progress_bar
from uwaga.models.text.corpus import InvalidDocumentError

if TYPE_CHECKING:
    from uwaga.models.text.encoder import TextEncoder
    from uwaga.store import Answer, SoftDatabase
    from uwaga.viewer.view_model import ViewModel

Unit = Literal["paragraph", "sentence", "line", "document"]
Storage = Literal["float32", "bfloat16"]

# How a file of plain text is read; a sentence is in one paragraph.
_UNITS = {"paragraph": "paragraph", "sentence": "paragraph", "line": "line", "document": "file"}
_AT_ONCE = 512  # passages of one transaction
SCALE = 20.0  # of cosines, before softmax
_BAR = 30  # columns
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*")
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")
_Database = Annotated[Path, typer.Argument(help="The folder of the database.", metavar="DB")]
_Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]


class _Passage(NamedTuple):
    text: str
    record: dict[str, Any]


def add(
    database: _Database,
    files: Annotated[list[Path], typer.Argument(help="Files .txt, .md, .jsonl, .csv or .parquet, or folders of them.")],
    model: Annotated[str | None, typer.Option(help="minilm, a model's directory, or its id on the hub.")] = None,
    by: Annotated[Unit, typer.Option(help="What a passage is.")] = "paragraph",
    dtype: Annotated[Storage, typer.Option(help="Of what a new database stores.")] = "float32",
    text: Annotated[str | None, typer.Option(help="The field of the text; else text.")] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave out what cannot be read or encoded, and list it on stderr.")
    ] = False,
) -> None:
    """Add the passages of files. If it is interrupted, the same command resumes it; a file that is there already adds nothing."""
    with _errors("store add"):
        try:
            done = _add(database, list(_found(files)), model, by, dtype, text, skip_invalid)
        except InvalidDocumentError as error:
            fail("store add", f"{error}\n--skip-invalid leaves out such documents and lists them")
    for reason in done.skipped:
        echo(f"uwaga store add: left out {reason}", err=True)
    skipped = f", {len(done.skipped):,} left out" if done.skipped else ""
    echo(f"{database}: {done.added:,} passages added, {done.known:,} were there already{skipped}")


def ask(
    database: _Database,
    question: Annotated[str, typer.Argument(help="Any text.")],
    top: Annotated[int, typer.Option(min=1, help="How many passages to show.")] = 5,
    scale: Annotated[float, typer.Option(help="Of the cosines before softmax: higher is sharper.")] = SCALE,
    where: Annotated[str | None, typer.Option(help="An SQL condition, such as \"source LIKE '%.txt'\".")] = None,
    model: Annotated[str | None, typer.Option(help="The model that the database was made with.")] = None,
    as_json: _Json = False,
) -> None:
    """What the database says: the passages with their exact shares of all attention, and how much is on the others."""
    with _errors("store ask"):
        from uwaga.store import SoftDatabase

        with SoftDatabase.open(database) as db:
            answer = db.read(_asked(db, question, model), scale=scale, where=where, top=min(top, len(db)))
            _show(answer, as_json=as_json)


def check(database: _Database, as_json: _Json = False) -> None:
    """Compare every byte with its checksum. Ends with 1 where something is damaged."""
    with _errors("store check"):
        from uwaga.store import SoftDatabase

        with SoftDatabase.open(database) as db:
            found, rows = db.check(), len(db)
    if as_json:
        echo_json(json.dumps([damage._asdict() for damage in found]))
    else:
        for damage in found:
            echo(f"{database}/{damage}")
        echo(f"{rows:,} rows: {len(found)} damaged parts" if found else f"{rows:,} rows: no damage")
    raise typer.Exit(1 if found else 0)


def stats(database: _Database, as_json: _Json = False) -> None:
    """Sizes and settings."""
    with _errors("store stats"):
        from uwaga.store import SoftDatabase

        with SoftDatabase.open(database) as db:
            found = db.stats()
    if as_json:
        echo_json(json.dumps(found))
        return
    for name, value in found.items():
        shown = ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
        echo(f"{name:12} {f'{shown:,}' if isinstance(shown, int) else shown}")


def compact(database: _Database) -> None:
    """Remove deleted rows from the files, and join small files."""
    with _errors("store compact"):
        from uwaga.store import SoftDatabase

        with SoftDatabase.open(database) as db:
            freed = db.compact()
    echo(f"{database}: {freed:,} bytes freed")


def export(database: _Database, file: Annotated[Path, typer.Argument(help="The Parquet file to write.")]) -> None:
    """Write all rows to a Parquet file: id, key, value, and the record as JSON."""
    with _errors("store export"):
        from uwaga.store import SoftDatabase

        with SoftDatabase.open(database) as db:
            db.export(file)
            rows = len(db)
    echo(f"{file}: {rows:,} rows")


COMMANDS: tuple[Callable[..., None], ...] = (add, ask, check, stats, compact, export)


@contextmanager
def _errors(command: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        fail(command, f"needs {error.name}: pip install 'uwaga[encode]'")
    except (SoftDatabaseError, DataError, CheckpointError, ValueError) as error:
        fail(command, str(error))
    except OSError as error:
        fail(command, error_text(error))
    except KeyboardInterrupt:
        echo(f"uwaga {command}: interrupted", err=True)
        raise typer.Exit(130) from None


# Adding


def _found(files: list[Path]) -> Iterator[Path]:
    """The files, and those of folders in the order of their names. Raises DataError."""
    from uwaga.models.text.corpus import SUFFIXES

    for path in files:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(each for each in path.rglob("*") if each.name.endswith(SUFFIXES))
        if not inside:
            raise DataError(f"{path}: the folder has no file whose name ends in {', '.join(SUFFIXES)}")
        yield from inside


class _Done(NamedTuple):
    added: int  # passages
    known: int  # passages that were in the database already
    skipped: list[str]  # the place of each document or passage that was left out, and why


def _add(
    database: Path,
    files: list[Path],
    model: str | None,
    by: Unit,
    dtype: str,
    field: str | None,
    skip_invalid: bool = False,
) -> _Done:
    """Add the passages of files that are not in the database. Passages of several files share a transaction."""
    from uwaga.store import SoftDatabase

    if database.exists():
        db = SoftDatabase.open(database)
    else:
        db = _created(database, model, dtype)
    with db:
        encoder = _encoder(model, db)
        known, before, added = db.counts("file"), 0, 0
        skipped: list[str] | None = [] if skip_invalid else None

        def passages(progress: Callable[[float], None]) -> Iterator[_Passage]:
            nonlocal before
            for number, path in enumerate(files):
                key = f"{_digest(path)}:{by}:{field or 'text'}"
                listener = lambda share, number=number: progress((number + share) / len(files))  # noqa: E731
                left, count = int(known.get(key, 0)), 0
                for passage in _passages(path, key, by, field, listener, skipped):
                    count += 1
                    if not left:
                        yield passage
                    elif not skip_invalid or _has_tokens(encoder, passage.text):
                        left, before = left - 1, before + 1
                known[key] = count  # another file may have the same content
                listener(1.0)

        with progress_bar("passages") as progress:
            for part in _encoded(encoder, passages(progress), skipped):
                db.append(part.keys, records=part.records, model=db.model)
                added += len(part.records)
        # One that was killed has left small segments, though nothing is added now.
        if added or int(str(db.stats()["segments"])) > 1:
            db.compact()
        return _Done(added, before, skipped or [])


def _has_tokens(encoder: "TextEncoder", text: str) -> bool:
    """Whether a passage can be encoded, and so is in the database."""
    (tokens,) = encoder.tokenizer.encode([(encoder.config.prompt or "") + text], with_offsets=False)
    return len(tokens) > 0


def _digest(path: Path) -> str:
    try:
        return untrusted.sha256(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _created(database: Path, model: str | None, dtype: str) -> "SoftDatabase":
    import torch

    from uwaga.store import SoftDatabase

    if model is None:
        raise DataError(
            f"{database}: there is no database yet; --model says which model makes its keys, such as minilm"
        )
    encoder, name = _loaded(model)
    return SoftDatabase.create(database, key_width=encoder.embedding_dim, dtype=getattr(torch, dtype), model=name)


def _encoder(model: str | None, db: "SoftDatabase") -> "TextEncoder":
    """The model that made the keys of a database: the one with its fingerprint, wherever it lies now. Raises DataError."""
    from uwaga.models.checkpoints.directories import BUNDLED

    made, _, fingerprint = (db.model or "").rpartition("@")
    if model is None and made not in BUNDLED:
        # A name in a database of a stranger shall load nothing.
        raise DataError(f"{db.path}: was made with {made or 'no known model'}; name it by --model to load it")
    encoder, name = _loaded(model or made)
    if name.rpartition("@")[2] != fingerprint:
        raise DataError(f"{db.path}: its keys were made by {db.model}, not by {name}")
    return encoder


def _loaded(model: str) -> tuple["TextEncoder", str]:
    """An encoder and its name with the fingerprint of its files, which says the normalisation too."""
    from uwaga.models.checkpoints import directories
    from uwaga.models.text.encoder import TextEncoder
    from uwaga.models.text.sentence_config import fingerprint

    folder = directories.find(model, None)
    return TextEncoder.load(folder), f"{model}@{fingerprint(folder, directories.transformer(folder))[:32]}"


def _passages(
    path: Path,
    key: str,
    by: Unit,
    field: str | None,
    listener: Callable[[float], None],
    skipped: list[str] | None,
) -> Iterator[_Passage]:
    """The passages of a file. What cannot be read is added to `skipped`; None: it is an error. Raises DataError."""
    from uwaga.models.text.corpus import DocumentFile

    part = 0
    documents = DocumentFile(path, unit=_UNITS[by], text_field=field, keep_invalid=skipped is not None)
    try:
        for document in documents:
            error = document.error
            if error is None and document.length() > untrusted.LINE_BYTES:
                error = f"is longer than {untrusted.LINE_BYTES:,} characters; --by paragraph divides it"
            if error is not None:
                if skipped is None:
                    raise InvalidDocumentError(f"{document.place}: {error}")
                skipped.append(f"{document.place}: {error}")
                continue
            for text in split(document.text, by):
                record = {"text": text, "source": str(path), "document": document.id, "part": part, "file": key}
                yield _Passage(text, record)
                part += 1
            listener(document.position)
    except DataError as error:  # of plain text, and of what is not divided into documents: all from there on
        if skipped is None:
            raise
        skipped.append(str(error))


def split(text: str, by: Unit) -> Iterator[str]:
    """The passages of a text, without white space around them.

    >>> list(split("One. Two!\\nThree\\n\\nFour.", "sentence"))
    ['One.', 'Two!', 'Three', 'Four.']
    >>> list(split("One. Two!\\nThree\\n\\nFour.", "paragraph"))
    ['One. Two!\\nThree', 'Four.']
    """
    if by == "document":
        parts = [text]
    elif by == "line":
        parts = text.splitlines()
    else:
        parts = _PARAGRAPH_END.split(text)
        if by == "sentence":
            parts = [sentence for part in parts for line in part.splitlines() for sentence in _SENTENCE_END.split(line)]
    return (part.strip() for part in parts if part.strip())


class _Encoded(NamedTuple):
    keys: Any  # (n, D)
    records: list[dict[str, Any]]


def _encoded(encoder: "TextEncoder", passages: Iterator[_Passage], skipped: list[str] | None) -> Iterator[_Encoded]:
    """The passages in groups. A group of the model is tokenised while another is computed. What cannot be encoded is added to
    `skipped`; None: it is an error. Raises DataError."""
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
                yield _Encoded(_tensor(encoded.vectors), records)
    except DocumentError as error:
        # Results come in order: the error is in the first group that has none.
        raise InvalidDocumentError(reason(waiting[0][error.document - finished].record, error)) from error


def _tensor(vectors: Any) -> Any:
    import torch

    return torch.from_numpy(vectors).float()


# Asking


def view_model(database: Path, question: str, model: str | None) -> "ViewModel":
    """The attention of a question over all passages, which are the keys. Raises DataError, SoftDatabaseError, CheckpointError, ValueError."""
    from uwaga.models.text.token_text import Written
    from uwaga.store import SoftDatabase
    from uwaga.viewer.view_model import ViewModel

    with SoftDatabase.open(database) as db:
        if not len(db):
            raise DataError(f"{database}: has no passages yet; uwaga store add adds them")
        asked = db.map(_asked(db, question, model)[None], scale=SCALE)
        passages = [str(record.get("text", "")) for record in db.records(db.ids().tolist())]
        shown = ViewModel.create(
            {("cross", 0): asked},
            tokens={"encoder": passages, "decoder": [question]},
            title=question,
            model=(db.model or "").partition("@")[0],
        )
    # Whole passages, with an empty line between them.
    ends = itertools.accumulate(len(passage) + 2 for passage in passages)
    places = [(end - 2 - len(passage), end - 2) for passage, end in zip(passages, ends, strict=True)]
    sources = {"encoder": Written("\n\n".join(passages), places), "decoder": Written(question, [(0, len(question))])}
    return replace(shown, sides=(replace(shown.sides[0], sources=sources),))


def _asked(db: "SoftDatabase", question: str, model: str | None) -> Any:
    """The vector (D,) of a question. Raises DataError."""
    encoder = _encoder(model, db)
    return _tensor(encoder.encode([question], overflow="mean")[0])


def _show(answer: "Answer", *, as_json: bool) -> None:
    weights, records = answer.top.weights.tolist(), answer.top.records
    listed = [(n, w, r) for n, w, r in zip(answer.top.ids.tolist(), weights, records, strict=True) if n >= 0]
    if as_json:
        passages = [{"id": n, "share": w, "record": r} for n, w, r in listed]
        found = {"passages": passages, "remaining": answer.remaining.item(), "effective": answer.effective.item()}
        echo_json(json.dumps(found | {"entropy": answer.entropy.item(), "rows": answer.rows}))
        return
    if not listed:
        echo("no passage meets the condition")
        return
    block = "\u2588" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    for _, weight, record in listed:
        bar = block * max(1, math.ceil(weight / listed[0][1] * _BAR))
        origin = " ".join(str(record[name]) for name in ("source", "document") if name in record)
        echo(f"{weight:6.1%}  {bar:{_BAR}}  {origin}")
        for line in str(record.get("text", "")).splitlines():
            echo(f"        {line}")
    others = answer.rows - len(listed)
    echo(
        f"{answer.remaining.item():6.1%}  on {others:,} other passages; {answer.effective.item():,.1f} speak effectively"
    )
