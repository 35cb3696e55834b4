"""Where figures come from and go to: matplotlib if it is there, axes to draw into, files."""

from __future__ import annotations

import os
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from uwaga._base.durable import atomic_replace

if TYPE_CHECKING:
    from types import ModuleType

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 72.0  # a typographic point is 1/72 inch
SMALL, NORMAL = 6.0, 8.0  # font sizes in points: journals ask for at least 5 to 7
WIDEST = 6.9  # inches: the text width of a two-column page

# Letters stay letters, so that a figure can be searched, edited and read aloud. matplotlib's own default draws them as
# outlines in SVG and as Type 3 fonts, which some publishers refuse, in PDF and PostScript.
_AS_TEXT = {"svg.fonttype": "none", "pdf.fonttype": 42, "ps.fonttype": 42}


class Place(NamedTuple):
    """Where to draw."""

    figure: Figure
    ax: Axes


def need(module: str) -> ModuleType:
    """A module of matplotlib. Raises ModuleNotFoundError, naming the extra, where it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "matplotlib":
            raise
        rule = "uwaga.plots needs matplotlib, which is not installed: pip install 'uwaga[plots]'"
        raise ModuleNotFoundError(rule, name="matplotlib") from error


def new_figure(width: float, height: float, *, layout: str = "compressed") -> Figure:
    """A figure of so many inches, unknown to pyplot.

    "compressed": what has square cells leaves room in one direction, and panels would stand apart there.
    """
    return need("matplotlib.figure").Figure(figsize=(width, height), layout=layout)


def place(ax: Axes | None, width: float, height: float) -> Place:
    """The given axes and their figure, or new ones of so many inches."""
    if ax is not None:
        return Place(ax.figure, ax)
    figure = new_figure(width, height)
    return Place(figure, figure.add_subplot())


def bare_place(ax: Axes | None, width: float, height: float) -> Place:
    """The same without axis lines; new axes fill their figure, so that their size is known before anything is drawn."""
    if ax is None:
        figure = new_figure(width, height, layout="none")
        ax = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set_axis_off()
    return Place(ax.figure, ax)


def size_in_points(ax: Axes) -> tuple[float, float]:
    """Width and height of the axes as they are laid out now."""
    box, dpi = ax.get_window_extent(), ax.figure.dpi
    return box.width * POINTS / dpi, box.height * POINTS / dpi


def save(figure: Figure, path: str | PathLike[str], *, dpi: float = 300.0) -> None:
    """Write a figure to a file, of the kind that its ending says: .pdf and .svg keep text as text.

    The same figure gives the same bytes each time: no date is written. The file is there whole or not at all, in place of a
    file or link of that name.

    Args:
        figure: what a function of uwaga.plots returned, or any other figure.
        path: ends in .pdf, .svg, .eps, .png, or another kind that matplotlib knows; without an ending .png is added.
        dpi: dots per inch, of .png and its like.

    Raises:
        ValueError: matplotlib knows no such kind.
        OSError: the file cannot be written.
    """
    kind = os.path.splitext(path)[1][1:].lower()
    place = Path(path) if kind else Path(f"{os.fspath(path).rstrip('.')}.png")
    dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with need("matplotlib").rc_context(_AS_TEXT | {"svg.hashsalt": "uwaga"}), atomic_replace(place) as file:
        figure.savefig(file, format=kind or "png", dpi=dpi, metadata=dated.get(kind))
