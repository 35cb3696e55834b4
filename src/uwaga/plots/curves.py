"""Attention as lines between tokens. Letters: Q queries, K keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from uwaga._base import renamed
from uwaga.plots import colors, figures, labels
from uwaga.plots.cells import Weights, cells, pick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path
    from numpy import ndarray

MOST_TOKENS = 128  # beyond, lines are a grey carpet
_THINNEST, _THICKEST = 0.3, 3.0  # points
_LINK = 84.0  # points between two columns


class Line(NamedTuple):
    """One weight to draw, from query i to key j."""

    i: int
    j: int
    strength: float  # of the strongest, 0 to 1


@renamed.parameters(least="threshold")
def arcs(
    weights: Weights,
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    at: int | tuple[int, ...] = (),
    layout: str = "line",
    threshold: float = 0.05,
    color: str = colors.INK,
    ax: Axes | None = None,
) -> Figure:
    """Draw one attention matrix as lines from each query to the keys that it reads, thicker for more weight.

    After Vig, "A Multiscale Visualization of Attention in the Transformer Model" (2019), on paper.

    Args:
        weights: a map or a tensor (..., Q, K) with at most 128 queries and keys; `WordMap` makes a long one shorter.
        tokens: Q labels for the queries, and for the keys where `key_tokens` is None and Q = K.
        key_tokens: K labels for the keys.
        at: indices of the leading dimensions, as for `heatmap`.
        layout: "line" writes the tokens once, with arcs above for what looks back (j < i), below for what looks ahead,
            and a dot for a token's weight on itself; it needs Q = K. "columns" writes queries on the left and keys on the
            right, with straight lines.
        threshold: the smallest weight, not counting its sign, that is drawn.
        color: of the lines; two heads in one pair of axes take two calls with two colours.
        ax: axes to draw into; None makes a figure.

    Returns:
        The figure.

    Raises:
        ValueError: too many tokens, labels that are not one each, an unknown layout, or `at` that does not pick one
            matrix.
        ModuleNotFoundError: without matplotlib.
    """
    if layout not in ("line", "columns"):
        raise ValueError(f"arcs: layout must be one of line, columns, not {layout!r}")
    picked = pick("arcs", weights, at)
    queries, keys = picked.sizes
    if max(queries, keys) > MOST_TOKENS:
        rule = f"{max(queries, keys)} tokens are too many to read as lines (at most {MOST_TOKENS})"
        raise ValueError(f"arcs: {rule}: merge them into words, or cut out a part")
    if layout == "line" and queries != keys:
        raise ValueError(f"arcs: layout 'line' needs as many queries as keys, not {queries} and {keys}: take 'columns'")
    key_tokens = tokens if key_tokens is None else key_tokens
    labels.need_one_each("arcs", "tokens", tokens, queries, "queries")
    labels.need_one_each("arcs", "key_tokens", key_tokens, keys, "keys")
    matrix = cells("arcs", picked, MOST_TOKENS, "mass").matrices
    draw = _draw_line if layout == "line" else _draw_columns
    return draw(ax, _lines(matrix, threshold), tokens, key_tokens, color)


def _lines(matrix: ndarray, threshold: float) -> list[Line]:
    """The weights that are large enough, the strongest last, so that it lies on top."""
    sizes = abs(matrix)
    largest = sizes.max(initial=0.0) or 1.0
    found = [
        Line(int(i), int(j), float(sizes[i, j] / largest)) for i, j in zip(*(sizes >= threshold).nonzero(), strict=True)
    ]
    return sorted(found, key=lambda line: line.strength)


def _draw_line(ax: Axes | None, lines: Sequence[Line], tokens: Sequence[str], _: Sequence[str], color: str) -> Figure:
    """The tokens once, in the band between -band and band, and arcs above and below it."""
    words = [labels.clean(token) for token in tokens]
    room = figures.WIDEST * figures.POINTS if ax is None else figures.size_in_points(ax)[0]
    text = labels.fit(words, room / (len(words) + 0.4))
    back, ahead = (max((side * (line.i - line.j) for line in lines), default=0) for side in (1, -1))
    width = max(text.spacing * (len(words) + 0.4) / figures.POINTS, 1.5)
    figure, ax = figures.bare_place(ax, width, 2.2 if ahead <= 0 else 3.4)

    top, bottom = 1.05 * max(back, 1), 1.05 * max(ahead, 0)
    height = figures.size_in_points(ax)[1]
    band = text.half * (top + bottom) / max(height - 2 * text.half, text.half)
    others = [line for line in lines if line.i != line.j]
    _add(ax, [_arc(line, band) for line in others], others, color)
    own = [line for line in lines if line.i == line.j]
    ax.scatter([line.i for line in own], [band] * len(own), s=[25 * line.strength for line in own], color=color, lw=0)
    for position, word in enumerate(words):
        # Between arcs on both sides in the middle, else close to the arcs.
        y, side = (0.0, "center") if ahead > 0 else (band * (1 - labels.CLEAR / text.half), "top")
        labels.write(ax, position, y, word, text._replace(sides=("center", side)))
    ax.set(xlim=(-0.7, len(words) - 0.3), ylim=(-band - bottom, band + top))
    return figure


def _draw_columns(
    ax: Axes | None, lines: Sequence[Line], tokens: Sequence[str], key_tokens: Sequence[str], color: str
) -> Figure:
    """Queries on the left, keys on the right, both from the top."""
    left, right = ([labels.clean(token) for token in side] for side in (tokens, key_tokens))
    side = (labels.width(left + right, figures.NORMAL) + 2 * labels.CLEAR) / _LINK  # in units of the link
    longest = max(len(left), len(right))
    width, height = _LINK * (1 + 2 * side), (longest + 1.6) * figures.NORMAL * labels.LINE
    figure, ax = figures.bare_place(ax, width / figures.POINTS, height / figures.POINTS)
    kind = figures.need("matplotlib.path").Path
    _add(ax, [kind([(0.0, -line.i), (1.0, -line.j)]) for line in lines], lines, color)
    column = labels.Text(figures.NORMAL, figures.NORMAL * labels.LINE, 0.0, 0)
    for x, words, toward in ((-0.03, left, "right"), (1.03, right, "left")):
        for position, word in enumerate(words):
            labels.write(ax, x, -position, word, column._replace(sides=(toward, "center")))
    for x, name in ((0.0, "query"), (1.0, "key")):
        ax.text(x, 0.6, name, ha="center", va="bottom", fontsize=figures.SMALL, color=colors.GREY)
    ax.set(xlim=(-side, 1 + side), ylim=(-longest + 0.4, 2.0))
    return figure


def _arc(line: Line, band: float) -> Path:
    """Half an ellipse, as high as it spans; above where the query looks back, below where it looks ahead."""
    kind = figures.need("matplotlib.path").Path
    side = 1 if line.j < line.i else -1
    foot, control = side * band, side * (band + abs(line.i - line.j) * 4 / 3)  # a cubic rises to 3/4 of its control
    corners = [(line.i, foot), (line.i, control), (line.j, control), (line.j, foot)]
    return kind(corners, [kind.MOVETO, kind.CURVE4, kind.CURVE4, kind.CURVE4])


def _add(ax: Axes, paths: Sequence[Path], lines: Sequence[Line], color: str) -> None:
    rgba = figures.need("matplotlib.colors").to_rgba
    ax.add_collection(
        figures.need("matplotlib.collections").PathCollection(
            paths,
            facecolors="none",
            edgecolors=[rgba(color, 0.25 + 0.75 * line.strength) for line in lines],
            linewidths=[_THINNEST + (_THICKEST - _THINNEST) * line.strength for line in lines],
        )
    )
