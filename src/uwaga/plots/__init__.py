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
    from uwaga.plots.arc_diagram import arcs as arcs
    from uwaga.plots.budgets import cache_budgets as cache_budgets
    from uwaga.plots.figures import save as save
    from uwaga.plots.heatmaps import changed_heads as changed_heads
    from uwaga.plots.heatmaps import head_grid as head_grid
    from uwaga.plots.heatmaps import head_matrix as head_matrix
    from uwaga.plots.heatmaps import heatmap as heatmap
    from uwaga.plots.heatmaps import patching_effects as patching_effects
    from uwaga.plots.pictures import patch_attention as patch_attention
else:
    __all__, __getattr__, __dir__ = names(__name__)
