"""Matrices of the lesson as tables for the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from uwaga._base.terminal import escape_controls

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from uwaga.lessons.document import Matrix


def table(matrix: "Matrix", tokens: Sequence[str], query: int) -> "Table":
    """A matrix as a table; of a matrix per query that of the given query. Larger values have a warmer background."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    is_sliced = matrix.numbers.dim() == 3
    title = f"{matrix.title} ({tokens[query]})" if is_sliced else matrix.title
    table = Table(title=Text(one_line(title)), title_justify="left", box=box.SIMPLE_HEAD)
    table.caption, table.caption_justify = Text(one_line(matrix.formula), style="dim"), "left"
    table.add_column("")
    for column in matrix.columns:
        table.add_column(Text(one_line(column)), justify="right", min_width=5)
    rows = (matrix.numbers[query] if is_sliced else matrix.numbers).tolist()
    largest = max((abs(number) for row in rows for number in row if number == number), default=0.0) or 1.0
    digits = [_digits(matrix, column) for column in zip(*rows, strict=True)]
    for name, row in zip(matrix.rows, rows, strict=True):
        table.add_row(
            Text(one_line(name)),
            *(_cell(number, largest, matrix, n) for number, n in zip(row, digits, strict=True)),
        )
    return table


def _digits(matrix: "Matrix", column: Sequence[float]) -> int:
    """Digits after the decimal point: none in a column of whole numbers."""
    return 0 if matrix.shade == "none" and all(number.is_integer() for number in column) else matrix.digits


def _cell(number: float, largest: float, matrix: "Matrix", digits: int) -> "Text":
    from rich.text import Text

    from uwaga.lessons.document import rounded

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


def one_line(text: str) -> str:
    """Text with every control character escaped, line breaks too.

    >>> one_line("a\\x1b[2J")
    'a<U+001B>[2J'
    """
    return escape_controls(text, keep="")
