"""Images as models read them: a grid of patches among the tokens of a sequence, and attention over the grid.

Letters: B images of a batch, H heads, Q queries, K keys, S special tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from uwaga._base.arguments import check, integer
from uwaga.maps.base import WeightMap

if TYPE_CHECKING:
    from numpy.typing import NDArray

Cell = int | tuple[int, int]  # a token by its position, or a patch by its row and column


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """The positions of an image's patches among the tokens: row by row from `first` on, after the special tokens.

    Args:
        rows, columns: the number of patches down and across.
        special: the names of the tokens before the patches, such as "[CLS]" and "[REG 0]".
        start: the position of the first of these tokens; 0 unless the sequence has other tokens before them.
        patch_size: the height and width of a patch, in pixels of the image that the model reads.

    Raises:
        ValueError: rows, columns or a size below 1, or a start below 0.

    >>> grid = PatchGrid(rows=2, columns=3, special=("[CLS]",), patch_size=(16, 16))
    >>> grid.tokens
    ['[CLS]', '0,0', '0,1', '0,2', '1,0', '1,1', '1,2']
    >>> grid.position(1, 2), grid.cell(6), grid.box(1, 2)
    (6, (1, 2), (32, 16, 48, 32))
    """

    rows: int
    columns: int
    special: tuple[str, ...] = ()
    start: int = 0
    patch_size: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("columns", 1), ("start", 0)):
            object.__setattr__(self, name, integer(getattr(self, name), f"PatchGrid: {name}", least))
        height, width = (integer(size, "PatchGrid: patch_size", 1) for size in self.patch_size)
        object.__setattr__(self, "patch_size", (height, width))

    @property
    def first(self) -> int:
        """The position of the first patch."""
        return self.start + len(self.special)

    @property
    def span(self) -> tuple[int, int]:
        """The positions [first, stop) of the patches, for `AttentionMap.pool` and the like."""
        return self.first, self.first + self.rows * self.columns

    @property
    def tokens(self) -> list[str]:
        """The names of the special tokens, and "row,column" of each patch."""
        return [*self.special, *(f"{row},{column}" for row in range(self.rows) for column in range(self.columns))]

    def position(self, row: int, column: int) -> int:
        """Return the position of a patch. Raises IndexError: there is no such patch."""
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            raise IndexError(f"PatchGrid: patch ({row}, {column}) is not one of {self.rows} by {self.columns}")
        return self.first + row * self.columns + column

    def cell(self, position: int) -> tuple[int, int]:
        """Return the row and column of the patch at a position. Raises IndexError: no patch is there."""
        first, stop = self.span
        if not first <= position < stop:
            raise IndexError(
                f"PatchGrid: patches are at positions {first} to {stop - 1}, and {position} is not one of them"
            )
        row, column = divmod(position - first, self.columns)
        return row, column

    def box(self, row: int, column: int) -> tuple[int, int, int, int]:
        """Return the left, top, right and bottom of a patch in pixels. Raises IndexError: there is no such patch."""
        self.position(row, column)
        height, width = self.patch_size
        return column * width, row * height, (column + 1) * width, (row + 1) * height

    def at_pixel(self, x: int, y: int) -> tuple[int, int]:
        """Return the row and column of the patch with a pixel. x counts from the left, y from the top. Raises IndexError: no patch has it."""
        row, column = y // self.patch_size[0], x // self.patch_size[1]
        self.position(row, column)
        return row, column

    def looks_at(self, m: WeightMap, query: Cell, *, picture: int | None = None) -> Tensor:
        """Return the weights of one token on the patches, (H, rows, columns), or (rows, columns) for a map (Q, K).

        Only one row of the map is computed, in O(K) memory for each head, at any resolution.

        Args:
            m: (H, Q, K), (B, H, Q, K), or ragged. Its keys are the tokens of this grid.
            query: a patch as (row, column), or a token by its position, such as 0 for the class token, or a word.
            picture: the number of the image in the batch; None if there is one image.

        Raises:
            IndexError: there is no such patch, token or image.
            ValueError: the map lacks keys of this grid, or has several images and `picture` is None.
        """
        weights = self._read(m, picture, self._position(query), slice(*self.span))
        return weights.unflatten(-1, (self.rows, self.columns))

    def looked_at(self, m: WeightMap, key: Cell, *, picture: int | None = None) -> Tensor:
        """Return the weights of the patches on one token, (H, rows, columns).

        Arguments and errors are as in `looks_at`, but the map's queries are the tokens of this grid.
        """
        weights = self._read(m, picture, slice(*self.span), self._position(key))
        return weights.unflatten(-1, (self.rows, self.columns))

    def on_special(self, m: WeightMap, query: Cell, *, picture: int | None = None) -> Tensor:
        """Return the weights of one token on the special tokens, (H, S). Arguments and errors are as in `looks_at`."""
        return self._read(m, picture, self._position(query), slice(self.start, self.first))

    def of_keys(self, per_key: Tensor) -> Tensor:
        """Return the patches of a statistic (..., K), such as `AttentionMap.received`: (..., rows, columns). Raises ValueError: too few keys."""
        first, stop = self.span
        self._check_length(per_key.shape[-1])
        return per_key[..., first:stop].unflatten(-1, (self.rows, self.columns))

    def _position(self, at: Cell) -> int:
        return self.position(*at) if isinstance(at, tuple) else integer(at, "PatchGrid: a token")

    def _read(self, m: WeightMap, picture: int | None, queries: int | slice, keys: int | slice) -> Tensor:
        """Return weights of every head in the map of one image."""
        parts, shape = m.parts(), m.shape
        is_batch = len(shape) == 4 or parts is not None
        images = int(shape[0]) if is_batch else 1
        if picture is None and images != 1:
            raise ValueError(
                f"PatchGrid: the map {tuple(shape)} has {images} images; pass the number of one as picture="
            )
        if not 0 <= (picture or 0) < images:
            raise IndexError(f"PatchGrid: image {picture} is not one of {images}")
        m = m if parts is None else parts[picture or 0]
        leading = (picture or 0,) if is_batch and parts is None else ()
        self._check_length(m.shape[-1] if isinstance(keys, slice) else m.shape[-2])
        return m[(*leading, ..., queries, keys)]

    def _check_length(self, tokens: int) -> None:
        if tokens < self.span[1]:
            raise ValueError(
                f"PatchGrid: {self.rows} by {self.columns} patches from position {self.first} on need {self.span[1]} tokens, and the map has {tokens}"
            )


def grid_of_tokens(tokens: Sequence[str]) -> PatchGrid | None:
    """Return the grid whose tokens have these names, as in a recording of an image; None if there is no such grid.

    >>> grid_of_tokens(["[CLS]", "0,0", "0,1"])
    PatchGrid(rows=1, columns=2, special=('[CLS]',), start=0, patch_size=(1, 1))
    """
    last = re.fullmatch(r"(\d{1,6}),(\d{1,6})", tokens[-1]) if tokens else None
    if last is None or "0,0" not in tokens:
        return None
    rows, columns = int(last[1]) + 1, int(last[2]) + 1
    first = tokens.index("0,0")
    if rows * columns != len(tokens) - first:
        return None
    grid = PatchGrid(rows=rows, columns=columns, special=tuple(tokens[:first]))
    return grid if grid.tokens == list(tokens) else None


def image_grids(
    ids: Sequence[int] | Tensor, image_token_id: int, shapes: Sequence[tuple[int, int]] | Tensor | None = None
) -> list[PatchGrid]:
    """Find the images of a sequence of words and images, in their order, by their token id.

    Args:
        ids: (T,) token ids as the decoder reads them, with the model's image token for each patch.
        image_token_id: the id of the image token, config.image_token_id.
        shapes: the rows and columns of each image in tokens, as pairs or (B, 2). For Qwen-VL they are image_grid_thw[:, 1:] divided by the
            merge size. None: each run of image tokens is a square image.

    Raises:
        ValueError: a shape below 1; more or fewer image tokens than the shapes have; an image whose tokens are not consecutive;
            without shapes, a run that is not a square.

    >>> first, second = image_grids([1, 9, 9, 9, 9, 7, 9, 5], image_token_id=9)
    >>> first.span, second.span, first.rows
    ((1, 5), (6, 7), 2)
    >>> image_grids([9, 9, 9, 9, 9, 9, 9, 9], 9, shapes=[(1, 2), (2, 3)])[1].span
    (2, 8)
    """
    ids_T = torch.as_tensor(ids)
    check(ids_T.dim() == 1, f"image_grids: ids must be one sequence, (T,), not {tuple(ids_T.shape)}")
    positions = (ids_T == image_token_id).nonzero().flatten()
    if shapes is None:
        starts = [0, *((positions.diff() != 1).nonzero().flatten() + 1).tolist(), len(positions)]
        runs = [stop - start for start, stop in pairwise(starts) if stop > start]
        shapes = [(round(run**0.5),) * 2 for run in runs]
        for run, (side, _) in zip(runs, shapes, strict=True):
            check(side * side == run, f"image_grids: an image of {run} tokens is not a square; pass shapes")
    sizes = [tuple(integer(size, "image_grids: a shape", 1) for size in shape) for shape in shapes]
    counts = [rows * columns for rows, columns in sizes]
    check(
        sum(counts) == len(positions),
        f"image_grids: {len(sizes)} images need {sum(counts)} tokens, and the ids have {len(positions)}",
    )
    grids: list[PatchGrid] = []
    for (rows, columns), part in zip(sizes, positions.split(counts), strict=True):
        check(
            int(part[-1] - part[0]) + 1 == len(part),
            f"image_grids: the {len(part)} tokens of image {len(grids)} are not consecutive",
        )
        grids.append(PatchGrid(rows=rows, columns=columns, start=int(part[0])))
    return grids


def luminance(image: Any, name: str = "picture") -> "NDArray[np.float64]":
    """Return the luminance (height, width), 0 to 1, of an image.

    Args:
        image: a PIL image, or an array or tensor (height, width, 3), (height, width) or (3, height, width) of numbers 0 to 1 or bytes.
        name: the operation that the message of a ValueError begins with.

    Raises:
        ValueError: another shape or kind.
    """
    if isinstance(image, Tensor):
        image = (image.float() if image.is_floating_point() else image).detach().cpu().numpy()
    elif hasattr(image, "convert") and not image.mode.startswith(("I", "F")):
        image = image.convert("RGB")  # The bytes of a PIL image can be indices of a palette.
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3, 4):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim == 3 and array.shape[2] == 4:  # transparency
        array = array[..., :3]
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    if not is_image or not array.size or array.dtype.kind not in "uif":
        kind = f"{array.shape} of {array.dtype}"
        raise ValueError(
            f"{name}: picture must be (height, width, 3), (height, width) or (3, height, width), not {kind}"
        )
    scaled = array.astype(np.float64) / (255.0 if array.dtype.kind in "ui" else 1.0)
    if not (np.isfinite(scaled).all() and scaled.min() >= 0.0 and scaled.max() <= 1.0):
        least, most = scaled.min(), scaled.max()
        rule = "numbers of an image must be 0 to 1, or bytes 0 to 255"
        raise ValueError(f"{name}: {rule}, not {least:g} to {most:g}; undo the processor's normalization")
    # Luminance (ITU-R BT.709), without gamma: it is a background.
    grey: NDArray[np.float64] = scaled if scaled.ndim == 2 else scaled @ np.array([0.2126, 0.7152, 0.0722])
    return grey
