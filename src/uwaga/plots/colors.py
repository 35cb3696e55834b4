"""Colours that keep their order in print, in grey and for colour-blind eyes: their lightness carries the number.

Equal steps of a weight are equal steps of CIE lightness L*, so that a difference looks as large as it is (Kovesi, "Good
Colour Maps: How to Design Them", 2015). White is zero: most of an attention matrix is, and paper is white.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uwaga.plots.figures import need

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

# At equal steps of L*, from 100 to 15 and from 100 to 30; as much chroma as sRGB allows at that lightness, by 0.8.
_BLUE = ("#ffffff", "#c1e6f9", "#84ccf3", "#53afe5", "#4590c7", "#3873a9", "#2b578b", "#1e3c6d", "#122350")
_PALE_BLUE = ("#ffffff", "#ccebfa", "#9cd5f5", "#6bbef0", "#4fa5df", "#448cc8", "#3a74b0", "#2f5c98", "#254581")
_ORANGE = ("#ffffff", "#fce2c9", "#f9c392", "#f7a259", "#ed8229", "#d36921", "#b85219", "#9e3c11", "#82280b")

INK = "#1e3c6d"  # lines and arcs
_NAN = "#bdbdbd"  # a nan shall be seen, and not be taken for a weight
GREY = "#5f6368"  # what stands beside the data


def sequential() -> Colormap:
    """White for zero to dark blue for the most."""
    return _colormap("uwaga", _BLUE)


def diverging() -> Colormap:
    """Dark orange below zero, white at zero, dark blue above."""
    return _colormap("uwaga_signed", (*_ORANGE[:0:-1], *_PALE_BLUE))


def readable_on(red_green_blue: tuple[float, float, float]) -> str:
    """Black or white: what can be read on that colour. The weights are those of relative luminance, ITU-R BT.709.

    >>> readable_on((1.0, 1.0, 1.0)), readable_on((0.1, 0.1, 0.4))
    ('black', 'white')
    """
    linear = [part**2.2 for part in red_green_blue]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Where the contrast to black, (Y + 0.05) / 0.05, equals that to white, 1.05 / (Y + 0.05) (WCAG 2).
    return "black" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "white"


def _colormap(name: str, colors: tuple[str, ...]) -> Colormap:
    return need("matplotlib.colors").LinearSegmentedColormap.from_list(name, colors).with_extremes(bad=_NAN)
