"""A question of a step, answered from the example's own numbers, to be guessed before the numbers are shown.

There is none where the example allows none: a single token cannot be chosen among, nor can near ties.
"""

import random
import zlib
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from uwaga.lessons.compute import CLEAR, ROUNDING, leads
from uwaga.lessons.document import Question, shown
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.page import Page

Cells = Sequence[tuple[str, int, int]]


def question(
    page: Page,
    text: str,
    choices: Sequence[str],
    right: Iterable[int],
    why: str,
    covers: Sequence[str],
    cells: Cells = (),
    *,
    ordered: bool = False,
    about_sizes: bool = False,
    tap: str = "",
) -> Question | None:
    """A question about the first of the cells, with its choices in an order that gives nothing away, or as they are if ordered; None
    if there is nothing to choose."""
    distinct = list(dict.fromkeys(choices))
    answers = {choices[place] for place in right}
    if len(answers) == len(distinct):
        return None
    if not ordered:
        random.Random(zlib.crc32("".join((text, *distinct)).encode("utf-8", "surrogatepass"))).shuffle(distinct)
    of, row, _ = cells[0] if cells else ("x", 0, 0)
    return Question(
        text=text,
        choices=distinct,
        answers=tuple(place for place, choice in enumerate(distinct) if choice in answers),
        why=why,
        covers=covers,
        cells=cells,
        about_sizes=about_sizes,
        tap=tap,
        token=row if tuple(page[of].rows) == page.example.tokens else 0,
    )


def first_is_right(page: Page, covers: Sequence[str], cell: tuple[str, int, int]) -> Question | None:
    """The question of the texts "question", "choices" and "why", in which the first choice is right."""
    return question(page, page.text("question"), page.texts("choices"), [0], page.text("why"), covers, (cell,))


def which_token(
    page: Page, matrix: Matrix, i: int, text: str, why: str, covers: Sequence[str], *, tapped: bool = False
) -> Question | None:
    """Which token has the largest number of row i; at most four to choose among, the largest and the smallest.

    tapped: whether the choices are all words of a picture of the matrix.
    """
    if leads(matrix.numbers)[i] < CLEAR:
        return None
    names, row = names_of(page, page.example.tokens), matrix.numbers[i]
    order = sorted(range(len(names)), key=lambda place: -float(row[place]))
    some = range(len(names)) if tapped else order if len(order) <= 4 else [*order[:3], order[-1]]
    right = [some.index(place) for place in largest(row) if place in some]
    j = order[0]
    answer = page.text("because", token=names[j], number=shown(float(row[j])), why=why)
    choices, tap = [names[place] for place in some], matrix.id if tapped else ""
    return question(page, text, choices, right, answer, covers, ((matrix.id, i, j),), ordered=tapped, tap=tap)


def largest(row: Tensor) -> list[int]:
    """The places of the largest number and of those that equal it up to rounding."""
    most = float(row.max())
    slack = ROUNDING * max(1.0, abs(most))
    return [place for place, value in enumerate(row.tolist()) if value >= most - slack]


def names_of(page: Page, tokens: Sequence[str]) -> list[str]:
    """The tokens; with their place if a token is there twice."""
    return [
        page.text("token_at", token=token, place=place + 1)
        if tokens.count(token) > 1
        else page.text("token", token=token)
        for place, token in enumerate(tokens)
    ]


def ranges(
    page: Page, value: float, low: float, high: float, shape: Callable[[float], str]
) -> tuple[list[str], list[int]]:
    """Three ranges, and which of them has the value; with lower ends if the value is next to one of these."""
    if min(abs(value - low), abs(value - high)) < CLEAR:
        low, high = low - 0.1, high - 0.1
    choices = [page.text(key, low=shape(low), high=shape(high)) for key in ("under", "from_to", "over")]
    return choices, [0 if value < low else 1 if value <= high else 2]
