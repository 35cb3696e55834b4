"""All heads at a glance: small multiples. Letters: H heads, Q queries, K keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from uwaga.maps.base import WeightMap
from uwaga.plots import figures, heat, labels
from uwaga.plots.cells import Cells, Weights, cells, pick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CELLS = 64  # along an axis of a panel
_WRAP = 6  # panels in a row, where there is one layer
_PANEL, _BESIDE = 1.2, 0.85  # inches: a panel; the names of the layers and the bar of colours


class Panel(NamedTuple):
    """One head's place in the grid."""

    row: int
    column: int
    drawn: Cells
    title: str  # above it, or ""
    beside: str  # left of it, or ""


def head_grid(
    maps: Weights | Sequence[Weights] | Mapping[object, Weights],
    *,
    sequence: int = 0,
    how: str = "mass",
    shared: bool = True,
    gamma: float = 0.5,
) -> Figure:
    """Draw every head of one layer, or of several: a row per layer, a column per head.

    Args:
        maps: a map or tensor (..., H, Q, K); or several, as a sequence or a mapping from layer to map. Maps of more than
            64 queries or keys are drawn from their `pool`.
        sequence: which sequence of the batch.
        how: of pooled maps, as for `heatmap`.
        shared: one scale of colours for all; False: each panel's darkest is its own largest weight, and there is no bar.
        gamma: exponent of the colours, as for `heatmap`; 0.5 here, since one head with a sink would pale all others.

    Returns:
        The figure.

    Raises:
        ValueError: no maps, or weights that do not have the dimensions (batch, H, Q, K) or (H, Q, K).
        ModuleNotFoundError: without matplotlib.
    """
    panels = _panels(_by_layer(maps), sequence, how)
    rows, columns = (max(panel[axis] for panel in panels) + 1 for axis in (0, 1))
    side = min(_PANEL, (figures.WIDEST - _BESIDE) / columns)
    figure = figures.new_figure(side * columns + _BESIDE, (side + 0.05) * rows + 0.15)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    most = max(heat.largest(panel.drawn.matrices) for panel in panels)
    for panel in panels:
        norm = heat.scale(panel.drawn.matrices, most if shared else None, gamma)
        image = heat.draw(axes[panel.row, panel.column], panel.drawn, norm)
        _dress(axes[panel.row, panel.column], panel)
    if shared:
        heat.color_bar(figure, image, axes, panels[0].drawn.meaning)
    return figure


def _by_layer(maps: Weights | Sequence[Weights] | Mapping[object, Weights]) -> Mapping[object, Weights]:
    if isinstance(maps, WeightMap | Tensor):
        return {None: maps}
    found = maps if isinstance(maps, Mapping) else dict(enumerate(maps))
    if not found:
        raise ValueError("head_grid: there are no maps to draw")
    return found


def _panels(maps: Mapping[object, Weights], sequence: int, how: str) -> list[Panel]:
    """One per layer and head; the heads of a single layer are wrapped."""
    found = []
    for row, (layer, weights) in enumerate(maps.items()):
        at = (sequence,) if len(weights.shape) > 3 else ()
        drawn = cells("head_grid", pick("head_grid", weights, at, free=1), MOST_CELLS, how)
        for head, matrix in enumerate(drawn.matrices):
            one = drawn._replace(matrices=matrix)
            if len(maps) == 1:
                found.append(Panel(head // _WRAP, head % _WRAP, one, f"head {head}", ""))
            else:
                found.append(Panel(row, head, one, f"head {head}" * (row == 0), labels.layer(layer) * (head == 0)))
    return found


def _dress(ax: Axes, panel: Panel) -> None:
    ax.set_axis_on()
    ax.set(xticks=[], yticks=[])
    ax.set_title(panel.title, fontsize=figures.SMALL, pad=2)
    ax.set_ylabel(panel.beside, fontsize=figures.SMALL)
    for spine in ax.spines.values():
        spine.set_linewidth(0.4)
