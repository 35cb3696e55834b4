"""Attention as arcs between tokens. Letters: Q queries, K keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from uwaga._base.arguments import check
from uwaga.plots import figures, labels
from uwaga.plots.matrices import Weights, matrix_data

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.path import Path
    from numpy import ndarray
MAX_TOKENS = 128  # more lines cannot be told apart
_MIN_WIDTH, _MAX_WIDTH = 0.3, 3.0  # of lines, in points


class Arc(NamedTuple):
    """One weight to draw, from query i to key j."""

    i: int
    j: int
    strength: float  # the absolute weight over the largest one, 0 to 1


def arcs(weights: Weights, tokens: Sequence[str], *, at: int | tuple[int, ...] = (), threshold: float = 0.05) -> Figure:
    """Draw one attention matrix as arcs from each query to its keys, thicker for more weight.

    After Vig, "A Multiscale Visualization of Attention in the Transformer Model" (2019). Arcs above the tokens are weights on
    earlier tokens (j < i), arcs below are weights on later ones, and a dot is a token's weight on itself.

    Args:
        weights: a map or a tensor (..., Q, K) with as many queries as keys, at most 128; `WordMap` makes a long one shorter.
        tokens: Q labels.
        at: indices of the leading dimensions, as for `heatmap`.
        threshold: the smallest absolute weight that is drawn.

    Returns:
        The figure.

    Raises:
        ValueError: another size, not one label for each token, or `at` that does not select one matrix.
        ModuleNotFoundError: matplotlib is not installed.
    """
    drawn = matrix_data("arcs", weights, at, MAX_TOKENS)
    is_drawable = drawn.queries == drawn.keys <= MAX_TOKENS
    rule = f"takes as many queries as keys, at most {MAX_TOKENS}, not {drawn.queries} and {drawn.keys}"
    check(is_drawable, f"arcs: {rule}: merge subword tokens with WordMap, or draw a heatmap")
    labels.check_count("arcs", "tokens", tokens, drawn.queries, "queries")
    lines = _lines(drawn.matrix, threshold)
    words = [labels.clean(token) for token in tokens]
    text = labels.fit(words, figures.PAGE_WIDTH * figures.POINTS_PER_INCH / (len(words) + 0.4))
    back, ahead = (max((side * (line.i - line.j) for line in lines), default=0) for side in (1, -1))
    width = max(text.spacing * (len(words) + 0.4) / figures.POINTS_PER_INCH, 1.5)
    # The axes fill the figure, so that their size is known before anything is drawn.
    ax = figures.new_figure(width, 2.2 if ahead <= 0 else 3.4, layout="none").add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set_axis_off()
    # The tokens are between the heights -band and band.
    top, bottom = 1.05 * max(back, 1), 1.05 * max(ahead, 0)
    height = figures.size_in_points(ax)[1]
    band = text.half_height * (top + bottom) / max(height - 2 * text.half_height, text.half_height)
    others, dots = ([line for line in lines if (line.i == line.j) == is_dot] for is_dot in (False, True))
    color = figures.import_matplotlib("matplotlib.colors").to_rgba
    ax.add_collection(
        figures.import_matplotlib("matplotlib.collections").PathCollection(
            [_arc(line, band) for line in others],
            facecolors="none",
            edgecolors=[color(figures.LINE_COLOR, 0.25 + 0.75 * line.strength) for line in others],
            linewidths=[_MIN_WIDTH + (_MAX_WIDTH - _MIN_WIDTH) * line.strength for line in others],
        )
    )
    sizes = [25 * dot.strength for dot in dots]
    ax.scatter([dot.i for dot in dots], [band] * len(dots), s=sizes, color=figures.LINE_COLOR, lw=0)
    # In the middle where there are arcs on both sides, else close to the arcs.
    y, side = (0.0, "center") if ahead > 0 else (band * (1 - labels.GAP / text.half_height), "top")
    for position, word in enumerate(words):
        # Without parse_math, a token with two dollar signs would be set as a formula.
        ax.text(position, y, word, ha="center", va=side, rotation=text.rotation, fontsize=text.font, parse_math=False)
    ax.set(xlim=(-0.7, len(words) - 0.3), ylim=(-band - bottom, band + top))
    return ax.figure.figure


def _lines(matrix: ndarray, threshold: float) -> list[Arc]:
    """Return the weights from the threshold up, the largest last, so that it is drawn on top."""
    sizes = abs(matrix)
    largest = sizes.max(initial=0.0) or 1.0
    results = [
        Arc(int(i), int(j), float(sizes[i, j] / largest)) for i, j in zip(*(sizes >= threshold).nonzero(), strict=True)
    ]
    return sorted(results, key=lambda line: line.strength)


def _arc(line: Arc, band: float) -> Path:
    """Return half an ellipse as high as it is wide, above the tokens for an earlier key, else below."""
    path = figures.import_matplotlib("matplotlib.path").Path
    side = 1 if line.j < line.i else -1
    foot, control = side * band, side * (band + abs(line.i - line.j) * 4 / 3)  # a cubic rises to 3/4 of its control
    corners = [(line.i, foot), (line.i, control), (line.j, control), (line.j, foot)]
    arc: Path = path(corners, [path.MOVETO, path.CURVE4, path.CURVE4, path.CURVE4])
    return arc
