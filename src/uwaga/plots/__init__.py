"""Figures of attention, for papers: each function returns a matplotlib Figure, or draws into the axes that it is given.

    figure = uwaga.plots.heatmap(map, tokens, at=(0, 3))
    uwaga.plots.save(figure, "head3.pdf")

matplotlib comes with the extra `uwaga[plots]` and is imported when a figure is asked for, not before. No figure is
registered with pyplot: nothing has to be closed, and no display is needed. A notebook shows the figure that is the last value of a cell,
and one that is passed to `display`.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.plots.animation import animate
    from uwaga.plots.arc_diagram import arcs
    from uwaga.plots.budgets import cache_budgets
    from uwaga.plots.figures import save
    from uwaga.plots.heatmaps import changed_heads, head_grid, head_matrix, heatmap, patching_effects
    from uwaga.plots.pictures import patch_attention

__all__ = [
    "animate",
    "arcs",
    "cache_budgets",
    "changed_heads",
    "head_grid",
    "head_matrix",
    "heatmap",
    "patch_attention",
    "patching_effects",
    "save",
]

_HOME = {
    "animate": "uwaga.plots.animation",
    "arcs": "uwaga.plots.arc_diagram",
    "cache_budgets": "uwaga.plots.budgets",
    "changed_heads": "uwaga.plots.heatmaps",
    "head_grid": "uwaga.plots.heatmaps",
    "head_matrix": "uwaga.plots.heatmaps",
    "heatmap": "uwaga.plots.heatmaps",
    "patch_attention": "uwaga.plots.pictures",
    "patching_effects": "uwaga.plots.heatmaps",
    "save": "uwaga.plots.figures",
}

__getattr__, __dir__ = names(__name__, _HOME)
