"""A question of a step, answered from the example's own numbers, to be guessed before the numbers are shown.

There is none where the example allows none: a single token cannot be chosen among, nor can near ties.
"""

import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from uwaga.lessons.compute import CLEAR, ROUNDING, leads
from uwaga.lessons.document import Question, shown
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.page import Page

Cells = Sequence[tuple[str, int, int]]


def question(
    page: Page,
    covers: Sequence[str],
    cells: Cells = (),
    choices: Sequence[str] | None = None,
    right: Iterable[int] = (0,),
    *,
    asks: Mapping[str, object] = {},
    why: str | Mapping[str, object] = {},
    ordered: bool = False,
    about_sizes: bool = False,
    tap: str = "",
) -> Question | None:
    """Return a question about the first of the cells, or None if there is nothing to choose.

    Args:
        covers, cells, about_sizes, tap: as `Question` has them.
        choices: None for the step's texts "choices".
        right: the places of the right choices.
        asks: values of the text "question".
        why: values of the text "why", or another text.
        ordered: whether the choices stay in this order; otherwise their order gives nothing away.
    """
    text, choices = page.text("question", **asks), page.texts("choices") if choices is None else choices
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
        why=why if isinstance(why, str) else page.text("why", **why),
        covers=covers,
        cells=cells,
        about_sizes=about_sizes,
        tap=tap,
        token=row if tuple(page[of].rows) == page.example.tokens else 0,
    )


def which_token(
    page: Page, matrix: Matrix, i: int, covers: Sequence[str], *, tapped: bool = False, **asks: object
) -> Question | None:
    """Ask which token has the largest number of row i; at most four choices, the largest and the smallest among them.
    tapped: whether the choices are all words of a picture of the matrix. asks: values of the text "question"."""
    if leads(matrix.numbers)[i] < CLEAR:
        return None
    names, row = names_of(page, page.example.tokens), matrix.numbers[i]
    order = sorted(range(len(names)), key=lambda place: -float(row[place]))
    some = range(len(names)) if tapped else order if len(order) <= 4 else [*order[:3], order[-1]]
    right = [some.index(place) for place in largest(row) if place in some]
    j = order[0]
    why = page.text("because", token=names[j], number=shown(row[j]), why=page.text("why"))
    choices, tap = [names[place] for place in some], matrix.id if tapped else ""
    cells = ((matrix.id, i, j),)
    return question(page, covers, cells, choices, right, asks=asks, why=why, ordered=tapped, tap=tap)


def largest(row: Tensor) -> list[int]:
    """Return the places of the largest number and of those that equal it up to rounding."""
    most = float(row.max())
    slack = ROUNDING * max(1.0, abs(most))
    return [place for place, value in enumerate(row.tolist()) if value >= most - slack]


def names_of(page: Page, tokens: Sequence[str]) -> list[str]:
    """Return the tokens; with their place if a token is there twice."""
    return [
        page.text("token_at", token=token, place=place + 1)
        if tokens.count(token) > 1
        else page.text("token", token=token)
        for place, token in enumerate(tokens)
    ]


def ranges(
    page: Page, value: float, low: float, high: float, shape: Callable[[float], str]
) -> tuple[list[str], list[int]]:
    """Return three ranges, and which of them has the value. The ranges have lower ends if the value is next to an
    end."""
    if min(abs(value - low), abs(value - high)) < CLEAR:
        low, high = low - 0.1, high - 0.1
    choices = [page.text(key, low=shape(low), high=shape(high)) for key in ("under", "from_to", "over")]
    return choices, [0 if value < low else 1 if value <= high else 2]
