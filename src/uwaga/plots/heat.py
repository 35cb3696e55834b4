"""An attention matrix as a heat map. Letters: Q queries, K keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from uwaga.plots import colors, figures, labels
from uwaga.plots.cells import Cells, Weights, cells, pick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy import ndarray

MOST_CELLS = 256  # along an axis: more cannot be told apart in print
_PER_TOKEN = 0.13  # inches: a line of small text
_BESIDE = 1.1  # inches: labels and the bar of colours


def heatmap(
    weights: Weights,
    tokens: Sequence[str] | None = None,
    *,
    key_tokens: Sequence[str] | None = None,
    at: int | tuple[int, ...] = (),
    how: str = "mass",
    vmax: float | None = None,
    gamma: float = 1.0,
    ax: Axes | None = None,
) -> Figure:
    """Draw one attention matrix: a row per query, a column per key, darker for more weight.

    Args:
        weights: a map or a tensor (..., Q, K). A map of more than 256 queries or keys is drawn from its `pool`, never
            densified. Weights below zero (a difference of maps) are drawn in orange.
        tokens: Q labels for the queries, and for the keys where `key_tokens` is None and Q = K. A pooled map has
            numbers for positions instead.
        key_tokens: K labels for the keys.
        at: indices of the leading dimensions, such as (sequence, head); 0 where a dimension has one entry.
        how: of a pooled map: "mass" shows the weight on a cell's keys, averaged over its queries; "max" keeps needles.
        vmax: the weight of the darkest colour; None: the largest there is.
        gamma: exponent of the colours; 0.5 tells small weights apart that 1.0 leaves pale.
        ax: axes to draw into; None makes a figure.

    Returns:
        The figure. `save(figure, "map.pdf")` keeps its text as text.

    Raises:
        ValueError: labels that are not one for each query or key, or `at` that does not pick one matrix.
        ModuleNotFoundError: without matplotlib.
    """
    drawn = cells("heatmap", pick("heatmap", weights, at), MOST_CELLS, how)
    if key_tokens is None and drawn.queries == drawn.keys:
        key_tokens = tokens
    labels.need_one_each("heatmap", "tokens", tokens, drawn.queries, "queries")
    labels.need_one_each("heatmap", "key_tokens", key_tokens, drawn.keys, "keys")
    figure, ax = figures.place(ax, *_inches(drawn))
    image = draw(ax, drawn, scale(drawn.matrices, vmax, gamma))
    color_bar(figure, image, ax, drawn.meaning)
    label_positions(ax)
    if not drawn.is_pooled:
        labels.label_axes(ax, tokens, key_tokens)
    return figure


def draw(ax: Axes, drawn: Cells, norm: Normalize) -> AxesImage:
    """One matrix as coloured cells, in the coordinates of its queries and keys."""
    return ax.imshow(
        drawn.matrices,
        cmap=colors.diverging() if norm.vmin < 0 else colors.sequential(),
        norm=norm,
        extent=(-0.5, drawn.keys - 0.5, drawn.queries - 0.5, -0.5),
        # A cross-attention of many keys and few queries would be a thread if its cells were squares.
        aspect="equal" if 0.5 <= drawn.queries / drawn.keys <= 2 else "auto",
        interpolation="none",  # vector formats get the numbers themselves, and no seams between the cells
    )


def scale(matrices: ndarray, vmax: float | None, gamma: float) -> Normalize:
    """From weight to colour: 0 to vmax, or -vmax to vmax where there is anything below zero."""
    if gamma <= 0:
        raise ValueError(f"plots: gamma must be above 0, not {gamma}")
    vmax = largest(matrices) if vmax is None else vmax
    if not (matrices < 0).any():
        return figures.need("matplotlib.colors").PowerNorm(gamma, vmin=0.0, vmax=vmax)
    signed = (lambda x: abs(x) ** gamma * (1 - 2 * (x < 0)), lambda x: abs(x) ** (1 / gamma) * (1 - 2 * (x < 0)))
    return figures.need("matplotlib.colors").FuncNorm(signed, vmin=-vmax, vmax=vmax)


def largest(matrices: ndarray) -> float:
    """The largest size of a weight; 1 where all are 0, so that there is a scale. A nan is none."""
    return float(abs(matrices[matrices == matrices]).max(initial=0.0)) or 1.0


def color_bar(figure: Figure, image: AxesImage, axes: object, meaning: str) -> None:
    """What the colours mean, beside the axes."""
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, aspect=30)
    bar.set_label(meaning, fontsize=figures.SMALL)
    bar.ax.tick_params(labelsize=figures.SMALL, length=1.5)
    bar.outline.set_linewidth(0.5)


def label_positions(ax: Axes) -> None:
    """The names of the axes, and thin lines."""
    ax.set_xlabel("key", fontsize=figures.NORMAL)
    ax.set_ylabel("query", fontsize=figures.NORMAL)
    ax.tick_params(labelsize=figures.SMALL, length=1.5)
    for spine in ax.spines.values():
        spine.set_linewidth(0.5)


def _inches(drawn: Cells) -> tuple[float, float]:
    """Large enough for one line of text per token, within the width of a page."""
    width, height = (
        min(max(count * _PER_TOKEN, 2.2), figures.WIDEST - _BESIDE) for count in (drawn.keys, drawn.queries)
    )
    return width + _BESIDE, height + _BESIDE / 2
