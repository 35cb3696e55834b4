"""Attention over a picture: where one token looks, drawn over what it sees.

Letters: H heads, I rows and J columns of patches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from uwaga._base.arguments import integer
from uwaga.inspect.patches import Cell, PatchGrid, luminance
from uwaga.maps.base import WeightMap
from uwaga.plots import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy import ndarray

# Inches.
_PICTURE, _SMALL = 2.6, 0.82  # the whole picture, and the picture of one head
_HEADS_PER_ROW = 4
_MARGIN = 0.7  # the colour bar
_OPACITY = 0.85  # of the largest weight: the picture stays visible below
_COLOR = "#b8003a"  # of weights: the picture below is grey, so that no colour of its own looks like one
_DARKEST = 0.35  # of the grey picture
_NAME = "patch_attention"


def patch_attention(
    picture: object,
    m: WeightMap,
    grid: PatchGrid,
    query: Cell,
    *,
    index: int | None = None,
) -> Figure:
    """Draw the weights of one patch over the image: the mean of the heads large, each head small.

    Only the weights of that token are computed, at any resolution. The image is drawn in grey, and the larger the weight of a patch, the
    stronger its colour. Weights on the class token and registers are written above the image, because they have no place in it.

    Args:
        picture: the image that the model saw: an array or tensor (height, width, 3), (height, width) or (3, height, width) of numbers 0 to 1
            or of bytes, or an image of PIL. It is stretched to the grid.
        m: (H, Q, K) or (B, H, Q, K), a map of `recording.maps`.
        grid: `uwaga.inspect.patch_grid(model, pixel_values)`, or one of `uwaga.inspect.image_grids`.
        query: the patch as (row, column), or a token by its position, such as 0 for the class token, or a word.
        index: the number of the image in the batch; None if there is one image.

    Returns:
        The figure.

    Raises:
        ValueError, IndexError: as `PatchGrid.looks_at`; an array that is no picture.
        ModuleNotFoundError: matplotlib is not installed.
    """
    pixels = _DARKEST + (1.0 - _DARKEST) * luminance(picture, _NAME)
    weights_HIJ = grid.looks_at(m, query, picture=index).detach().double().cpu().numpy()
    parts = m.parts()
    tokens = (m if parts is None else parts[index or 0]).shape[-2]
    position = (grid.position(*query) if isinstance(query, tuple) else integer(query, f"{_NAME}: query")) % tokens
    weights_HIJ = weights_HIJ[None] if weights_HIJ.ndim == 2 else weights_HIJ
    largest = float(np.nanmax(weights_HIJ, initial=0.0))
    heads = len(weights_HIJ)
    shown = heads if heads > 1 else 0  # next to the large picture
    rows, columns = -(-shown // _HEADS_PER_ROW), min(shown, _HEADS_PER_ROW)
    ratio = pixels.shape[0] / pixels.shape[1]
    height = max(_PICTURE * ratio, (_SMALL * ratio + 0.17) * rows)
    figure = figures.new_figure(_PICTURE + _SMALL * columns + _MARGIN, height + 0.25)
    widths = [_PICTURE + _MARGIN, *([_SMALL * columns] if shown else [])]
    large, *small = figure.subfigures(1, len(widths), width_ratios=widths, squeeze=False)[0]
    ax = large.subplots()
    image = _draw(ax, pixels, weights_HIJ.mean(0), grid, position, largest)
    ax.set_title(_title(m, grid, position, index, heads), fontsize=figures.SMALL, pad=3)
    figures.add_color_bar(image, ax, large, "weight")
    for part in small:
        panels = part.subplots(rows, columns, squeeze=False)
        for panel in panels.flat[shown:]:
            panel.set_axis_off()
        for head, (panel, weights_IJ) in enumerate(zip(panels.flat, weights_HIJ, strict=False)):
            _draw(panel, pixels, weights_IJ, grid, position, largest)
            panel.set_title(f"head {head}", fontsize=figures.SMALL, pad=2)
    return figure


def _draw(ax: Axes, pixels: ndarray, weights_IJ: ndarray, grid: PatchGrid, position: int, vmax: float) -> AxesImage:
    """Draw the picture, the weights over it, and a frame around the queried patch. Units are patches."""
    colors, patches = (figures.import_matplotlib(f"matplotlib.{name}") for name in ("colors", "patches"))
    extent = (0.0, float(grid.columns), float(grid.rows), 0.0)
    ax.imshow(pixels, cmap="gray", vmin=0.0, vmax=1.0, extent=extent, aspect="auto")
    red, green, blue = colors.to_rgb(_COLOR)
    shade = colors.LinearSegmentedColormap.from_list(
        "uwaga_over", [(red, green, blue, 0.0), (red, green, blue, _OPACITY)]
    )
    image = ax.imshow(
        weights_IJ, cmap=shade, vmin=0.0, vmax=vmax or 1.0, extent=extent, aspect="auto", interpolation="none"
    )
    ax.set_box_aspect(pixels.shape[0] / pixels.shape[1])
    ax.set(xticks=[], yticks=[])
    first, stop = grid.span
    if first <= position < stop:
        row, column = grid.cell(position)
        for color, width in (("white", 2.0), ("black", 0.8)):  # seen on any picture
            ax.add_patch(patches.Rectangle((column, row), 1, 1, fill=False, edgecolor=color, linewidth=width))
    return image


def _title(m: WeightMap, grid: PatchGrid, position: int, index: int | None, heads: int) -> str:
    first, stop = grid.span
    if grid.start <= position < first:
        name = grid.special[position - grid.start]
    else:
        name = f"patch {grid.cell(position)}" if first <= position < stop else f"token {position}"
    title = f"where {name} looks, {'head 0' if heads == 1 else f'mean of {heads} heads'}"
    if not grid.special:
        return title
    special_HS = grid.on_special(m, position, picture=index)
    means = special_HS.reshape(-1, len(grid.special)).mean(0).tolist()
    shares = [f"{special} {share:.2f}" for special, share in zip(grid.special, means, strict=True)]
    return f"{title}\n{', '.join(shares)}"
