"""Rectangles and diagonals of a dense map, from the one thing that each kind of map computes.

Letters: H query heads, Q queries, K keys.
"""

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from uwaga.maps.indexing import Positions, expand, per_sequence
from uwaga.maps.spec import Selection

_BLOCK = 64  # rows of the blocks that a diagonal is read in


class Readable(Protocol):
    """What is needed of a map."""

    @property
    def kind(self) -> str: ...
    @property
    def shape(self) -> tuple[Any, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def read(self, selection: Selection, keys: Tensor) -> Tensor: ...


def rectangle(m: Readable, index: object, max_bytes: int) -> Tensor:
    """The weights at an index; ints drop their dimension."""
    names = [*(f"batch {at}" for at in range(len(m.shape) - 3)), "heads", "queries", "keys"][-len(m.shape) :]
    found = expand(index, m.shape, names, m.kind)
    counts = tuple(positions.length for positions in found)
    takes = math.prod(counts) * m.dtype.itemsize
    if takes > max_bytes:
        raise ValueError(
            f"{m.kind}: reading {counts} weights at once takes {takes} bytes ({readable(takes)}); "
            "read fewer, or all of them by to_dense(max_bytes=...)"
        )
    return _gather(m, found).reshape([positions.length for positions in found if not positions.is_dropped])


def diagonal(m: Readable, offset: int, start: int | Tensor | None) -> Tensor:
    """(..., H, Q): for every query i the weight on key i + start + offset, 0 where there is none."""
    *leading, queries, keys = m.shape
    batch = leading[:-1]
    if not isinstance(start, Tensor):
        first = keys - queries if start is None else start
        return _band(m, range(math.prod(batch)), first + offset).reshape((*leading, queries))
    firsts = per_sequence(start, tuple(batch), f"{m.kind}.diagonal: start")
    found = [_band(m, range(b, b + 1), first + offset) for b, first in enumerate(firsts)]
    return torch.cat(found).reshape((*leading, queries)) if found else _band(m, range(0), 0).reshape(*leading, queries)


def _gather(m: Readable, found: list[Positions]) -> Tensor:
    """The unique positions read once, then put in the order of the index: as many dimensions as the map."""
    *leading, queries, keys = [positions.unique for positions in found]
    heads = leading.pop().tolist() if leading else [0]
    flat = torch.zeros(1, dtype=torch.int64, device="cpu")
    for size, listed in zip(m.shape, leading, strict=False):
        flat = (flat[:, None] * size + listed).flatten()
    sizes = [len(positions.unique) for positions in found]
    if all(sizes):
        selection = Selection(tuple(flat.tolist()), tuple(heads), queries.to(m.device))
        weights = m.read(selection, keys.to(m.device)).reshape(sizes)
    else:
        weights = torch.zeros(sizes, dtype=m.dtype, device=m.device)
    for dimension, positions in enumerate(found):
        if positions.order is not None:
            weights = weights.index_select(dimension, positions.order.to(m.device))
    return weights


def _band(m: Readable, sequences: range, shift: int) -> Tensor:
    """(sequences, H, Q): the weight of every query i on key i + shift, read in square blocks."""
    *leading, queries, keys = m.shape
    heads = tuple(range(leading[-1] if leading else 1))
    found = torch.zeros((len(sequences), len(heads), queries), dtype=m.dtype, device=m.device)
    if not found.numel():
        return found
    end = min(queries, keys - shift)
    for at in range(max(0, -shift), end, _BLOCK):
        rows = torch.arange(at, min(at + _BLOCK, end), device=m.device)
        block = m.read(Selection(tuple(sequences), heads, rows), rows + shift)
        found[:, :, rows] = block.diagonal(dim1=-2, dim2=-1)
    return found


def readable(size: int) -> str:
    """A number of bytes as people read it, in powers of 1000.

    >>> readable(805_306_368)
    '805.3 MB'
    """
    if size < 1000:
        return f"{size} bytes"
    power = min((len(str(size)) - 1) // 3, 6)
    return f"{size / 1000**power:.1f} {'kMGTPE'[power - 1]}B"
