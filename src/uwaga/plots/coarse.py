"""A map of any kind in so many cells. An AttentionMap pools itself; the other kinds are read, some rows at a time.

Letters: H heads, Q queries, K keys, I row ranges, J column ranges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from uwaga.maps.base import WeightMap
from uwaga.maps.map import AttentionMap

_BLOCK = 1 << 22  # weights that are held at once


def coarse(m: WeightMap, at: tuple[int, ...], rows: int, columns: int, how: str) -> Tensor:
    """(..., I, J) of a dense map at leading indices: "mass" or "max", in equal ranges, as `AttentionMap.pool` has them."""
    if isinstance(m, AttentionMap):
        return m.select(*at).pool(rows, columns, how=how).weights
    *leading, queries, keys = m.shape[len(at) :]
    row_of_Q, column_of_K = (_ranges(n, size, m.device) for n, size in ((rows, queries), (columns, keys)))
    nothing = 0.0 if how == "mass" else -torch.inf
    cells = torch.full((*leading, rows, columns), nothing, dtype=torch.float64, device=m.device)
    height = max(_BLOCK // max(keys * cells[..., 0, 0].numel(), 1), 1)
    for first in range(0, queries, height):
        weights = m[(*at, ..., slice(first, first + height), slice(None))].double()
        across = torch.full((*weights.shape[:-1], columns), nothing, dtype=torch.float64, device=m.device)
        if how == "mass":
            across.index_add_(-1, column_of_K, weights)
            cells.index_add_(-2, row_of_Q[first : first + height], across)
        else:
            across.scatter_reduce_(-1, column_of_K.expand_as(weights), weights, "amax")
            cells.scatter_reduce_(-2, row_of_Q[first : first + height, None].expand_as(across), across, "amax")
    return cells / row_of_Q.bincount(minlength=rows)[:, None] if how == "mass" else cells


def _ranges(count: int, size: int, device: torch.device) -> Tensor:
    """(size,): the range b of each position, floor(b * size / count) <= position."""
    edges = torch.arange(1, count, device=device) * size // count
    return torch.searchsorted(edges, torch.arange(size, device=device), right=True)
