"""`uwaga store`: passages of texts in a soft database, and what they say to a question."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from uwaga._base.errors import CheckpointError, DataError, SoftDatabaseError
from uwaga._base.install import missing
from uwaga.cli.terminal import echo, echo_json, error_text, fail, in_option_names, progress_bar, say_engine
from uwaga.data.documents import InvalidDocumentError
from uwaga.models.checkpoints import directories
from uwaga.models.tokenizers.token_text import SPECIAL_TOKEN
from uwaga.store.encoders import COSINE_SCALE
from uwaga.store.files import AddedFiles, Split, find_files

if TYPE_CHECKING:
    from uwaga.store import Answer, TokenAnswer

Storage = Literal["float32", "bfloat16"]

_BAR = 30  # columns
_Database = Annotated[Path, typer.Argument(help="The folder of the database.", metavar="DB")]
_Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]


def add(
    database: _Database,
    files: Annotated[list[Path], typer.Argument(help="Files .txt, .md, .jsonl, .csv or .parquet, or folders of them.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="minilm, a model's directory, or its id on the hub. Without it minilm, or the model of the database."
        ),
    ] = None,
    by: Annotated[Split, typer.Option(help="What a passage is.")] = "paragraph",
    dtype: Annotated[Storage, typer.Option(help="Of what a new database stores.")] = "float32",
    late_chunking: Annotated[
        bool, typer.Option("--late-chunking", help="Read each document whole; its passages are pooled from that.")
    ] = False,
    text: Annotated[str | None, typer.Option(help="The field of the text; else text.")] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave out what cannot be read or encoded, and list it on stderr.")
    ] = False,
) -> None:
    """Add the passages of files. If it is interrupted, the same command resumes it; a file that is there already adds nothing."""
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
    echo(f"{database}: {done.added:,} passages added, {done.known:,} were there already{skipped}")


def ask(
    database: _Database,
    question: Annotated[str, typer.Argument(help="Any text.")],
    top: Annotated[int, typer.Option(min=1, help="How many passages to show.")] = 5,
    scale: Annotated[float, typer.Option(help="Of the cosines before softmax: higher is sharper.")] = COSINE_SCALE,
    where: Annotated[str | None, typer.Option(help="An SQL condition, such as \"source LIKE '%.txt'\".")] = None,
    model: Annotated[str | None, typer.Option(help="The model that the database was made with.")] = None,
    as_json: _Json = False,
) -> None:
    """What the database says: the passages with their exact shares of all attention, and how much is on the others; of vectors of
    tokens, those with the largest MaxSim, and which tokens match."""
    with _errors("store ask"):
        check_folder(database)
        from uwaga import store

        with store.open_database(database) as db:
            if isinstance(db, store.TokenDatabase):
                if scale != COSINE_SCALE:
                    fail("store ask", f"--scale is of cosines before softmax, and {database} has vectors of tokens")
                _show_tokens(
                    store.ask(db, question, store.encoder_of(db, model), where=where, top=top), as_json=as_json
                )
                return
            answer = store.ask(db, question, store.encoder_of(db, model), scale=scale, where=where, top=top)
        _show(answer, as_json=as_json)


def check(database: _Database, as_json: _Json = False) -> None:
    """Compare every byte with its checksum. Ends with 1 where something is damaged."""
    with _errors("store check"):
        check_folder(database)
        from uwaga.store import open_database

        with open_database(database) as db:
            result, rows = db.check(), len(db)
    if as_json:
        echo_json(json.dumps([damage._asdict() for damage in result]))
    else:
        for damage in result:
            echo(f"{database}/{damage}")
        echo(f"{rows:,} rows: {len(result)} damaged parts" if result else f"{rows:,} rows: no damage")
    raise typer.Exit(1 if result else 0)


def stats(database: _Database, as_json: _Json = False) -> None:
    """Sizes and settings."""
    with _errors("store stats"):
        check_folder(database)
        from uwaga.store import open_database

        with open_database(database) as db:
            statistics = db.stats()
    if as_json:
        echo_json(json.dumps(statistics))
        return
    for name, value in statistics.items():
        shown = ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
        echo(f"{name:12} {f'{shown:,}' if isinstance(shown, int) else shown}")


def compact(database: _Database) -> None:
    """Remove deleted rows from the files, and join small files."""
    with _errors("store compact"):
        check_folder(database)
        from uwaga.store import open_database

        with open_database(database) as db:
            freed = db.compact()
    echo(f"{database}: {freed:,} bytes freed")


def export(database: _Database, file: Annotated[Path, typer.Argument(help="The Parquet file to write.")]) -> None:
    """Write all rows to a Parquet file: id, key, value, and the record as JSON."""
    with _errors("store export"):
        check_folder(database)
        from uwaga.store import open_database

        with open_database(database) as db:
            db.export(file)
            rows = len(db)
    echo(f"{file}: {rows:,} rows")


COMMANDS: tuple[Callable[..., None], ...] = (add, ask, check, stats, compact, export)


def check_folder(database: str | os.PathLike[str]) -> None:
    """Raises SoftDatabaseError: it is not there. Takes no time, where opening it would first import PyTorch."""
    if not Path(database).is_dir():
        raise SoftDatabaseError(f"{database}: there is no such folder")


@contextmanager
def _errors(command: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        fail(command, missing(error, "encode"))
    except DataError as error:
        fail(command, in_option_names(str(error), ("model",)))
    except (SoftDatabaseError, CheckpointError, ValueError) as error:
        fail(command, str(error))
    except OSError as error:
        fail(command, error_text(error))
    except KeyboardInterrupt:
        echo(f"uwaga {command}: interrupted", err=True)
        raise typer.Exit(130) from None


def _add(
    database: Path,
    files: list[Path],
    model: str | None,
    dtype: str,
    options: dict[str, Any],
) -> AddedFiles:
    import torch

    from uwaga import TextEncoder, store

    encoder: TextEncoder | None = None
    if database.exists():
        db: store.SoftDatabase | store.TokenDatabase = store.open_database(database)
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


def _show_tokens(answer: "TokenAnswer", *, as_json: bool) -> None:
    listed = [
        (n, s, r)
        for n, s, r in zip(answer.top.ids.tolist(), answer.top.scores.tolist(), answer.top.records, strict=True)
        if n >= 0
    ]
    if as_json:
        passages = [
            {"id": n, "score": s, "record": r, "matches": [each._asdict() for each in matches]}
            for (n, s, r), matches in zip(listed, answer.matches, strict=True)
        ]
        echo_json(json.dumps({"passages": passages}))
        return
    if not listed:
        echo("no passage meets the condition")
    for (_, score, record), matches in zip(listed, answer.matches, strict=True):
        echo(f"{score:8.3f}  {_origin(record)}")
        for line in str(record.get("text", "")).splitlines():
            echo(f"          {line}")
        shown = [each for each in matches if not SPECIAL_TOKEN.fullmatch(each.token)]
        echo("          " + ", ".join(f"{each.token}: {each.found} {each.product:.2f}" for each in shown))


def _origin(record: Mapping[str, object]) -> str:
    return " ".join(str(record[name]) for name in ("source", "document") if name in record)


def _show(answer: "Answer", *, as_json: bool) -> None:
    weights, records = answer.top.weights.tolist(), answer.top.records
    listed = [(n, w, r) for n, w, r in zip(answer.top.ids.tolist(), weights, records, strict=True) if n >= 0]
    if as_json:
        passages = [{"id": n, "share": w, "record": r} for n, w, r in listed]
        result = {
            "passages": passages,
            "unlisted_weight": answer.unlisted_weight.item(),
            "effective_count": answer.effective_count.item(),
        }
        echo_json(json.dumps(result | {"entropy": answer.entropy.item(), "rows": answer.rows}))
        return
    if not listed:
        echo("no passage meets the condition")
        return
    block = "\u2588" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    for _, weight, record in listed:
        bar = block * max(1, math.ceil(weight / listed[0][1] * _BAR))
        echo(f"{weight:6.1%}  {bar:{_BAR}}  {_origin(record)}")
        for line in str(record.get("text", "")).splitlines():
            echo(f"        {line}")
    others = answer.rows - len(listed)
    # exp(entropy) is the effective number of statistics: so many equal shares would be as uneven.
    echo(
        f"{answer.unlisted_weight.item():6.1%}  on {others:,} other passages; as spread out as over {answer.effective_count.item():,.1f} equal ones"
    )
