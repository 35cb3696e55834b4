"""Animations of attention: one head through all layers, or row by row as a text is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from uwaga._base.durable import atomic_replace
from uwaga.inspect.recordings.recording import Recording
from uwaga.maps.base import WeightMap
from uwaga.plots import figures, labels
from uwaga.plots.heatmaps import MAX_HEATMAP_SIZE, heatmap
from uwaga.plots.matrices import matrix_data, select_matrix

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy import ndarray

MAX_FRAMES = 1000
_LAST = 4  # times as long as another frame: the last one is looked at before it begins again


def animate(
    maps: Recording | WeightMap | Sequence[WeightMap] | Mapping[Hashable, WeightMap],
    path: str | PathLike[str],
    tokens: Sequence[str] | None = None,
    *,
    over: Literal["layers", "queries"] = "layers",
    kind: str | None = None,
    at: int | tuple[int, ...] = (),
    key_tokens: Sequence[str] | None = None,
    seconds: float = 0.6,
    vmax: float | None = None,
    gamma: float = 1.0,
    dpi: float = 150.0,
) -> int:
    """Write an animated GIF of heat maps, which all have one colour scale.

        uwaga.plots.animate(recording, "layers.gif", at=(0, 3))                      # head 3 of each layer
        uwaga.plots.animate(recording.maps["decoder", 2], "written.gif", over="queries", at=(0, 3))

    Args:
        maps: over="layers": a recording, or several maps of the same size, in a sequence or by layer. over="queries": one map, whose
            rows appear one by one, as a model that writes made them.
        path: the file; it is written atomically.
        tokens: Q labels; None: those of the recording, of its text at[0].
        over: what a frame is.
        kind: "encoder", "decoder" or "cross": the layers of a recording; None: the only kind that it has.
        at: indices of the leading dimensions, such as (sequence, head), as in `heatmap`.
        key_tokens: K labels for the keys; None: as in `heatmap`.
        seconds: of each frame; the last one stays four times as long.
        vmax, gamma: the colour scale, as in `heatmap`; vmax None: the largest weight of all frames.
        dpi: dots per inch.

    Returns:
        The number of frames.

    Raises:
        ValueError: no maps, maps of different sizes, more than 1000 frames, or what `heatmap` refuses.
        ModuleNotFoundError: matplotlib is not installed; Pillow comes with it.
        OSError: the file cannot be written.
    """
    if not seconds > 0:
        raise ValueError(f"animate: seconds must be above 0, not {seconds!r}")
    if over not in ("layers", "queries"):
        raise ValueError(f"animate: over must be 'layers' or 'queries', not {over!r}")
    if over == "queries":
        if not isinstance(maps, WeightMap):
            raise ValueError(f"animate: over='queries' takes one map, not {type(maps).__name__}")
        chosen: list[tuple[str, WeightMap]] = [("", maps)]
    else:
        chosen, tokens, key_tokens = _layers(maps, kind, at, tokens, key_tokens)
    drawn = [matrix_data("animate", select_matrix("animate", m, at), MAX_HEATMAP_SIZE, "sum") for _, m in chosen]
    if len({(each.queries, each.keys) for each in drawn}) > 1:
        sizes = ", ".join(f"{each.queries} x {each.keys}" for each in drawn)
        raise ValueError(f"animate: the maps must have one size, not {sizes}")
    matrices = [np.asarray(each.matrices) for each in drawn]
    titles = [name for name, _ in chosen]
    if over == "queries":
        matrices = [_until(matrices[0], row) for row in range(1, len(matrices[0]) + 1)]
        titles = [""] * len(matrices)
    if len(matrices) > MAX_FRAMES:
        raise ValueError(f"animate: {len(matrices)} frames are more than {MAX_FRAMES}")
    largest = max(float(np.nanmax(np.abs(each), initial=0.0)) for each in matrices) or 1.0
    _write(Path(path), chosen[0][1], matrices, titles, tokens, key_tokens, at, vmax or largest, gamma, seconds, dpi)
    return len(matrices)


def _layers(
    maps: Recording | WeightMap | Sequence[WeightMap] | Mapping[Hashable, WeightMap],
    kind: str | None,
    at: int | tuple[int, ...],
    tokens: Sequence[str] | None,
    key_tokens: Sequence[str] | None,
) -> tuple[list[tuple[str, WeightMap]], Sequence[str] | None, Sequence[str] | None]:
    """The layers with their names, and labels of queries and keys."""
    if isinstance(maps, Recording):
        kinds = sorted({name[0] for name in maps.maps})
        if kind is None and len(kinds) != 1:
            raise ValueError(f"animate: the recording has {', '.join(kinds) or 'no maps'}: choose one by kind")
        kind = kinds[0] if kind is None else kind
        if kind not in kinds:
            raise ValueError(f"animate: the recording has no {kind} maps, but {', '.join(kinds)}")
        known, row = maps.tokens, at if isinstance(at, int) else (at[0] if at else 0)
        stacks = ("decoder", "encoder") if kind == "cross" else (kind, kind)
        both = [known[stack][row] if stack in known and row < len(known[stack]) else None for stack in stacks]
        tokens, key_tokens = (both[0] if tokens is None else tokens), (both[1] if key_tokens is None else key_tokens)
        results: list[tuple[object, WeightMap]] = [(name, m) for name, m in maps.maps.items() if name[0] == kind]
    elif isinstance(maps, WeightMap):
        raise ValueError("animate: over='layers' takes a recording or several maps; of one map take over='queries'")
    else:
        results = list(maps.items()) if isinstance(maps, Mapping) else list(enumerate(maps))
    if not results:
        raise ValueError("animate: there are no maps")
    return [(labels.layer_name(name), m) for name, m in results], tokens, key_tokens


def _until(matrix: ndarray, rows: int) -> ndarray:
    """The first rows; those that are not written yet are empty."""
    shown = matrix.copy()
    shown[rows:] = 0.0
    return shown


def _write(
    path: Path,
    first: WeightMap,
    matrices: Sequence[ndarray],
    titles: Sequence[str],
    tokens: Sequence[str] | None,
    key_tokens: Sequence[str] | None,
    at: int | tuple[int, ...],
    vmax: float,
    gamma: float,
    seconds: float,
    dpi: float,
) -> None:
    figure = heatmap(first, tokens, key_tokens=key_tokens, at=at, vmax=vmax, gamma=gamma)
    agg = figures.import_matplotlib("matplotlib.backends.backend_agg")
    from PIL import Image

    canvas = agg.FigureCanvasAgg(figure)
    figure.set_dpi(dpi)
    axes = figure.axes[0]
    axes.set_title(max(titles, key=len), fontsize=figures.NORMAL)
    canvas.draw()  # places everything, once for all frames
    figure.set_layout_engine("none")
    frames = []
    for matrix, title in zip(matrices, titles, strict=True):
        axes.images[0].set_data(matrix)
        axes.set_title(title, fontsize=figures.NORMAL)
        canvas.draw()
        frames.append(
            Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy()).quantize(256, dither=Image.Dither.NONE)
        )
    times = [round(1000 * seconds)] * (len(frames) - 1) + [round(1000 * seconds * _LAST)]
    with atomic_replace(path) as file:
        frames[0].save(file, format="GIF", save_all=True, append_images=frames[1:], duration=times, loop=0)
