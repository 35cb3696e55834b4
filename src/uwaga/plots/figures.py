"""matplotlib figures: how they are made, their colours, and how they are saved.

Colours keep their order in print, in grey and for colour-blind readers: their lightness carries the number. Equal steps of
a weight are equal steps of CIE lightness L*, so that a difference looks as large as it is (Kovesi, "Good Colour Maps: How
to Design Them", 2015). White is zero: most of an attention matrix is, and paper is white.
"""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from uwaga._base import install
from uwaga._base.durable import atomic_replace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.image import AxesImage
POINTS_PER_INCH = 72.0
SMALL, NORMAL = 6.0, 8.0  # font sizes in points: journals ask for at least 5 to 7
PAGE_WIDTH = 6.9  # inches: the text width of a two-column page
# Text is stored as text, so that a figure can be searched, edited and read by screen readers. matplotlib's defaults are
# outlines in SVG and Type 3 fonts, which some publishers reject, in PDF and PostScript.
_AS_TEXT = {"svg.fonttype": "none", "pdf.fonttype": 42, "ps.fonttype": 42}
if TYPE_CHECKING:
    from matplotlib.colors import Colormap
# At equal steps of L*, from 100 to 15 and from 100 to 30; as much chroma as sRGB allows at that lightness, by 0.8.
_BLUE = ("#ffffff", "#c1e6f9", "#84ccf3", "#53afe5", "#4590c7", "#3873a9", "#2b578b", "#1e3c6d", "#122350")
_PALE_BLUE = ("#ffffff", "#ccebfa", "#9cd5f5", "#6bbef0", "#4fa5df", "#448cc8", "#3a74b0", "#2f5c98", "#254581")
_ORANGE = ("#ffffff", "#fce2c9", "#f9c392", "#f7a259", "#ed8229", "#d36921", "#b85219", "#9e3c11", "#82280b")
LINE_COLOR = "#1e3c6d"  # lines and arcs
_NAN = "#bdbdbd"  # NaN, which must not look like a weight


def import_matplotlib(module: str) -> ModuleType:
    """Return a module of matplotlib. Raises ModuleNotFoundError with the extra's name if matplotlib is not
    installed."""
    rule = "uwaga.plots needs matplotlib, which is not installed: pip install 'uwaga[plots]'"
    return install.optional(module, "matplotlib", rule)


def new_figure(width: float, height: float, *, layout: str = "compressed") -> Figure:
    """Return a figure of this size in inches, not registered with pyplot; a notebook shows it. The "compressed" layout
    removes the gaps that square cells leave between panels."""
    return import_matplotlib("uwaga.plots.shown_figure").ShownFigure(figsize=(width, height), layout=layout)


def size_in_points(ax: Axes) -> tuple[float, float]:
    """Return width and height of the axes, in points, in the present layout."""
    box, dpi = ax.get_window_extent(), ax.figure.dpi
    return box.width * POINTS_PER_INCH / dpi, box.height * POINTS_PER_INCH / dpi


def add_color_bar(image: AxesImage, axes: Axes | Iterable[Axes], figure: Figure | SubFigure, label: str) -> None:
    """Add a colour bar next to the axes."""
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, aspect=30)
    bar.set_label(label, fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, length=1.5)
    bar.outline.set_linewidth(0.5)


def save(figure: Figure, path: str | PathLike[str], *, dpi: float = 300.0) -> None:
    """Save a figure to a file, in the format of its extension; .pdf and .svg store text as text.

    The same figure gives the same bytes each time: no date is written. The file is written atomically, and replaces a file
    or link of that name.

    Args:
        figure: what a function of uwaga.plots returned, or any other figure.
        path: ends in .pdf, .svg, .eps, .png, or another format of matplotlib; without an extension .png is added.
        dpi: dots per inch, of raster formats such as .png.

    Raises:
        ValueError: matplotlib does not support the format.
        OSError: the file cannot be written.
    """
    kind = os.path.splitext(path)[1][1:].lower()
    place = Path(path) if kind else Path(f"{os.fspath(path).rstrip('.')}.png")
    dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with (
        import_matplotlib("matplotlib").rc_context(_AS_TEXT | {"svg.hashsalt": "uwaga"}),
        atomic_replace(place) as file,
    ):
        figure.savefig(file, format=kind or "png", dpi=dpi, metadata=dated.get(kind))


def sequential() -> Colormap:
    """Return the colours from white for zero to dark blue for the largest value."""
    return _colormap("uwaga", _BLUE)


def diverging() -> Colormap:
    """Return the colours from dark orange below zero over white at zero to dark blue above."""
    return _colormap("uwaga_signed", (*_ORANGE[:0:-1], *_PALE_BLUE))


def _colormap(name: str, colors: tuple[str, ...]) -> Colormap:
    return (
        import_matplotlib("matplotlib.colors").LinearSegmentedColormap.from_list(name, colors).with_extremes(bad=_NAN)
    )
