"""Heat maps: one attention matrix, a grid of the matrices of all heads, a matrix of a statistic of every head.

Letters: H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy import ndarray

    from uwaga.inspect.heads.table import HeadTable

MAX_HEATMAP_SIZE = 256  # queries or keys of a heat map: more cannot be told apart in print
MAX_PANEL_SIZE = 64  # the same of a panel of a head grid
_PANELS_PER_ROW = 6  # of a head grid with one layer
_GRID_GAMMA = 0.5  # the weights of a head with an attention sink would leave all other heads of a grid pale

# Inches.
_TOKEN = 0.13  # a line of small text
_HEATMAP_MARGIN = 1.1  # labels and colour bar
_PANEL, _GRID_MARGIN = 1.2, 0.85  # a panel; names of the layers and colour bar
_CELL = 0.3  # a cell of a head matrix
_MATRIX_MARGIN, _MATRIX_MARGIN_BELOW = 0.9, 0.6  # colour bar and names of the axes


def heatmap(
    weights: Weights,
    tokens: Sequence[str] | None = None,
    *,
    key_tokens: Sequence[str] | None = None,
    at: int | tuple[int, ...] = (),
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
        ax: axes to draw into; None makes a figure.

    Returns:
        The figure. `save(figure, "map.pdf")` keeps its text as text.

    Raises:
        ValueError: not one label for each query or key, or `at` that does not select one matrix.
        ModuleNotFoundError: matplotlib is not installed.
    """
    drawn = matrix_data("heatmap", weights, at, MAX_HEATMAP_SIZE)
    if key_tokens is None and drawn.queries == drawn.keys:
        key_tokens = tokens
    labels.check_count("heatmap", "tokens", tokens, drawn.queries, "queries")
    labels.check_count("heatmap", "key_tokens", key_tokens, drawn.keys, "keys")
    # Inches: a line of text per token, within the width of a page.
    most = figures.PAGE_WIDTH - _HEATMAP_MARGIN
    width, height = (min(max(count * _TOKEN, 2.2), most) for count in (drawn.keys, drawn.queries))
    if ax is None:
        ax = figures.new_figure(width + _HEATMAP_MARGIN, height + _HEATMAP_MARGIN / 2).add_subplot()
    image = _draw_cells(ax, drawn, _largest(drawn.matrix))
    figures.add_color_bar(image, ax, ax.figure, _color_label(drawn))
    _label_positions(ax)
    if not drawn.is_pooled:
        labels.label_axes(ax, tokens, key_tokens)
    return ax.figure.figure


def _draw_cells(ax: Axes, drawn: MatrixData, vmax: float, gamma: float = 1.0) -> AxesImage:
    """Draw one matrix as coloured cells, in the coordinates of its queries and keys.

    Colours go from 0 to vmax with the exponent gamma, or from -vmax to vmax where a weight is below zero.
    """
    colors = figures.import_matplotlib("matplotlib.colors")
    is_signed = bool((drawn.matrix < 0).any())
    return ax.imshow(
        drawn.matrix,
        cmap=figures.diverging() if is_signed else figures.sequential(),
        norm=colors.Normalize(-vmax, vmax) if is_signed else colors.PowerNorm(gamma, 0.0, vmax),
        extent=(-0.5, drawn.keys - 0.5, drawn.queries - 0.5, -0.5),
        # Square cells would make a matrix of many keys and few queries a thin line.
        aspect="equal" if 0.5 <= drawn.queries / drawn.keys <= 2 else "auto",
        interpolation="none",  # vector formats store one pixel per cell, without seams between the cells
    )


def _color_label(drawn: MatrixData) -> str:
    return "weight on the keys of a cell" if drawn.is_pooled else "weight"


def _largest(matrix: ndarray) -> float:
    """Return the largest absolute value, NaN left out; 1 where all are 0, so that the scale is not empty."""
    return float(abs(matrix[matrix == matrix]).max(initial=0.0)) or 1.0


def _label_positions(ax: Axes) -> None:
    """Write the names of the axes, and make their lines thin."""
    ax.set_xlabel("key", fontsize=figures.NORMAL)
    ax.set_ylabel("query", fontsize=figures.NORMAL)
    ax.tick_params(labelsize=figures.SMALL, length=1.5)
    for spine in ax.spines.values():
        spine.set_linewidth(0.5)


def head_grid(maps: Weights | Sequence[Weights] | Mapping[object, Weights], *, sequence: int = 0) -> Figure:
    """Draw every head of one layer, or of several: a row per layer, a column per head, all with one colour scale.

    Args:
        maps: a map or tensor (..., H, Q, K); or several, as a sequence or a mapping from layer to map. Maps of more than
            64 queries or keys are drawn from their `pool`.
        sequence: which sequence of the batch.

    Returns:
        The figure.

    Raises:
        ValueError: no maps, or weights that do not have the dimensions (batch, H, Q, K) or (H, Q, K).
        ModuleNotFoundError: matplotlib is not installed.
    """
    layers: Mapping[object, Weights]
    if isinstance(maps, WeightMap | Tensor):
        layers = {None: maps}
    else:
        layers = maps if isinstance(maps, Mapping) else dict[object, Weights](enumerate(maps))
    check(layers, "head_grid: there are no maps to draw")
    drawn = [
        [
            matrix_data("head_grid", weights, (sequence, head)[max(4 - len(weights.shape), 0) :], MAX_PANEL_SIZE)
            for head in range(weights.shape[-3] if len(weights.shape) > 2 else 1)
        ]
        for weights in layers.values()
    ]
    most = max(map(len, drawn))
    # The heads of a single layer go over several rows.
    columns = most if len(drawn) > 1 else min(most, _PANELS_PER_ROW)
    rows = len(drawn) if len(drawn) > 1 else -(-most // columns)
    side = min(_PANEL, (figures.PAGE_WIDTH - _GRID_MARGIN) / columns)
    figure = figures.new_figure(side * columns + _GRID_MARGIN, (side + 0.05) * rows + 0.15)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    largest = max(_largest(data.matrix) for heads in drawn for data in heads)
    for row, (layer, heads) in enumerate(zip(layers, drawn, strict=True)):
        for head, data in enumerate(heads):
            ax = axes[row, head] if len(drawn) > 1 else axes.flat[head]
            image = _draw_cells(ax, data, largest, _GRID_GAMMA)
            ax.set_axis_on()
            ax.set(xticks=[], yticks=[])
            ax.set_title(f"head {head}" * (row == 0), fontsize=figures.SMALL, pad=2)
            is_named = len(drawn) > 1 and head == 0
            ax.set_ylabel(labels.layer_name(layer) if is_named else "", fontsize=figures.SMALL)
            for spine in ax.spines.values():
                spine.set_linewidth(0.4)
    figures.add_color_bar(image, axes, figure, _color_label(drawn[0][0]))
    return figure


def head_matrix(table: HeadTable, statistics: str | Sequence[str]) -> Figure:
    """Draw statistics of a head table, each as a matrix: a row per layer, a column per head, darker for larger values.

    Args:
        table: what `uwaga.inspect.head_table` returned.
        statistics: names of columns of the table; one, or several, drawn one above another. NaN, as for a head that a
            layer does not have, is drawn grey.

    Returns:
        The figure.

    Raises:
        ValueError: a name that is no column of the table.
        ModuleNotFoundError: matplotlib is not installed.
    """
    names = [statistics] if isinstance(statistics, str) else list(statistics)
    matrices = [table.matrix(name).numpy() for name in names]
    layers, heads = matrices[0].shape
    cell = min(_CELL, (figures.PAGE_WIDTH - _MATRIX_MARGIN) / max(heads, 3))
    height = max(layers, 2) * cell + _MATRIX_MARGIN_BELOW
    figure = figures.new_figure(max(heads, 3) * cell + _MATRIX_MARGIN, height * len(names))
    for ax, name, matrix in zip(figure.subplots(len(names), 1, squeeze=False).flat, names, matrices, strict=True):
        image = _draw_cells(ax, MatrixData(matrix, layers, heads), _largest(matrix))
        figures.add_color_bar(image, ax, figure, "")
        _label_positions(ax)
        ax.set_title(name.replace("_", " "), fontsize=figures.NORMAL, pad=3)
        ax.set(xlabel="head", ylabel="layer")
        labels.label_axes(ax, [labels.layer_name(layer).removeprefix("layer ") for layer in table.layers], None)
    return figure


def changed_heads(before: Recording, after: Recording, *, top: int = 4, sequence: int = 0) -> Figure:
    """Draw the heads that changed most: a row per head with its map before, after, and after minus before.

    The order is as in `uwaga.inspect.head_changes`, whose total variation is in the titles. The tokens of the recordings label the maps.

    Args:
        before, after: two recordings of the same number of tokens.
        top: how many heads.
        sequence: which sequence of the batch.

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
        layer = AttentionId(str(row["kind"]), int(str(row["layer"])))
        left, right = before.maps[layer], after.maps[layer]
        head, change = int(str(row["head"])), f"changed by {row['total_variation']:.3f}"
        at = (sequence, head)[4 - len(left.shape) :]
        for ax, weights, of, title in (
            (panels[0], left, before, f"{labels.layer_name(layer)}, head {head}\nbefore"),
            (panels[1], right, after, "after"),
            (panels[2], DifferenceMap(right, left), after, f"after minus before\n{change}"),
        ):
            # The tokens of the queries and of the keys, None if they are unknown.
            texts = [of.tokens.get(stack, []) for stack in layer.stacks]
            queries, keys = (text[sequence] if -len(text) <= sequence < len(text) else None for text in texts)
            heatmap(weights, queries, key_tokens=keys, at=at, ax=ax)
            ax.set_title(title, fontsize=figures.SMALL, pad=3)
    return figure


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
