"""Heat maps: one attention matrix, a grid of the matrices of all heads, a matrix of a statistic of every head.

Letters: H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from uwaga._base.arguments import check, integer
from uwaga.inspect.heads.table import head_changes
from uwaga.inspect.patching import PatchingResult
from uwaga.inspect.recordings.recording import Recording
from uwaga.maps.base import WeightMap
from uwaga.maps.derived import DifferenceMap
from uwaga.nn.attention_id import AttentionId
from uwaga.plots import figures, labels
from uwaga.plots.matrices import MatrixData, Weights, matrix_data

if TYPE_CHECKING:
    from collections.abc import Hashable

    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy import ndarray

    from uwaga.inspect.heads.table import HeadTable
    from uwaga.maps.map import AttentionMap

MAX_HEATMAP_SIZE = 256  # queries or keys of a heat map: more cannot be told apart in print
MAX_PANEL_SIZE = 64  # the same of a panel of a head grid
_PANELS_PER_ROW = 6  # of a head grid with one layer
_MAX_WRITTEN_HEADS = 16  # heads or layers of a head matrix whose values are written into the cells

# Inches.
_TOKEN = 0.13  # a line of small text
_HEATMAP_MARGIN = 1.1  # labels and colour bar
_PANEL, _GRID_MARGIN = 1.2, 0.85  # a panel; names of the layers and colour bar
_CELL, _MIN_CELL = 0.3, 0.2  # a cell of a head matrix, and how far it shrinks so that two panels fit side by side
_MATRIX_MARGIN, _MATRIX_MARGIN_BELOW = 0.9, 0.6  # colour bar and names of the axes


def heatmap(
    weights: Weights,
    tokens: Sequence[str] | None = None,
    *,
    key_tokens: Sequence[str] | None = None,
    at: int | tuple[int, ...] = (),
    pooling: str = "sum",
    vmax: float | None = None,
    gamma: float = 1.0,
    ax: Axes | None = None,
) -> Figure:
    """Draw one attention matrix: a row per query, a column per key, darker for more weight.

    Args:
        weights: a map or a tensor (..., Q, K). A map of more than 256 queries or keys is drawn from its `pool`, never
            made dense. Weights below zero (a difference of maps) are drawn in orange.
        tokens: Q labels for the queries, and for the keys where `key_tokens` is None and Q = K. A pooled map shows
            positions instead.
        key_tokens: K labels for the keys.
        at: indices of the leading dimensions, such as (sequence, head); 0 where a dimension has one entry.
        pooling: how a large map is pooled: "sum" is the sum over a cell's keys, averaged over its queries; "max" is the
            largest weight of the cell, so that single large weights stay visible.
        vmax: the weight of the darkest colour; None: the largest of the matrix.
        gamma: exponent of the colour scale, above 0; below 1 it gives small weights more contrast.
        ax: axes to draw into; None makes a figure.

    Returns:
        The figure. `save(figure, "map.pdf")` keeps its text as text.

    Raises:
        ValueError: not one label for each query or key, or `at` that does not select one matrix.
        ModuleNotFoundError: matplotlib is not installed.
    """
    drawn = matrix_data("heatmap", weights, at, MAX_HEATMAP_SIZE, pooling)
    if key_tokens is None and drawn.queries == drawn.keys:
        key_tokens = tokens
    labels.check_count("heatmap", "tokens", tokens, drawn.queries, "queries")
    labels.check_count("heatmap", "key_tokens", key_tokens, drawn.keys, "keys")
    # Inches: a line of text per token, within the width of a page.
    most = figures.PAGE_WIDTH - _HEATMAP_MARGIN
    width, height = (min(max(count * _TOKEN, 2.2), most) for count in (drawn.keys, drawn.queries))
    ax = figures.axes_or_new(ax, width + _HEATMAP_MARGIN, height + _HEATMAP_MARGIN / 2)
    image = _draw_cells(ax, drawn, _color_scale(drawn.matrices, vmax, gamma))
    figures.add_color_bar(image, ax, ax.figure, drawn.color_label)
    _label_positions(ax)
    if not drawn.is_pooled:
        labels.label_axes(ax, tokens, key_tokens)
    return ax.figure.figure


def _draw_cells(ax: Axes, drawn: MatrixData, norm: Normalize) -> AxesImage:
    """Draw one matrix as coloured cells, in the coordinates of its queries and keys."""
    return ax.imshow(
        drawn.matrices,
        cmap=figures.diverging() if norm.vmin is not None and norm.vmin < 0 else figures.sequential(),
        norm=norm,
        extent=(-0.5, drawn.keys - 0.5, drawn.queries - 0.5, -0.5),
        # Square cells would make a matrix of many keys and few queries a thin line.
        aspect="equal" if 0.5 <= drawn.queries / drawn.keys <= 2 else "auto",
        interpolation="none",  # vector formats store one pixel per cell, without seams between the cells
    )


def _color_scale(matrices: ndarray, vmax: float | None, gamma: float) -> Normalize:
    """Return the colour scale from 0 to vmax, or from -vmax to vmax where a weight is below zero."""
    check(gamma > 0, f"plots: gamma must be above 0, not {gamma}")
    vmax = _largest(matrices) if vmax is None else vmax
    if not (matrices < 0).any():
        return figures.import_matplotlib("matplotlib.colors").PowerNorm(gamma, vmin=0.0, vmax=vmax)
    signed = (lambda x: abs(x) ** gamma * (1 - 2 * (x < 0)), lambda x: abs(x) ** (1 / gamma) * (1 - 2 * (x < 0)))
    return figures.import_matplotlib("matplotlib.colors").FuncNorm(signed, vmin=-vmax, vmax=vmax)


def _largest(matrices: ndarray) -> float:
    """Return the largest absolute value, NaN left out; 1 where all are 0, so that the scale is not empty."""
    return float(abs(matrices[matrices == matrices]).max(initial=0.0)) or 1.0


def _label_positions(ax: Axes) -> None:
    """Write the names of the axes, and make their lines thin."""
    ax.set_xlabel("key", fontsize=figures.NORMAL)
    ax.set_ylabel("query", fontsize=figures.NORMAL)
    ax.tick_params(labelsize=figures.SMALL, length=1.5)
    for spine in ax.spines.values():
        spine.set_linewidth(0.5)


def head_grid(
    maps: Weights | Sequence[Weights] | Mapping[object, Weights],
    *,
    sequence: int = 0,
    pooling: str = "sum",
    shared: bool = True,
    gamma: float = 0.5,
) -> Figure:
    """Draw every head of one layer, or of several: a row per layer, a column per head.

    Args:
        maps: a map or tensor (..., H, Q, K); or several, as a sequence or a mapping from layer to map. Maps of more than
            64 queries or keys are drawn from their `pool`.
        sequence: which sequence of the batch.
        pooling: how large maps are pooled, as for `heatmap`.
        shared: one colour scale for all panels; False: one per panel, up to its largest weight, and no colour bar.
        gamma: exponent of the colour scale, as for `heatmap`; 0.5 by default, since the weights of one head with an
            attention sink would leave all other heads pale.

    Returns:
        The figure.

    Raises:
        ValueError: no maps, or weights that do not have the dimensions (batch, H, Q, K) or (H, Q, K).
        ModuleNotFoundError: matplotlib is not installed.
    """
    layers = _by_layer(maps)
    drawn = []
    for weights in layers.values():
        at = (sequence,) if len(weights.shape) > 3 else ()
        drawn.append(matrix_data("head_grid", weights, at, MAX_PANEL_SIZE, pooling, remaining=1))
    most = max(len(data.matrices) for data in drawn)
    # The heads of a single layer go over several rows.
    columns = most if len(drawn) > 1 else min(most, _PANELS_PER_ROW)
    rows = len(drawn) if len(drawn) > 1 else -(-most // columns)
    side = min(_PANEL, (figures.PAGE_WIDTH - _GRID_MARGIN) / columns)
    figure = figures.new_figure(side * columns + _GRID_MARGIN, (side + 0.05) * rows + 0.15)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    largest = max(_largest(data.matrices) for data in drawn) if shared else None
    for row, (layer, data) in enumerate(zip(layers, drawn, strict=True)):
        for head, matrix in enumerate(data.matrices):
            ax = axes[row, head] if len(drawn) > 1 else axes.flat[head]
            image = _draw_cells(ax, data._replace(matrices=matrix), _color_scale(matrix, largest, gamma))
            ax.set_axis_on()
            ax.set(xticks=[], yticks=[])
            ax.set_title(f"head {head}" * (row == 0), fontsize=figures.SMALL, pad=2)
            is_named = len(drawn) > 1 and head == 0
            ax.set_ylabel(labels.layer_name(layer) if is_named else "", fontsize=figures.SMALL)
            for spine in ax.spines.values():
                spine.set_linewidth(0.4)
    if shared:
        figures.add_color_bar(image, axes, figure, drawn[0].color_label)
    return figure


def _by_layer(maps: Weights | Sequence[Weights] | Mapping[object, Weights]) -> Mapping[object, Weights]:
    if isinstance(maps, WeightMap | Tensor):
        return {None: maps}
    result: Mapping[object, Weights] = maps if isinstance(maps, Mapping) else dict[object, Weights](enumerate(maps))
    check(result, "head_grid: there are no maps to draw")
    return result


def head_matrix(table: HeadTable, statistics: str | Sequence[str], *, ax: Axes | None = None) -> Figure:
    """Draw statistics of a head table, each as a matrix: a row per layer, a column per head, darker for larger values.

    Args:
        table: what `uwaga.inspect.head_table` returned.
        statistics: names of columns of the table; one, or several, drawn side by side. NaN, as for a head that a layer
            does not have, is drawn grey.
        ax: axes to draw into, for one statistic; None makes a figure.

    Returns:
        The figure.

    Raises:
        ValueError: a name that is no column of the table, or several statistics with `ax`.
        ModuleNotFoundError: matplotlib is not installed.
    """
    names = [statistics] if isinstance(statistics, str) else list(statistics)
    check(ax is None or len(names) == 1, f"head_matrix: one pair of axes takes one statistic, not {len(names)}")
    matrices = [table.matrix(name) for name in names]
    axes = [ax] if ax is not None else _matrix_panels(len(names), *matrices[0].shape)
    for one, name, matrix in zip(axes, names, matrices, strict=True):
        _draw_matrix(one, name, matrix.numpy(), table.layers)
    return axes[0].figure.figure


def changed_heads(
    before: Recording | Mapping[Hashable, AttentionMap],
    after: Recording | Mapping[Hashable, AttentionMap],
    *,
    top: int = 4,
    sequence: int = 0,
    pooling: str = "sum",
) -> Figure:
    """Draw the heads that changed most: a row per head with its map before, after, and after minus before.

    The order is as in `uwaga.inspect.head_changes`, whose total variation is in the titles. The tokens of a recording label the maps;
    where two recordings have different tokens, each its own.

    Args:
        before, after: two recordings, or maps by layer, of the same number of tokens.
        top: how many heads.
        sequence: which sequence of the batch.
        pooling: how large maps are pooled, as for `heatmap`.

    Returns:
        The figure.

    Raises:
        ValueError: as `head_changes`; top below 1.
        ModuleNotFoundError: matplotlib is not installed.
    """
    rows = head_changes(before, after).rows[: integer(top, "changed_heads: top", 1)]
    figure = figures.new_figure(figures.PAGE_WIDTH, max(len(rows), 1) * figures.PAGE_WIDTH / 3)
    axes = figure.subplots(max(len(rows), 1), 3, squeeze=False)
    for panels, row in zip(axes, rows, strict=False):
        is_recorded = "kind" in row
        layer = (row["kind"], row["layer"]) if is_recorded else row["layer"]
        maps = [x.maps if isinstance(x, Recording) else x for x in (before, after)]
        left, right = (m[layer] for m in maps)  # type: ignore[index]  # the names of both, as head_changes checked
        head, change = int(str(row["head"])), f"changed by {row['total_variation']:.3f}"
        at = (sequence, head)[4 - len(left.shape) :]
        named = f"{labels.layer_name(layer)}, head {head}"
        for ax, weights, of, title in (
            (panels[0], left, before, f"{named}\nbefore"),
            (panels[1], right, after, "after"),
            (panels[2], DifferenceMap(right, left), after, f"after minus before\n{change}"),
        ):
            names = _token_names(of, str(row["kind"]), sequence) if is_recorded else (None, None)
            heatmap(weights, names[0], key_tokens=names[1], at=at, pooling=pooling, ax=ax)
            ax.set_title(title, fontsize=figures.SMALL, pad=3)
    return figure


def _token_names(of: object, kind: str, sequence: int) -> tuple[list[str] | None, list[str] | None]:
    """Return the tokens of the queries and of the keys, None if they are unknown."""
    assert isinstance(of, Recording)
    tokens = of.tokens
    rows = [tokens.get(stack, []) for stack in AttentionId(kind, 0).stacks]
    queries, keys = (row[sequence] if -len(row) <= sequence < len(row) else None for row in rows)
    return queries, keys


def _matrix_panels(count: int, layers: int, heads: int) -> list[Axes]:
    """Return the axes of a new figure with `count` panels, as many in a row as fit on a page."""
    columns = max(1, min(count, int(figures.PAGE_WIDTH / (max(heads, 3) * _MIN_CELL + _MATRIX_MARGIN))))
    rows = -(-count // columns)
    cell = min(_CELL, (figures.PAGE_WIDTH / columns - _MATRIX_MARGIN) / max(heads, 3))
    width, height = max(heads, 3) * cell + _MATRIX_MARGIN, max(layers, 2) * cell + _MATRIX_MARGIN_BELOW
    figure = figures.new_figure(width * columns, height * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.set_axis_off()
    return axes[:count]


def _draw_matrix(ax: Axes, name: str, matrix: ndarray, layers: Sequence[object]) -> None:
    image = ax.imshow(
        matrix,
        cmap=figures.diverging() if (matrix < 0).any() else figures.sequential(),
        norm=_color_scale(matrix, None, 1.0),
        aspect="auto",
        interpolation="none",
    )
    figures.add_color_bar(image, ax, ax.figure, "")
    ax.set_title(name.replace("_", " "), fontsize=figures.NORMAL, pad=3)
    ax.set_xlabel("head", fontsize=figures.NORMAL)
    ax.set_ylabel("layer", fontsize=figures.NORMAL)
    names_of_layers = [labels.layer_name(name).removeprefix("layer ") for name in layers]
    for axis, names, points in zip(
        (ax.xaxis, ax.yaxis), (range(matrix.shape[1]), names_of_layers), figures.size_in_points(ax), strict=True
    ):
        shown = range(0, len(names), labels.label_step(len(names), points))
        axis.set_ticks(shown, [str(names[place]) for place in shown], fontsize=figures.SMALL)
    ax.tick_params(length=1.5, pad=1.5)
    for (layer, head), value in np.ndenumerate(matrix) if max(matrix.shape) <= _MAX_WRITTEN_HEADS else ():
        if value == value:
            red, green, blue, _ = image.cmap(float(np.asarray(image.norm(value))))
            color, size = figures.text_color((red, green, blue)), figures.SMALL - 1
            ax.text(head, layer, _short_number(value), ha="center", va="center", fontsize=size, color=color)


def _short_number(value: float) -> str:
    """Return about two significant digits, in at most four characters.

    >>> [_short_number(value) for value in (0.0312, 0.5, 12.34, 1234.0)]
    ['.03', '.50', '12', '1234']
    """
    return f"{value:.2f}".removeprefix("0") if abs(value) < 10 else f"{value:.0f}"


def patching_effects(result: PatchingResult, *, head: int | None = None) -> Figure:
    """Draw the effects of `uwaga.inspect.activation_patching` as a heat map.

    Rows are layers; columns are heads, or positions if positions were patched.

    Args:
        result: what was patched; it may be incomplete.
        head: with heads and positions both, the index of the head whose positions are shown.

    Raises:
        ValueError: heads and positions were patched, and `head` is None or out of range.
    """
    effects = result.effects()
    if result.heads is not None and result.spans is not None:
        head = integer(head, "patching_effects: with heads and positions, head", 0, len(result.heads) - 1)
        effects = effects[:, head : head + 1]
    if result.spans is not None:
        matrix = effects[:, 0]
        columns = [str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in result.spans]
    else:
        matrix = effects[..., 0]
        columns = ["all"] if result.heads is None else list(map(str, result.heads))
    figure = heatmap(matrix, [str(layer) for layer in result.layers], key_tokens=columns)
    cells, bar = figure.axes[:2]
    cells.set_xlabel("head" if result.spans is None else "position")
    cells.set_ylabel(f"{result.kind} layer")
    bar.set_ylabel("restored part of the metric")
    return figure
