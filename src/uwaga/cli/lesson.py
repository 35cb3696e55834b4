"""`uwaga lesson`: the calculation of attention step by step, in a browser, or as tables in the terminal."""

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from uwaga.viewer.exhibit import Exhibit
    from uwaga.viewer.lesson.door import Lesson
    from uwaga.viewer.lesson.parts import Matrix, Section, Step

# Characters that a terminal obeys, or does not show.
_UNSEEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


def lesson(
    sentence: Annotated[str | None, typer.Argument(help="Words with spaces between; default: this is a pen .")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print the six steps as tables, and open nothing.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Print all steps as tables, and open nothing.")] = False,
    query: Annotated[int, typer.Option(help="In the tables: the token that asks, from 1.", min=1)] = 1,
    heads: Annotated[int | None, typer.Option(help="Into how many heads Q, K and V are cut.")] = None,
    unscaled: Annotated[
        bool, typer.Option("--unscaled", help="Leave scores as they are, without 1/sqrt(d_k).")
    ] = False,
    no_model: Annotated[bool, typer.Option("--no-model", help="Open no real model beside it.")] = False,
    port: Annotated[int, typer.Option(help="Where to serve; 0: any that is free.", min=0, max=65535)] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")] = False,
) -> None:
    """Work through attention on a few numbers, each of which says where it came from. Ctrl-C ends it."""
    from uwaga.viewer.lesson.door import work_through

    settings: dict[str, Any] = {"scaled": not unscaled} | ({} if heads is None else {"heads": heads})
    try:
        worked = work_through(sentence, **settings)
        if plain or everything:
            _print(worked, query, everything=everything)
        else:
            _serve(worked, port, opens=not no_browser, has_model=not no_model)
    except (ValueError, ImportError, OSError) as error:
        _fail(str(error).removeprefix("lesson: "))
    except KeyboardInterrupt:
        typer.echo("\nuwaga lesson: stopped", err=True)
        raise typer.Exit(130) from None


def _fail(message: str) -> NoReturn:
    typer.echo(f"uwaga lesson: {message}", err=True)
    raise typer.Exit(1)


def _serve(worked: "Lesson", port: int, *, opens: bool, has_model: bool) -> None:
    from uwaga.viewer.desk import Desk
    from uwaga.viewer.exhibit import Exhibit
    from uwaga.viewer.lesson.door import LessonDesk, served_lesson

    exhibit = _real(" ".join(worked.question["tokens"])) if has_model else None
    desk = LessonDesk(Desk(Exhibit.empty() if exhibit is None else exhibit), worked.question)
    with served_lesson(desk, port=port) as served:
        # On a line of its own and unbroken, so that a terminal makes a link of it.
        typer.echo(served.address)
        if opens and served.browse():
            typer.echo("It opens in the browser; Ctrl-C ends it.")
        else:
            typer.echo("Open it in a browser; Ctrl-C ends it.")
        served.wait()
    typer.echo("\nuwaga lesson: closed", err=True)


def _real(sentence: str) -> "Exhibit | None":
    """The sentence in the bundled model; None, and why, where there is none."""
    from uwaga._base.errors import CheckpointError
    from uwaga.cli import seeing
    from uwaga.viewer.exhibit import Exhibit

    try:
        reader = seeing.load("minilm", "float32")
        seen = seeing.see(reader, sentence, target=None, new_tokens=0, truncate=True, layers=None)
    except (CheckpointError, seeing.SeeingError) as error:
        typer.echo(f"uwaga lesson: without a real model beside it: {error}", err=True)
        return None
    return Exhibit.of(seen, model=reader.title)


def _print(worked: "Lesson", query: int, *, everything: bool) -> None:
    from rich.console import Console

    tokens = worked.question["tokens"]
    if query > len(tokens):
        raise ValueError(f"--query {query} is beyond the last of {len(tokens)} tokens")
    console = Console()
    shown = set[str]()
    for step in worked.steps:
        if (step.number or everything) and step.sections:
            _print_step(console, step, tokens, query - 1, shown)


def _print_step(console: "Console", step: "Step", tokens: Sequence[str], query: int, shown: set[str]) -> None:
    from rich.text import Text

    console.rule(Text(f"{step.number}: {step.title}" if step.number else step.title, style="bold"))
    for paragraph in step.text:
        console.print(Text(_seen(paragraph)))
    for section in step.sections:
        _print_section(console, section, tokens, query, shown)
    console.print(Text(f"  {step.code}", style="bold"))
    console.print()


def _print_section(console: "Console", section: "Section", tokens: Sequence[str], query: int, shown: set[str]) -> None:
    """What stood above, such as X, is not printed again: the terminal still shows it."""
    from rich.columns import Columns
    from rich.text import Text

    new = [matrix for matrix in section.matrices if matrix.id not in shown]
    shown.update(matrix.id for matrix in new)
    if not new and not section.findings:
        return
    if section.title:
        console.print(Text(_seen(section.title), style="italic"))
    for paragraph in section.text:
        console.print(Text(_seen(paragraph), style="dim"))
    if new:
        console.print(Columns([_table(matrix, tokens, query) for matrix in new], padding=(0, 2)))
    for finding in section.findings:
        console.print(Text(f"- {_seen(finding.text)}"))


def _table(matrix: "Matrix", tokens: Sequence[str], query: int) -> "Table":
    """Of a sliced matrix the query's table. The larger a number the warmer its ground."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    is_sliced = matrix.numbers.dim() == 3
    title = f"{matrix.title} ({tokens[query]})" if is_sliced else matrix.title
    table = Table(title=Text(_seen(title)), title_justify="left", box=box.SIMPLE_HEAD)
    table.caption, table.caption_justify = Text(_seen(matrix.formula), style="dim"), "left"
    table.add_column("")
    for column in matrix.columns:
        table.add_column(Text(_seen(column)), justify="right", min_width=5)
    rows = (matrix.numbers[query] if is_sliced else matrix.numbers).tolist()
    largest = max((abs(number) for row in rows for number in row if number == number), default=0.0) or 1.0
    digits = [_digits(matrix, column) for column in zip(*rows, strict=True)]
    for name, row in zip(matrix.rows, rows, strict=True):
        table.add_row(
            Text(_seen(name)), *(_cell(number, largest, matrix, n) for number, n in zip(row, digits, strict=True))
        )
    return table


def _digits(matrix: "Matrix", column: Sequence[float]) -> int:
    """Behind the point: none where a column counts."""
    return 0 if matrix.shade == "none" and all(number.is_integer() for number in column) else matrix.digits


def _cell(number: float, largest: float, matrix: "Matrix", digits: int) -> "Text":
    from rich.text import Text

    from uwaga.viewer.lesson.parts import rounded

    if number != number:
        return Text("-", style="dim")
    text = rounded(number, digits)
    if number and abs(number) < 0.5 * 10**-digits:
        text = f"{number:.0e}"
    warmth = number / (largest if matrix.shade == "signed" else 1.0)
    if matrix.shade == "none" or warmth <= 0:
        return Text(text)
    red, green, blue = (round(30 + min(warmth, 1.0) * (high - 30)) for high in (200, 90, 30))
    return Text(text, style=f"white on rgb({red},{green},{blue})")


def _seen(text: str) -> str:
    """Text that a terminal shows and does not obey.

    >>> _seen("a\\x1b[2J")
    'a<U+001B>[2J'
    """
    return "".join(f"<U+{ord(c):04X}>" if unicodedata.category(c) in _UNSEEN else c for c in text)
