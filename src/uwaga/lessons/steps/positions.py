"""Positions: sinusoidal codes, the distance at which they repeat, and that attention without them ignores order.

Letters: N tokens, M width of a token's vector, L places.
"""

import functools
import math

import torch

from uwaga._base.languages import decimal, significant
from uwaga.lessons import ledger
from uwaga.lessons.compute import CLEAR, ROUNDING, attention, reordered
from uwaga.lessons.document import LessonStep, Question, Section, difference_shade, shown
from uwaga.lessons.matrix import Matrix, made, rule
from uwaga.lessons.page import Page
from uwaga.lessons.question import question
from uwaga.nn import SinusoidalPositions
from uwaga.nn.positions import Repeat

_PLACES, _SHOWN_PLACES = 64, 25
_WIDTHS = (2, 4, 8, 16, 64)
_TOLERANCES = (0.02, 0.1, 0.5)
_WIDE = 64


def positions(page: Page) -> LessonStep:
    m = page.example.x_NM.shape[1]
    shuffled = page.section("without", *_shuffled(page, "without"), controls=("order",))
    head = {"statistic": "distance", "sense": "largest", "why": page.text("why_head")}
    if m % 2:
        sections = [page.section("odd", title=page.text("codes_of_places"), values={"m": m}), shuffled]
        return page.step(*sections, _similarity(page), _repeats(page), head=head)
    x, n = page["x"], len(page.example.tokens)
    codes, waves = page.matrix("codes", codes_of(n, m)), _wavelengths(page, m)
    placed = page.matrix("x_placed", (x + codes).by_library(SinusoidalPositions(m)(x.numbers)))
    curves = page.matrix("code_waves", codes_of(_SHOWN_PLACES, m), "codes")
    picture = page.picture("rows", "one_word", x, codes, placed, labels=("X", "PE", "X + PE"))
    return page.step(
        page.section("codes_of_places", codes, waves),
        page.section("added", x, placed, pictures=(picture,)),
        shuffled,
        page.section("with", *_shuffled(page, "with"), told=True),
        _similarity(page),
        _repeats(page),
        pictures=(page.picture("waves", "waves", curves, description=page.text("waves_description")),),
        question=_question(page),
        ledger=(ledger.moved(page, page["with_apart"].numbers, solved=True),),
        code=f"uwaga.nn.SinusoidalPositions({m})(X)",
        head=head,
    )


def codes_of(places: int, width: int) -> Matrix:
    """Return the codes of the first places."""
    return made(
        SinusoidalPositions(width).table(places),
        [str(place) for place in range(places)],
        [f"{'cos' if c % 2 else 'sin'} {c // 2 + 1}" for c in range(width)],
        rule("code", width=width, base=10000.0),
    )


def _wavelengths(page: Page, m: int) -> Matrix:
    frequency = 10000.0 ** (-2 * torch.arange(m // 2, dtype=torch.float64) / m)
    waves = made(
        torch.stack((frequency, 2 * math.pi / frequency), dim=-1).float(),
        [page.text("pair", i=i + 1) for i in range(m // 2)],
        page.texts("wavelength_columns"),
        page.stated("wavelengths_given"),
        shade="none",
        digits=3,
    )
    return page.matrix("wavelengths", waves)


def _shuffled(page: Page, name: str) -> tuple[Matrix, Matrix, Matrix]:
    """Return the layer's output, its output for shuffled tokens moved back, and the difference. name: "with" or
    "without" position codes."""
    rows, columns, is_placed = page.example.tokens, page["x"].columns, name == "with"
    output_NM, back_NM = reordered(page.example, with_codes=is_placed)
    over = "X + PE" if is_placed else "X"
    source = page.stated("layer", over=over) if is_placed else rule("copy", page["layer_output"].at())
    first = page.matrix(f"{name}_order", made(output_NM, rows, columns, source))
    then = page.matrix(f"{name}_shuffled", made(back_NM, rows, columns, page.stated("shuffled", over=over)))
    apart = first - then
    shade = difference_shade(apart.numbers, first.numbers)
    return first, then, page.matrix(f"{name}_apart", apart.styled(shade=shade), "apart")


def _question(page: Page) -> Question | None:
    changed_N, example = page["with_apart"].numbers.abs().amax(-1), page.example
    most = float(changed_N.max())
    if ROUNDING < most < CLEAR:
        return None
    stays = [i for i, place in enumerate(example.order) if place == i and changed_N[i] >= CLEAR]
    why = "why_unchanged" if most < CLEAR else "why_of_one" if stays else "why"
    return question(
        page,
        ("with_order", "with_shuffled", "with_apart"),
        (("with_apart", 0, 0),),
        right=[int(most >= CLEAR)],
        why=page.text(why, token=example.tokens[stays[0]] if stays else ""),
    )


def _similarity(page: Page) -> Section:
    """Return the cosine similarity of codes that are n places apart."""
    codes = SinusoidalPositions(_WIDE).table(_PLACES)
    # All codes are sqrt(M / 2) long, so that this scale makes their products cosines.
    cosine = attention(codes[:1], codes, torch.eye(_PLACES), scale=2.0 / _WIDE, normalize=None)
    matrix = page.matrix(
        "similarity",
        made(
            torch.stack((torch.arange(_PLACES).float(), cosine[0]), dim=-1),
            [str(n) for n in range(_PLACES)],
            ("n", page.text("cosine")),
            page.stated("similarity_given"),
            shade="none",
        ),
        value=_WIDE,
    )
    values = cosine[0].tolist()
    dip = min(range(_PLACES), key=values.__getitem__)
    rise = next((n for n in range(1, _PLACES - 1) if values[n - 1] < values[n] > values[n + 1]), dip)
    finding = page.finding(
        "neighbours",
        [("similarity", n, 1) for n in (1, rise, dip)],
        values=shown(values[1]),
        values2=shown(values[dip]),
        dip=dip,
        rise=rise,
        values3=shown(values[rise]),
        turn=shown(2 * math.pi),
    )
    axes = (page.text("places_apart"), page.text("cosine"))
    chart = page.chart("similarity_chart", "similarity", (1,), finding, *axes)
    return page.section("near", matrix, charts=(chart,), findings=(finding,))


def _repeats(page: Page) -> Section:
    """Return the distances at which codes repeat within a tolerance. SinusoidalPositions.repeats searches a million
    places for them."""
    results = _repeats_found()
    numbers = [[float("nan") if repeat is None else float(repeat.length) for repeat in row] for row in results]
    matrix = made(
        torch.tensor(numbers),
        [page.text("width", width=width) for width in _WIDTHS],
        [page.text("within", tolerance=significant(tolerance, 1)) for tolerance in _TOLERANCES],
        page.stated("repeats_given", places=1_000_000),
        shade="none",
        digits=0,
    )
    first = results[0][0]
    assert first is not None
    finding = page.finding(
        "like_a_clock", [("repeats", 0, 0)], length=first.length, distance=decimal(first.distance, 3)
    )
    return page.section("repeating", page.matrix("repeats", matrix), findings=(finding,))


@functools.cache
def _repeats_found() -> list[list[Repeat | None]]:
    return [[SinusoidalPositions(width).repeats(tolerance) for tolerance in _TOLERANCES] for width in _WIDTHS]
