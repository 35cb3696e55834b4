"""A statistic of every head as a matrix: a row per layer, a column per head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from uwaga.plots import colors, figures, heat, labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy import ndarray

    from uwaga.maps.interpretability.head_table import HeadTable

_CELL, _LEAST_CELL = 0.3, 0.2  # inches: what it is, and how far it shrinks so that two panels stand side by side
_BESIDE, _BELOW = 0.9, 0.6  # inches: the bar and the names of the axes
_MOST_NUMBERS = 16  # heads or layers of a panel whose numbers are written into the cells


def head_matrix(table: HeadTable, statistics: str | Sequence[str], *, ax: Axes | None = None) -> Figure:
    """Draw one or several statistics of a head table, each as a matrix of layers and heads, darker for more.

    Args:
        table: what `uwaga.maps.head_table` returned.
        statistics: names of its columns; one, or several side by side. A nan, such as a head that a layer does not have,
            is grey.
        ax: axes to draw into, for one statistic; None makes a figure.

    Returns:
        The figure.

    Raises:
        ValueError: a name that the table has no column for, or several statistics for one pair of axes.
        ModuleNotFoundError: without matplotlib.
    """
    names = [statistics] if isinstance(statistics, str) else list(statistics)
    if ax is not None and len(names) != 1:
        raise ValueError(f"head_matrix: one pair of axes takes one statistic, not {len(names)}")
    matrices = [table.matrix(name) for name in names]
    if ax is not None:
        figure, axes = ax.figure, [ax]
    else:
        figure, axes = _panels(len(names), *matrices[0].shape)
    for one, name, matrix in zip(axes, names, matrices, strict=True):
        _draw(one, name, matrix.numpy(), table.layers)
    return figure


def _panels(count: int, layers: int, heads: int) -> tuple[Figure, Sequence[Axes]]:
    """A figure of so many panels, as many in a row as a page holds."""
    columns = max(1, min(count, int(figures.WIDEST / (max(heads, 3) * _LEAST_CELL + _BESIDE))))
    rows = -(-count // columns)
    cell = min(_CELL, (figures.WIDEST / columns - _BESIDE) / max(heads, 3))
    width, height = max(heads, 3) * cell + _BESIDE, max(layers, 2) * cell + _BELOW
    figure = figures.new_figure(width * columns, height * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def _draw(ax: Axes, name: str, matrix: ndarray, layers: Sequence[object]) -> None:
    image = ax.imshow(
        matrix, cmap=colors.sequential(), norm=heat.scale(matrix, None, 1.0), aspect="auto", interpolation="none"
    )
    heat.color_bar(ax.figure, image, ax, "")
    ax.set_title(name.replace("_", " "), fontsize=figures.NORMAL, pad=3)
    ax.set_xlabel("head", fontsize=figures.NORMAL)
    ax.set_ylabel("layer", fontsize=figures.NORMAL)
    names_of_layers = [labels.layer(name).removeprefix("layer ") for name in layers]
    for axis, names, points in zip(
        (ax.xaxis, ax.yaxis), (range(matrix.shape[1]), names_of_layers), figures.size_in_points(ax), strict=True
    ):
        shown = range(0, len(names), labels.step(len(names), points))
        axis.set_ticks(shown, [str(names[place]) for place in shown], fontsize=figures.SMALL)
    ax.tick_params(length=1.5, pad=1.5)
    if max(matrix.shape) <= _MOST_NUMBERS:
        _write_numbers(image, ax, matrix)


def _write_numbers(image: AxesImage, ax: Axes, matrix: ndarray) -> None:
    for layer, row in enumerate(matrix):
        for head, value in enumerate(row):
            if value == value:
                color = colors.readable_on(image.cmap(image.norm(value))[:3])
                ax.text(head, layer, _short(value), ha="center", va="center", fontsize=figures.SMALL - 1, color=color)


def _short(value: float) -> str:
    """About two digits that matter, in four characters.

    >>> [_short(value) for value in (0.0312, 0.5, 12.34, 1234.0)]
    ['.03', '.50', '12', '1234']
    """
    return f"{value:.2f}".removeprefix("0") if abs(value) < 10 else f"{value:.0f}"
