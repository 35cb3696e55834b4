"""Figures of attention, for papers: each function returns a matplotlib Figure, or draws into the axes that it is given.

    figure = uwaga.plots.heatmap(map, tokens, at=(0, 3))
    uwaga.plots.save(figure, "head3.pdf")

matplotlib comes with the extra `uwaga[plots]` and is imported when a figure is asked for, not before. No figure is
registered with pyplot: nothing has to be closed, and no display is needed. In a notebook, `%matplotlib inline` shows them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uwaga.plots.curves import arcs
    from uwaga.plots.figures import save
    from uwaga.plots.grid import head_grid
    from uwaga.plots.heat import heatmap
    from uwaga.plots.table import head_matrix

__all__ = ["arcs", "head_grid", "head_matrix", "heatmap", "save"]

_HOME = {
    "arcs": "uwaga.plots.curves",
    "head_grid": "uwaga.plots.grid",
    "head_matrix": "uwaga.plots.table",
    "heatmap": "uwaga.plots.heat",
    "save": "uwaga.plots.figures",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'uwaga.plots' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
