"""Attention as arcs or lines between tokens. Letters: Q queries, K keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from uwaga._base.arguments import check, choice
from uwaga.plots import figures, labels
from uwaga.plots.matrices import Weights, matrix_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path
    from numpy import ndarray
MAX_TOKENS = 128  # more lines cannot be told apart
_MIN_WIDTH, _MAX_WIDTH = 0.3, 3.0  # of lines, in points
_COLUMN_GAP = 84.0  # points between the two columns


class Arc(NamedTuple):
    """One weight to draw, from query i to key j."""

    i: int
    j: int
    strength: float  # the absolute weight over the largest one, 0 to 1


def arcs(
    weights: Weights,
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    at: int | tuple[int, ...] = (),
    layout: str = "line",
    threshold: float = 0.05,
    color: str = figures.LINE_COLOR,
    ax: Axes | None = None,
) -> Figure:
    """Draw one attention matrix as lines from each query to its keys, thicker for more weight.

    After Vig, "A Multiscale Visualization of Attention in the Transformer Model" (2019).

    Args:
        weights: a map or a tensor (..., Q, K) with at most 128 queries and keys; `WordMap` makes a long one shorter.
        tokens: Q labels for the queries, and for the keys where `key_tokens` is None and Q = K.
        key_tokens: K labels for the keys.
        at: indices of the leading dimensions, as for `heatmap`.
        layout: "line" writes the tokens once, with arcs above for weights on earlier tokens (j < i), arcs below for
            weights on later ones, and a dot for a token's weight on itself; it needs Q = K. "columns" writes queries on the left and keys on the
            right, with straight lines.
        threshold: the smallest absolute weight that is drawn.
        color: the colour of the lines; to compare two heads, draw both into one `ax` in two colours.
        ax: axes to draw into; None makes a figure.

    Returns:
        The figure.

    Raises:
        ValueError: too many tokens, not one label for each, an unknown layout, or `at` that does not select one
            matrix.
        ModuleNotFoundError: matplotlib is not installed.
    """
    choice(layout, "arcs: layout", ("line", "columns"))
    drawn = matrix_data("arcs", weights, at, MAX_TOKENS, None)
    queries, keys = drawn.queries, drawn.keys
    check(
        layout == "columns" or queries == keys,
        f"arcs: layout 'line' needs as many queries as keys, not {queries} and {keys}: take 'columns'",
    )
    key_tokens = tokens if key_tokens is None else key_tokens
    labels.check_count("arcs", "tokens", tokens, queries, "queries")
    labels.check_count("arcs", "key_tokens", key_tokens, keys, "keys")
    draw = _draw_line if layout == "line" else _draw_columns
    return draw(ax, _lines(drawn.matrices, threshold), tokens, key_tokens, color)


def _lines(matrix: ndarray, threshold: float) -> list[Arc]:
    """Return the weights from the threshold up, the largest last, so that it is drawn on top."""
    sizes = abs(matrix)
    largest = sizes.max(initial=0.0) or 1.0
    results = [
        Arc(int(i), int(j), float(sizes[i, j] / largest)) for i, j in zip(*(sizes >= threshold).nonzero(), strict=True)
    ]
    return sorted(results, key=lambda line: line.strength)


def _draw_line(ax: Axes | None, lines: Sequence[Arc], tokens: Sequence[str], _: Sequence[str], color: str) -> Figure:
    """Draw the tokens once, between the heights -band and band, and arcs above and below."""
    words = [labels.clean(token) for token in tokens]
    available = figures.PAGE_WIDTH * figures.POINTS_PER_INCH if ax is None else figures.size_in_points(ax)[0]
    text = labels.fit(words, available / (len(words) + 0.4))
    back, ahead = (max((side * (line.i - line.j) for line in lines), default=0) for side in (1, -1))
    width = max(text.spacing * (len(words) + 0.4) / figures.POINTS_PER_INCH, 1.5)
    ax = figures.bare_axes_or_new(ax, width, 2.2 if ahead <= 0 else 3.4)

    top, bottom = 1.05 * max(back, 1), 1.05 * max(ahead, 0)
    height = figures.size_in_points(ax)[1]
    band = text.half_height * (top + bottom) / max(height - 2 * text.half_height, text.half_height)
    others = [line for line in lines if line.i != line.j]
    _add(ax, [_arc(line, band) for line in others], others, color)
    dots = [line for line in lines if line.i == line.j]
    ax.scatter([dot.i for dot in dots], [band] * len(dots), s=[25 * dot.strength for dot in dots], color=color, lw=0)
    for position, word in enumerate(words):
        # In the middle where there are arcs on both sides, else close to the arcs.
        y, side = (0.0, "center") if ahead > 0 else (band * (1 - labels.GAP / text.half_height), "top")
        labels.write(ax, position, y, word, text._replace(alignment=("center", side)))
    ax.set(xlim=(-0.7, len(words) - 0.3), ylim=(-band - bottom, band + top))
    return ax.figure.figure


def _draw_columns(
    ax: Axes | None, lines: Sequence[Arc], tokens: Sequence[str], key_tokens: Sequence[str], color: str
) -> Figure:
    """Draw queries in the left column and keys in the right column, both from top to bottom."""
    left, right = ([labels.clean(token) for token in side] for side in (tokens, key_tokens))
    side = (labels.width(left + right, figures.NORMAL) + 2 * labels.GAP) / _COLUMN_GAP  # in units of the gap
    longest = max(len(left), len(right))
    width, height = _COLUMN_GAP * (1 + 2 * side), (longest + 1.6) * figures.NORMAL * labels.LINE_HEIGHT
    ax = figures.bare_axes_or_new(ax, width / figures.POINTS_PER_INCH, height / figures.POINTS_PER_INCH)
    path = figures.import_matplotlib("matplotlib.path").Path
    _add(ax, [path([(0.0, -line.i), (1.0, -line.j)]) for line in lines], lines, color)
    column = labels.TextStyle(figures.NORMAL, figures.NORMAL * labels.LINE_HEIGHT, 0.0, 0)
    for x, words, toward in ((-0.03, left, "right"), (1.03, right, "left")):
        for position, word in enumerate(words):
            labels.write(ax, x, -position, word, column._replace(alignment=(toward, "center")))
    for x, name in ((0.0, "query"), (1.0, "key")):
        ax.text(x, 0.6, name, ha="center", va="bottom", fontsize=figures.SMALL, color=figures.GREY)
    ax.set(xlim=(-side, 1 + side), ylim=(-longest + 0.4, 2.0))
    return ax.figure.figure


def _arc(line: Arc, band: float) -> Path:
    """Return half an ellipse as high as it is wide, above the tokens for an earlier key, else below."""
    path = figures.import_matplotlib("matplotlib.path").Path
    side = 1 if line.j < line.i else -1
    foot, control = side * band, side * (band + abs(line.i - line.j) * 4 / 3)  # a cubic rises to 3/4 of its control
    corners = [(line.i, foot), (line.i, control), (line.j, control), (line.j, foot)]
    arc: Path = path(corners, [path.MOVETO, path.CURVE4, path.CURVE4, path.CURVE4])
    return arc


def _add(ax: Axes, paths: Sequence[Path], lines: Sequence[Arc], color: str) -> None:
    rgba = figures.import_matplotlib("matplotlib.colors").to_rgba
    ax.add_collection(
        figures.import_matplotlib("matplotlib.collections").PathCollection(
            paths,
            facecolors="none",
            edgecolors=[rgba(color, 0.25 + 0.75 * line.strength) for line in lines],
            linewidths=[_MIN_WIDTH + (_MAX_WIDTH - _MIN_WIDTH) * line.strength for line in lines],
        )
    )
