"""`uwaga view`: the attention of a model over a text, in a browser, in the terminal, or as a file."""

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from uwaga._base.errors import CheckpointError
from uwaga.cli.progress import bar
from uwaga.cli.record import LoadedModel, RecordError, load, read_text, record_text, reporting_errors
from uwaga.cli.terminal import echo, fail

if TYPE_CHECKING:
    from uwaga.maps.recordings.recording import Recording
    from uwaga.viewer.desk import Desk
    from uwaga.viewer.exhibit import Exhibit
    from uwaga.viewer.page.wanted import Exact

Storage = Literal["float32", "bfloat16"]
_TABLE_SECONDS = 3.0  # for statistics of long texts, which the page goes on with
_EXACT = re.compile(r"(encoder|decoder|cross)/(\d+)/(\d+)(?:/(\d+):(\d+)/(\d+):(\d+))?")


class _How(NamedTuple):
    """What is the same for both texts and models."""

    dtype: str
    target: str | None
    new_tokens: int
    truncate: bool
    layers: list[int] | None


def view(
    text: Annotated[str, typer.Argument(help="A text, a file that holds one, or - for stdin.")],
    model: Annotated[str, typer.Option(help="minilm, bard, speller, a directory, or an id on the hub.")] = "minilm",
    second: Annotated[str | None, typer.Option(help="Another text beside it, as TEXT.")] = None,
    second_model: Annotated[str | None, typer.Option(help="Another model beside it, as --model.")] = None,
    target: Annotated[str | None, typer.Option(help="What the decoder is given to read; else it writes.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="At most so many tokens are written.")] = 40,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts that the model is too short for.")] = False,
    layers: Annotated[str | None, typer.Option(help="Only these, such as 0,3,6-8.")] = None,
    dtype: Annotated[Storage, typer.Option(help="Of weights and arithmetic.")] = "float32",
    save: Annotated[Path | None, typer.Option(help="Write a page of one file instead of serving.")] = None,
    exact: Annotated[
        list[str] | None, typer.Option(help="In the page: kind/layer/head, or with /a:b/c:d behind.")
    ] = None,
    port: Annotated[int, typer.Option(help="Where to serve; 0: any that is free.", min=0, max=65535)] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")] = False,
) -> None:
    """See what a model attends to in a text. Ctrl-C ends it."""
    try:
        how = _How(dtype, None if target is None else read_text(target), max_new_tokens, truncate, _layers(layers))
        wanted = [_exact(each) for each in exact or []]
        if wanted and save is None:
            raise RecordError("--exact says what is in a saved page: name one by --save")
        if save is not None and not save.parent.is_dir():
            raise RecordError(f"{save}: there is no folder {save.parent}")
        exhibit = _exhibit(text, model, second, second_model, how)
        if save is not None:
            _save(exhibit, save, wanted)
        else:
            _serve(exhibit, port, opens=not no_browser)
    except (CheckpointError, RecordError, ModuleNotFoundError, OSError) as error:
        fail("view", _said(error))
    except KeyboardInterrupt:
        echo("\nuwaga view: stopped", err=True)
        raise typer.Exit(130) from None


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _exhibit(text: str, model: str, second: str | None, second_model: str | None, how: _How) -> "Exhibit":
    """Everything that will be seen. Raises RecordError, CheckpointError."""
    from uwaga.viewer.exhibit import Exhibit

    first = read_text(text)
    other = first if second is None else read_text(second)
    reader = load(model, how.dtype)
    seen = _see(reader, first, how)
    if second is None and second_model is None:
        return Exhibit.of(seen, title=_title(first), model=reader.title)
    again = reader if second_model is None else load(second_model, how.dtype)
    beside = _see(again, other, how)
    with reporting_errors():
        return Exhibit.of(
            seen,
            title=_title(first),
            model=reader.title,
            second=beside,
            second_title=_title(other),
            second_model=again.title,
        )


def _title(text: str) -> str:
    """Its first line, as it was given: a tokenizer may know no capitals."""
    line = " ".join(text.strip().partition("\n")[0].split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def _see(reader: LoadedModel, text: str, how: _How) -> "Recording":
    return record_text(
        reader, text, target=how.target, new_tokens=how.new_tokens, truncate=how.truncate, layers=how.layers
    )


def _serve(exhibit: "Exhibit", port: int, *, opens: bool) -> None:
    from uwaga.viewer.desk import Desk
    from uwaga.viewer.door import serve

    # SIGTERM ends it as Ctrl-C does, also while the table is made.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serve(Desk(exhibit), exhibit.title, port=port, tell=typer.echo) as served:
            # On a line of its own and unbroken, so that a terminal makes a link of it.
            echo(served.address)
            if opens and served.browse():
                echo("It opens in the browser; Ctrl-C ends it.")
            else:
                echo("Open it in a browser; Ctrl-C ends it.")
            _tell(served.desk)
            served.wait()
    except KeyboardInterrupt:
        pass  # the end of a server, not of its work
    finally:
        signal.signal(signal.SIGTERM, before)
    echo("\nuwaga view: closed", err=True)


def _save(exhibit: "Exhibit", path: Path, exact: list["Exact"]) -> None:
    from uwaga.viewer.desk import Desk
    from uwaga.viewer.page.saved import save_page

    desk = Desk(exhibit)
    with bar("saving") as progress, reporting_errors():
        save_page(desk, path, exact=exact, progress=progress)
    _tell(desk)
    echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB, one file that needs no network")


def _tell(desk: "Desk") -> None:
    """A few heads for those who have no browser."""
    from rich.console import Console

    from uwaga.cli import summary

    Console().print(summary.table(summary.head_statistics(desk, _TABLE_SECONDS)))


def _layers(text: str | None) -> list[int] | None:
    """Numbers and ranges of numbers. Raises RecordError."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, -1)
        if first > last:
            raise RecordError(f"--layers takes numbers and ranges such as 0,3,6-8, not {text!r}")
        found += range(first, last + 1)
    return found


def _exact(text: str) -> "Exact":
    """Raises RecordError."""
    found = _EXACT.fullmatch(text)
    if found is None:
        rule = "kind/layer/head, such as encoder/3/5, or with queries and keys, such as encoder/3/5/0:512/0:512"
        raise RecordError(f"--exact takes {rule}, not {text!r}")
    kind, layer, head, *ends = found.groups()
    if ends[0] is None:
        return kind, int(layer), int(head)
    a, b, c, d = map(int, ends)
    return kind, int(layer), int(head), (a, b), (c, d)
