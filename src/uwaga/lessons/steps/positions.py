"""Positions: sinusoidal codes, the distance at which they repeat, and that attention without them ignores order.

Letters: N tokens, M width of a token's vector, L places.
"""

import math
from typing import Any

import torch
from torch import Tensor

from uwaga._base.languages import cached, decimal, significant, tr
from uwaga.lessons import provenance
from uwaga.lessons.compute import layer_of
from uwaga.lessons.document import (
    Chart,
    Illustration,
    LessonFinding,
    LessonStep,
    Section,
    difference_shade,
    shown,
)
from uwaga.lessons.example import Example
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.provenance import cell
from uwaga.nn import SinusoidalPositions
from uwaga.ops.attention.api import attention

_PLACES, _SHOWN_PLACES = 64, 25
_WIDTHS = (2, 4, 8, 16, 64)
_TOLERANCES = (0.02, 0.1, 0.5)
_WIDE = 64


def placed(example: Example, x: Matrix) -> Matrix:
    """X with the codes of its places; X where they do not fit, since its width is odd."""
    m = example.x_NM.shape[1]
    if m % 2:
        return x
    return Matrix(
        id="x_placed",
        title="X + PE",
        formula="x(i) + PE(i)",
        rows=example.tokens,
        columns=example.width_names,
        numbers=SinusoidalPositions(m)(example.x_NM),
        source=provenance.plus(cell("x", "i", "j"), cell("codes", "i", "j")),
    )


def step(example: Example, x: Matrix, summed: Matrix) -> LessonStep:
    m = example.x_NM.shape[1]
    return LessonStep(
        id="positions",
        title=tr("Positions: the order of tokens"),
        text=(
            tr(
                "Each place has a code, which is added to the token's embedding: sines and cosines of many wavelengths, like the"
                " hands of a clock that turn at different speeds."
            ),
        ),
        told=(tr("Attention alone ignores the order of tokens; with the codes it does not."),),
        pictures=_waves(m),
        sections=(
            *_added(example, x, summed),
            Section(
                title=tr("Shuffled, without position codes"),
                text=(tr("Shuffle the tokens, compute attention, and reorder the outputs."),),
                matrices=_shuffled(example, with_positions=False),
                controls=("order",),
            ),
            *_counted(example),
            _similarity(),
            _repeats(),
        ),
        code="" if m % 2 else f"uwaga.nn.SinusoidalPositions({m})(X)",
        head={
            "statistic": "distance",
            "sense": "largest",
            "why": tr("the head with the largest mean distance between query and key"),
        },
    )


def _added(example: Example, x: Matrix, summed: Matrix) -> tuple[Section, ...]:
    """The codes of the example's places, and X with them."""
    n, m = example.x_NM.shape
    if m % 2:
        text = tr("Codes are pairs of a sine and a cosine, which need an even width; X has {m} columns here.", m=m)
        return (Section(title=tr("A code for each place"), text=(text,)),)
    positions = SinusoidalPositions(m)
    codes = Matrix(
        id="codes",
        title=tr("Codes of the places"),
        formula=tr("PE(p, 2i) = sin(p / 10000^(2i/M)), PE(p, 2i+1) = cos(the same)"),
        rows=[str(place) for place in range(n)],
        columns=[f"{'cos' if c % 2 else 'sin'} {c // 2 + 1}" for c in range(m)],
        numbers=positions.table(n),
        source={"op": "code", "from": [], "width": m, "base": 10000.0},
    )
    hands = torch.arange(m // 2, dtype=torch.float64)
    frequency = 10000.0 ** (-2 * hands / m)
    waves = Matrix(
        id="wavelengths",
        title=tr("Wavelengths"),
        formula="2π · 10000^(2i/M)",
        rows=[tr("pair {i}", i=i + 1) for i in range(m // 2)],
        columns=(tr("radians per place"), tr("places per turn")),
        numbers=torch.stack((frequency, 2 * math.pi / frequency), dim=-1).float(),
        source=provenance.given(
            tr("The i-th pair turns by 10000^(-2i/M) radians per place, so that a turn takes 2π times its inverse.")
        ),
        shade="none",
        digits=3,
    )
    return (
        Section(
            title=tr("A code for each place"),
            matrices=(codes, waves),
        ),
        Section(
            title=tr("Added to the tokens"),
            matrices=(x, summed),
            pictures=(
                Illustration(
                    kind="rows",
                    title=tr("One word and the code of its place"),
                    matrices=(x, codes, summed),
                    labels=("X", "PE", "X + PE"),
                ),
            ),
        ),
    )


def _waves(m: int) -> tuple[Illustration, ...]:
    if m % 2:
        return ()
    return (
        Illustration(
            kind="waves",
            title=tr("Codes of the places"),
            description=tr("A curve for each column; at each place its height is the number of the code."),
            matrices=(_wave(m),),
        ),
    )


@cached(4)
def _wave(m: int) -> Matrix:
    """The codes of more places than the sentence has, for curves."""
    return Matrix(
        id="code_waves",
        title=tr("Codes of the places"),
        formula=tr("PE(p, 2i) = sin(p / 10000^(2i/M)), PE(p, 2i+1) = cos(the same)"),
        rows=[str(place) for place in range(_SHOWN_PLACES)],
        columns=[f"{'cos' if c % 2 else 'sin'} {c // 2 + 1}" for c in range(m)],
        numbers=SinusoidalPositions(m).table(_SHOWN_PLACES),
        source={"op": "code", "from": [], "width": m, "base": 10000.0},
    )


def _counted(example: Example) -> tuple[Section, ...]:
    if example.x_NM.shape[1] % 2:
        return ()
    return (
        Section(
            title=tr("Shuffled, with position codes"),
            told=True,
            text=(tr("The same with the codes added: a token in another place has another output."),),
            matrices=_shuffled(example, with_positions=True),
        ),
    )


def _shuffled(example: Example, *, with_positions: bool) -> tuple[Matrix, ...]:
    """The layer's output; its output for the shuffled tokens, unshuffled; and the difference."""
    layer, order = layer_of(example, example.heads), list(example.order)
    placed = SinusoidalPositions(example.x_NM.shape[1]) if with_positions else None
    outputs = []
    for x_NM in (example.x_NM, example.x_NM[order]):
        output = layer(x_NM if placed is None else placed(x_NM))
        assert isinstance(output, Tensor)
        outputs.append(output)
    back = [order.index(place) for place in range(len(order))]
    first, then, apart = (
        f"{'with' if with_positions else 'without'}_{name}" for name in ("order", "shuffled", "apart")
    )
    over = "X + PE" if with_positions else "X"
    shared: dict[str, Any] = {"rows": example.tokens, "columns": example.width_names}
    return (
        Matrix(
            id=first,
            title=tr("Output"),
            formula="layer(X + PE)" if with_positions else "layer(X)",
            numbers=outputs[0],
            source=provenance.given(tr("The layer of the step “Heads” over {over}.", over=over))
            if with_positions
            else provenance.copy(cell("layer_output", "i", "j")),
            **shared,
        ),
        Matrix(
            id=then,
            title=tr("Output of the shuffled tokens, reordered"),
            formula="unshuffle(layer(shuffle(X)" + (" + PE))" if with_positions else "))"),
            numbers=outputs[1][back],
            source=provenance.given(
                tr(
                    "The layer of the step “Heads” over {over}, the tokens shuffled first; then each row is moved back to its token's"
                    " place.",
                    over=over,
                )
            ),
            **shared,
        ),
        Matrix(
            id=apart,
            title=tr("Difference"),
            formula=tr("first - second"),
            numbers=outputs[0] - outputs[1][back],
            source=provenance.minus(cell(first, "i", "j"), cell(then, "i", "j")),
            shade=difference_shade(outputs[0] - outputs[1][back], outputs[0]),
            **shared,
        ),
    )


@cached(1)
def _similarity() -> Section:
    """The cosine similarity of codes that are n places apart."""
    codes = SinusoidalPositions(_WIDE).table(_PLACES)
    # All codes are sqrt(M / 2) long, so that this scale makes their products cosines.
    cosine = attention(codes[:1], codes, torch.eye(_PLACES), scale=2.0 / _WIDE, normalize=None)
    assert isinstance(cosine, Tensor)
    matrix = Matrix(
        id="similarity",
        title=tr("Codes of width {value} that are n places apart", value=_WIDE),
        formula=tr("cosine(n) = PE(p) · PE(p + n) / (M/2), the same for every p"),
        rows=[str(n) for n in range(_PLACES)],
        columns=("n", tr("cosine")),
        numbers=torch.stack((torch.arange(_PLACES).float(), cosine[0]), dim=-1),
        source=provenance.given(
            tr("Products of the codes, by uwaga.attention without softmax: the mean of cos(n · radians per place).")
        ),
        shade="none",
    )
    values = cosine[0].tolist()
    dip = min(range(_PLACES), key=values.__getitem__)
    rise = next((n for n in range(1, _PLACES - 1) if values[n - 1] < values[n] > values[n + 1]), dip)
    text = tr(
        "Neighbours are similar ({values}), and similarity falls to {values2} at {dip} places. On the way it rises"
        " again: at {rise} places ({values3}) the fastest pair has made one turn, since 2π is about {turn}.",
        values=shown(values[1]),
        values2=shown(values[dip]),
        dip=dip,
        rise=rise,
        values3=shown(values[rise]),
        turn=shown(2 * math.pi),
    )
    chart = Chart(
        title=tr("Similarity of the codes of two places"),
        matrix="similarity",
        lines=(1,),
        description=text,
        x_title=tr("places apart"),
        y_title=tr("cosine"),
    )
    finding = LessonFinding(text=text, cells=(("similarity", 1, 1), ("similarity", rise, 1), ("similarity", dip, 1)))
    return Section(title=tr("Near places have similar codes"), matrices=(matrix,), charts=(chart,), findings=(finding,))


@cached(1)
def _repeats() -> Section:
    """The distance at which codes repeat within a tolerance, by SinusoidalPositions.repeats, which searches a million places."""
    results = [[SinusoidalPositions(width).repeats(tolerance) for tolerance in _TOLERANCES] for width in _WIDTHS]
    numbers = [[float("nan") if each is None else float(each.length) for each in row] for row in results]
    matrix = Matrix(
        id="repeats",
        title=tr("Where codes start to repeat"),
        formula=tr("the first n with |PE(p + n) - PE(p)| / |PE(p)| ≤ tolerance"),
        rows=[tr("width {width}", width=width) for width in _WIDTHS],
        columns=[tr("within {tolerance}", tolerance=significant(tolerance, 1)) for tolerance in _TOLERANCES],
        numbers=torch.tensor(numbers),
        source=provenance.given(
            tr(
                "Found by SinusoidalPositions.repeats among the first {places} places; a dash where there is none.",
                places=1_000_000,
            )
        ),
        shade="none",
        digits=0,
    )
    first = results[0][0]
    assert first is not None
    text = tr(
        "Codes of width 2 are like one hand of a clock: after {length} places (seven turns of 2π) the code is the same"
        " within {distance} of its length. Every further pair delays the repetition; codes of width 64 do not repeat in a"
        " million places.",
        length=first.length,
        distance=decimal(first.distance, 3),
    )
    finding = LessonFinding(text=text, cells=(("repeats", 0, 0),))
    return Section(title=tr("Where codes repeat"), matrices=(matrix,), findings=(finding,))
