"""`uwaga lesson`: the calculation of attention step by step, in a browser, or as tables in the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uwaga._base.arguments import check
from uwaga._base.languages import current, decimal, significant, tr
from uwaga._base.terminal import escape_controls
from uwaga.cli.terminal import (
    NoBrowser,
    Port,
    check_parents,
    echo,
    ending,
    error_text,
    fail,
    in_language,
    new_table,
    say_saved,
    serve_page,
    writing_output,
)

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from uwaga.lessons.matrix import Matrix
    from uwaga.viewer.lesson import Lesson
    from uwaga.viewer.shown import View


def lesson(
    sentence: Annotated[
        str | None, typer.Argument(help="Up to 12 words and punctuation marks; default: this is a pen .")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print the six steps as tables, and open no browser.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Print all steps as tables, and open no browser.")] = False,
    query: Annotated[
        int, typer.Option(help="Print the tables of this query, counted from 1; with --plain or --all.", min=1)
    ] = 1,
    heads: Annotated[int | None, typer.Option(help="Number of heads.")] = None,
    unscaled: Annotated[bool, typer.Option("--unscaled", help="Do not scale scores by 1/sqrt(d_k).")] = False,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the lesson as one HTML file that needs no network, instead of serving it."),
    ] = None,
    worksheet: Annotated[
        Path | None, typer.Option(help="Write an HTML page to print: blank matrices to fill in, and their solutions.")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(help="Language: en, pl, pt, ja or zh; default: the browser's, or in the terminal LC_ALL or LANG."),
    ] = None,
    no_model: Annotated[
        bool, typer.Option("--no-model", help="Do not load a trained model next to the lesson.")
    ] = False,
    port: Port = 0,
    no_browser: NoBrowser = False,
) -> None:
    """Show attention step by step on a few numbers, each with its calculation. Ctrl-C ends it."""
    with in_language("lesson", language), ending("lesson", stopped=tr("stopped")):
        from uwaga.viewer.lesson import work_through

        settings: dict[str, Any] = {"scaled": not unscaled} | ({} if heads is None else {"heads": heads})
        try:
            worked = work_through(sentence, language=current(), **settings)
            if save is not None or worksheet is not None:
                check_parents("lesson", {"--save": save, "--worksheet": worksheet})
                if save is not None:
                    worked.save(save)
                    say_saved(save)
                if worksheet is not None:
                    worked.save_worksheet(worksheet)
                    if worksheet.is_file():
                        echo(tr("{path}: a worksheet for paper, with its solutions", path=worksheet))
            elif plain or everything:
                with writing_output():
                    _print(worked, query - 1, everything=everything)
            else:
                is_default = sentence is None and heads is None and not unscaled
                _serve(
                    worked, is_default=is_default, has_model=not no_model, port=port, language=language, opens=not no_browser
                )  # fmt: skip
        except (ValueError, ImportError, OSError) as error:
            fail("lesson", error_text(error).removeprefix("lesson: "))


def _serve(worked: "Lesson", *, is_default: bool, has_model: bool, **options: Any) -> None:
    from uwaga.viewer.lesson import FRAGMENT
    from uwaga.viewer.service import ViewService
    from uwaga.viewer.shown import View

    shown = _trained(worked.request.get("text") or " ".join(worked.request["tokens"])) if has_model else None
    # The page's own example is that of the language that the page is in.
    lesson = {"request": "lesson"} if is_default else worked.request
    service = ViewService(shown or View(), lesson=lesson)
    serve_page("lesson", service, fragment=FRAGMENT, **options)


def _trained(sentence: str) -> "View | None":
    """Return the sentence in the bundled model, or None with a message if the model cannot be loaded."""
    from uwaga._base.errors import CheckpointError
    from uwaga.inspect import run_text
    from uwaga.models.opening import open as open_model
    from uwaga.viewer.shown import Maps, View

    try:
        reader = open_model("minilm", dtype="float32")
        seen = run_text.record_text(reader, sentence, truncate=True)
    except (CheckpointError, run_text.RecordError) as error:
        echo("uwaga lesson: " + tr("no trained model beside it: {error}", error=error), err=True)
        return None
    return View.of(Maps(seen, model=reader.title))


def _print(worked: "Lesson", query: int, *, everything: bool) -> None:
    """Print the steps as tables. A matrix that was printed before, such as X, is not printed again."""
    from rich.columns import Columns
    from rich.console import Console

    tokens = worked.request["tokens"]
    check(query < len(tokens), f"--query {query + 1} is out of range: there are {len(tokens)} tokens")
    console = Console()
    shown = set[str]()
    for step in worked.steps:
        if not step.sections or not (step.number or everything):
            continue
        console.rule(_text(f"{step.number}: {step.title}" if step.number else step.title, "bold"))
        for paragraph in (*step.text, *step.told):
            console.print(_text(paragraph))
        for section in step.sections:
            new = [matrix for matrix in section.matrices if matrix.id not in shown]
            shown.update(matrix.id for matrix in new)
            if not new and not section.findings:
                continue
            if section.title:
                console.print(_text(section.title, "italic"))
            for paragraph in section.text:
                console.print(_text(paragraph, "dim"))
            if new:
                console.print(Columns([_table(matrix, tokens, query) for matrix in new], padding=(0, 2)))
            for finding in section.findings:
                console.print(_text(f"- {finding.text}"))
        if step.code:
            console.print(_text(f"  {step.code}", "bold"))
        console.print()


def _table(matrix: "Matrix", tokens: Sequence[str], query: int) -> "Table":
    """Return a matrix as a table, or the query's own table if there is one for each query. Larger values have a warmer background."""
    numbers, title = matrix.numbers, matrix.title
    if numbers.dim() == 3:
        numbers, title = numbers[query], f"{title} ({tokens[query]})"
    table = new_table(
        ("",),
        (_text(column) for column in matrix.columns),
        title=_text(title),
        title_justify="left",
        caption=_text(matrix.formula, "dim"),
        caption_justify="left",
    )
    for column in table.columns[1:]:
        column.min_width = 5
    rows = numbers.tolist()
    largest = max((abs(number) for row in rows for number in row if number == number), default=0.0) or 1.0
    # After the decimal point: none in a column of whole numbers.
    digits = [
        0 if matrix.shade == "none" and all(map(float.is_integer, column)) else matrix.digits
        for column in zip(*rows, strict=True)
    ]
    for name, row in zip(matrix.rows, rows, strict=True):
        cells = (_cell(number, largest, matrix, n) for number, n in zip(row, digits, strict=True))
        table.add_row(_text(name), *cells)
    return table


def _cell(number: float, largest: float, matrix: "Matrix", digits: int) -> "Text":
    if number != number:
        return _text("-", "dim")
    is_tiny = number and abs(number) < 0.5 * 10**-digits
    text = significant(number, 1) if is_tiny else decimal(number, digits)
    warmth = number / (largest if matrix.shade == "signed" else 1.0)
    if matrix.shade == "none" or warmth <= 0:
        return _text(text)
    red, green, blue = (round(30 + min(warmth, 1.0) * (high - 30)) for high in (200, 90, 30))
    return _text(text, f"white on rgb({red},{green},{blue})")


def _text(text: str, style: str = "") -> "Text":
    """Return text for a table or a line, with every control character escaped, line breaks too."""
    from rich.text import Text

    return Text(escape_controls(text, keep=""), style=style)
