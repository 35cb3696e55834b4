"""`uwaga store`: passages of texts in a soft database, and what they say to a question."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uwaga._base.errors import CheckpointError, DataError, SoftDatabaseError
from uwaga._base.install import missing
from uwaga.cli.terminal import (
    Storage,
    TextField,
    echo,
    echo_json,
    ending,
    fail,
    in_option_names,
    progress_bar,
    say_engine,
)
from uwaga.data.documents import InvalidDocumentError
from uwaga.models.checkpoints import directories
from uwaga.models.tokenizers.token_text import SPECIAL_TOKEN
from uwaga.store import texts
from uwaga.store.texts import COSINE_SCALE, AddedFiles, Split, TokenAnswer, find_files

if TYPE_CHECKING:
    from uwaga.store import Answer, Match, SoftDatabase, TokenDatabase

_BAR = 30  # columns
_Database = Annotated[Path, typer.Argument(help="Folder of the database.", metavar="DB")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def add(
    database: _Database,
    files: Annotated[list[Path], typer.Argument(help="Files .txt, .md, .jsonl, .csv or .parquet, or folders of them.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="Model: minilm, a directory, or an id of the Hub.",
            show_default="the database's model, or minilm if it is new",
        ),
    ] = None,
    by: Annotated[Split, typer.Option(help="Unit of text to store as one passage.")] = "paragraph",
    dtype: Annotated[Storage, typer.Option(help="Data type in which a new database stores vectors.")] = "float32",
    late_chunking: Annotated[
        bool, typer.Option("--late-chunking", help="Read each document as a whole, and pool its passages from that.")
    ] = False,
    text: TextField = None,
    skip_invalid: Annotated[
        bool,
        typer.Option(
            "--skip-invalid", help="Leave out documents that cannot be read or encoded, and list them on stderr."
        ),
    ] = False,
) -> None:
    """Add the passages of files. If the command is interrupted, run it again to continue; known files add nothing."""
    with _errors("store add"):
        if model is not None:
            directories.check_name(model)
        try:
            options = {"split": by, "late_chunking": late_chunking, "text_field": text, "skip_invalid": skip_invalid}
            done = _add(database, find_files(files), model, dtype, options)
        except InvalidDocumentError as error:
            fail("store add", f"{error}\n--skip-invalid leaves out such documents and lists them")
    for reason in done.skipped:
        echo(f"uwaga store add: left out {reason}", err=True)
    skipped = f", {len(done.skipped):,} left out" if done.skipped else ""
    echo(f"{database}: {done.added:,} passages added, {done.present:,} were there already{skipped}")


def ask(
    database: _Database,
    question: Annotated[str, typer.Argument(help="Question to ask.")],
    top: Annotated[int, typer.Option(min=1, help="Number of passages to show.")] = 5,
    scale: Annotated[
        float,
        typer.Option(
            help="Factor on the cosine similarities before softmax; larger values concentrate the weight on fewer passages."
        ),
    ] = COSINE_SCALE,
    where: Annotated[
        str | None, typer.Option(help="SQL condition on the passages, such as \"source LIKE '%.txt'\".")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model that made the database, if it has moved.")] = None,
    as_json: _Json = False,
) -> None:
    """Ask a question. Prints the best passages with their share of attention (soft database), or their MaxSim score and
    matching tokens (token database)."""
    with _opened("store ask", database) as db:
        if db.has_tokens and scale != COSINE_SCALE:
            fail(
                "store ask",
                f"--scale multiplies cosines before softmax, and {database} stores token vectors; omit --scale",
            )
        factor = None if db.has_tokens else scale
        answer = texts.ask(db, question, texts.encoder_of(db, model), scale=factor, where=where, top=top)
    _show(answer, as_json=as_json)


def check(database: _Database, as_json: _Json = False) -> None:
    """Compare every byte with its checksum. Exits with status 1 if something is damaged."""
    with _opened("store check", database) as db:
        result, rows = db.check(), len(db)
    if as_json:
        echo_json(json.dumps([damage._asdict() for damage in result]))
    else:
        for damage in result:
            echo(f"{database}/{damage}")
        echo(f"{rows:,} rows: {len(result)} damaged parts" if result else f"{rows:,} rows: no damage")
    raise typer.Exit(1 if result else 0)


def stats(database: _Database, as_json: _Json = False) -> None:
    """Show the size and settings of the database."""
    with _opened("store stats", database) as db:
        statistics = db.stats()
    if as_json:
        echo_json(json.dumps(statistics))
        return
    for name, value in statistics.items():
        shown = ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
        echo(f"{name:12} {f'{shown:,}' if isinstance(shown, int) else shown}")


def compact(database: _Database) -> None:
    """Remove deleted rows from the files, and join small files."""
    with _opened("store compact", database) as db:
        freed = db.compact()
    echo(f"{database}: {freed:,} bytes freed")


def export(database: _Database, file: Annotated[Path, typer.Argument(help="Parquet file to write.")]) -> None:
    """Write all rows to a Parquet file: id, key, value, and the record as JSON."""
    with _opened("store export", database) as db:
        db.export(file)
        rows = len(db)
    echo(f"{file}: {rows:,} rows")


COMMANDS: tuple[Callable[..., None], ...] = (add, ask, check, stats, compact, export)


@contextmanager
def _opened(command: str, database: Path) -> Iterator["SoftDatabase | TokenDatabase"]:
    """Open the database of a command, which ends if the database cannot be opened or read."""
    with _errors(command):
        if not database.is_dir():  # takes no time, while opening it imports PyTorch
            fail(command, f"{database}: there is no such folder")
        from uwaga.store.token_database import open_database

        with closing(open_database(database)) as db:
            yield db


@contextmanager
def _errors(command: str) -> Iterator[None]:
    with ending(command, SoftDatabaseError, CheckpointError, ValueError, OSError):
        try:
            yield
        except ModuleNotFoundError as error:
            fail(command, missing(error, "encode"))
        except DataError as error:
            fail(command, in_option_names(str(error), ("model",)))


def _add(database: Path, files: list[Path], model: str | None, dtype: str, options: dict[str, Any]) -> "AddedFiles":
    import torch

    from uwaga import TextEncoder, store

    encoder: TextEncoder | None = None
    if database.exists():
        db = store.open_database(database)
    else:
        model = model or directories.DEFAULT_ENCODER
        encoder, name = TextEncoder.load(model), store.model_name(model)
        width, stored = encoder.embedding_dim, getattr(torch, dtype)
        if encoder.has_token_vectors:
            db = store.TokenDatabase.create(database, width=width, dtype=stored, model=name)
        else:
            db = store.SoftDatabase.create(database, key_width=width, dtype=stored, model=name)
    with db, progress_bar("passages") as progress:
        encoder = encoder or store.encoder_of(db, model)
        say_engine("store add", model or str(db.model), encoder.explain())
        return store.add_files(db, files, encoder, progress=progress, **options)


def _show(answer: "Answer | TokenAnswer", *, as_json: bool) -> None:
    """Print passages with their shares, or with their scores and the tokens that match."""
    name, values, summary = "share", answer.top.weights, dict[str, float]()
    matches: list[list[Match]] = []
    if isinstance(answer, TokenAnswer):
        name, values, matches = "score", answer.top.scores, answer.matches
    else:
        summary = {field: getattr(answer, field).item() for field in ("unlisted_weight", "effective_count", "entropy")}
        summary["rows"] = answer.rows
    rows = list(zip(answer.top.ids.tolist(), values.tolist(), answer.top.records, strict=True))
    if as_json:
        passages = [{"id": number, name: value, "record": record} for number, value, record in rows]
        for passage, found in zip(passages, matches, strict=False):
            passage["matches"] = [match._asdict() for match in found]
        echo_json(json.dumps({"passages": passages} | summary))
        return
    if not rows:
        echo("no passage meets the condition")
        return
    block = "\u2588" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    for n, (_, value, record) in enumerate(rows):
        origin = " ".join(str(record[field]) for field in ("source", "document") if field in record)
        bar = block * max(1, math.ceil(value / rows[0][1] * _BAR)) if summary else ""
        echo(f"{value:6.1%}  {bar:{_BAR}}  {origin}" if summary else f"{value:8.3f}  {origin}")
        margin = " " * (8 if summary else 10)
        for line in str(record.get("text", "")).splitlines():
            echo(margin + line)
        if matches:
            shown = [match for match in matches[n] if not SPECIAL_TOKEN.fullmatch(match.token)]
            echo(margin + ", ".join(f"{match.token}: {match.found} {match.product:.2f}" for match in shown))
    if summary:
        # exp(entropy) is the effective number of statistics: so many equal shares would be as uneven.
        echo(
            f"{summary['unlisted_weight']:6.1%}  on {summary['rows'] - len(rows):,} other passages; as spread out as over "
            f"{summary['effective_count']:,.1f} equal ones"
        )
