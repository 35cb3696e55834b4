"""Pooling a map to cells, tile by tile: the definition that the engines' `pool` follows.

Letters: B sequences, H query heads, C queries of a tile, K keys, I row ranges, J column ranges.
"""

import torch
from torch import Tensor

from uwaga.maps.tiles import Tile

_INFINITY = float("inf")


def ranges(edges_BI: Tensor, positions: Tensor) -> Tensor:
    """(B, n): the range that each position lies in, edges[b, r] <= position < edges[b, r + 1]; the number of ranges for
    those that lie in none."""
    count = edges_BI.shape[1] - 1
    found = torch.searchsorted(edges_BI, positions.expand(len(edges_BI), -1).contiguous(), right=True) - 1
    return torch.where(found < 0, count, found)


class MassCells:
    """The sum over the keys of a cell, and the mean over the queries of its row range."""

    def __init__(self, heads: int, row_edges_BI: Tensor, column_edges_BJ: Tensor, keys: int) -> None:
        self._rows = row_edges_BI
        self._columns = column_edges_BJ.shape[1] - 1
        j_K = torch.arange(keys, device=column_edges_BJ.device)
        self._of_key = ranges(column_edges_BJ, j_K)[:, None, None]
        sizes = (len(row_edges_BI), heads, row_edges_BI.shape[1], self._columns)
        # Summed in float64: a row range may hold a hundred thousand queries.
        self._sums = torch.zeros(sizes, dtype=torch.float64, device=row_edges_BI.device)

    def add(self, tile: Tile, weights_BHCK: Tensor) -> None:
        batch, heads, height, _ = weights_BHCK.shape
        per_row = weights_BHCK.new_zeros((batch, heads, height, self._columns + 1), dtype=torch.float64)
        per_row.scatter_add_(-1, self._of_key.expand(weights_BHCK.shape), weights_BHCK.double())
        per_row = per_row[..., : self._columns]
        of_row = ranges(self._rows, tile.rows)[:, None, :, None].expand(per_row.shape)
        self._sums.scatter_add_(2, of_row, per_row)

    def finish(self, dtype: torch.dtype) -> tuple[Tensor, None]:
        queries_BI = self._rows.diff().clamp(min=1)
        return (self._sums[:, :, :-1] / queries_BI[:, None, :, None]).to(dtype), None


class MaxCells:
    """The largest weight of a cell and where it is: of equal ones the smallest query, then key. A nan is the largest."""

    def __init__(self, heads: int, row_edges_BI: Tensor, column_edges_BJ: Tensor, keys: int) -> None:
        self._rows = row_edges_BI
        self._columns = column_edges_BJ.shape[1] - 1
        self._j_K = torch.arange(keys, device=column_edges_BJ.device)
        self._of_key = ranges(column_edges_BJ, self._j_K)[:, None, None]
        sizes = (len(row_edges_BI), heads, row_edges_BI.shape[1], self._columns)
        self._best = torch.full(sizes, -1.0, dtype=torch.float64, device=row_edges_BI.device)  # -1: nothing visible
        self._positions = torch.full((*sizes, 2), -1, device=row_edges_BI.device)

    def add(self, tile: Tile, weights_BHCK: Tensor) -> None:
        order_BHCK = torch.where(tile.visible, weights_BHCK.double().nan_to_num(nan=_INFINITY), -1.0)
        of_key = self._of_key.expand(order_BHCK.shape)
        j_BHCK = self._j_K.expand(order_BHCK.shape)
        best_BHCJ, key_BHCJ = _largest(order_BHCK, j_BHCK, of_key, -1, self._columns + 1)
        best_BHCJ, key_BHCJ = best_BHCJ[..., :-1], key_BHCJ[..., :-1]

        of_row = ranges(self._rows, tile.rows)[:, None, :, None].expand(best_BHCJ.shape)
        i_BHCJ = torch.arange(len(tile.rows), device=of_row.device)[:, None].expand(best_BHCJ.shape)
        best_BHIJ, i_BHIJ = _largest(best_BHCJ, i_BHCJ, of_row, 2, self._best.shape[2])
        key_BHIJ = key_BHCJ.gather(2, i_BHIJ) if len(tile.rows) else i_BHIJ
        is_new = best_BHIJ > self._best  # an equal one of an earlier tile stays: its query is smaller
        found = torch.stack((i_BHIJ + tile.rows[:1].sum(), key_BHIJ), dim=-1)
        self._positions = torch.where(is_new[..., None], found, self._positions)
        self._best = torch.where(is_new, best_BHIJ, self._best)

    def finish(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        best = torch.where(self._best == _INFINITY, torch.nan, self._best.clamp(min=0.0))
        return best[:, :, :-1].to(dtype), self._positions[:, :, :-1]


def _largest(values: Tensor, positions: Tensor, group: Tensor, dimension: int, groups: int) -> tuple[Tensor, Tensor]:
    """The largest value of each group along a dimension, -1 for none, and the first position that holds it, 0 for none."""
    sizes = list(values.shape)
    sizes[dimension] = groups
    best = values.new_full(sizes, -1.0).scatter_reduce(dimension, group, values, "amax")
    none = torch.iinfo(torch.int64).max
    held = torch.where((values >= 0) & (values == best.gather(dimension, group)), positions, none)
    first = positions.new_full(sizes, none).scatter_reduce(dimension, group, held, "amin")
    return best, torch.where(first == none, 0, first)
