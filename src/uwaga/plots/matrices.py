"""The numbers that a figure of a matrix draws: every weight of a small map, the pooled weights of a large one.

Letters: B batch, H heads, Q queries, K keys, I row ranges, J column ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from uwaga._base.arguments import choice
from uwaga.maps.base import WeightMap, map_of_sequence, read_rectangle
from uwaga.maps.map import AttentionMap

if TYPE_CHECKING:
    from numpy import ndarray
# What can be drawn: a map, or a tensor of weights (..., Q, K).
Weights = WeightMap | Tensor
# The ways to pool, and the label of the colour bar for each.
COLOR_LABELS = {"sum": "weight on the keys of a cell", "max": "largest weight of a cell"}
_MAX_WEIGHTS = 1 << 22  # read at once


class MatrixData(NamedTuple):
    """One or several matrices of one size, as they are drawn."""

    matrices: ndarray  # (..., rows, columns) float64
    queries: int  # Q and K of the map; more than rows and columns where it is pooled
    keys: int
    color_label: str  # what the colours of the cells mean

    @property
    def is_pooled(self) -> bool:
        return self.matrices.shape[-2:] != (self.queries, self.keys)


def matrix_data(
    operation: str,
    weights: Weights,
    at: int | tuple[int, ...],
    max_size: int,
    pooling: str | None = "sum",
    *,
    remaining: int = 0,
) -> MatrixData:
    """Return the matrix at the leading indices `at`; a dimension of size 1 needs no index.

    Args:
        operation: name of the public function, for the message.
        weights: a map, dense or ragged, or a tensor (..., Q, K).
        at: indices of the leading dimensions; of a ragged map the first is the sequence.
        max_size: a map with more queries or keys is pooled to this many ranges, and never made dense; a tensor is dense
            already and is drawn as it is.
        pooling: how, a key of COLOR_LABELS; None: a larger matrix is an error.
        remaining: how many dimensions are left before (Q, K).

    Raises:
        ValueError: `at` does not leave these dimensions, an unknown `pooling`, or without it a larger matrix.
    """
    at = at if isinstance(at, tuple) else (at,)
    leading = tuple(weights.shape[:-2])
    count = len(leading) - remaining
    if len(at) > count or any(size != 1 for size in leading[len(at) : max(count, 0)]) or count < 0:
        rule = f"at must select one matrix of the weights {tuple(weights.shape)}, and {at} does not"
        raise ValueError(f"{operation}: {rule}")
    if pooling is not None:
        choice(pooling, f"{operation}: pooling", COLOR_LABELS)
    at = at + (0,) * (count - len(at))
    if isinstance(weights, WeightMap) and weights.parts() is not None:
        weights, at = map_of_sequence(weights, at[0]), at[1:]
    queries, keys = weights.shape[-2:]
    label = "weight"
    if pooling is None and max(queries, keys) > max_size:
        rule = f"{max(queries, keys)} tokens are too many to read as lines (at most {max_size})"
        raise ValueError(f"{operation}: {rule}: merge subword tokens with WordMap, or draw a part of the map")
    if isinstance(weights, Tensor):
        matrices = weights[at]
    elif pooling is None or max(queries, keys) <= max_size:
        matrices = read_rectangle(weights, at)
    else:
        matrices = pooled(weights, at, min(queries, max_size), min(keys, max_size), pooling)
        label = COLOR_LABELS[pooling]
    return MatrixData(matrices.detach().to("cpu", torch.float64).numpy(), queries, keys, label)


def pooled(m: WeightMap, at: tuple[int, ...], rows: int, columns: int, pooling: str) -> Tensor:
    """Pool a dense map at leading indices into equal ranges, (..., I, J), as `AttentionMap.pool` does.

    An AttentionMap pools itself; other maps are read a block of rows at a time.
    """
    if isinstance(m, AttentionMap):
        return m.select(*at).pool(rows, columns, pooling=pooling).weights
    *leading, queries, keys = m.shape[len(at) :]
    row_of_Q, column_of_K = (_ranges(n, size, m.device) for n, size in ((rows, queries), (columns, keys)))
    initial, how = (0.0, "sum") if pooling == "sum" else (-torch.inf, "amax")
    cells = torch.full((*leading, rows, columns), initial, dtype=torch.float64, device=m.device)
    height = max(_MAX_WEIGHTS // max(keys * cells[..., 0, 0].numel(), 1), 1)
    for first in range(0, queries, height):
        weights = read_rectangle(m, (*at, ..., slice(first, first + height), slice(None))).double()
        by_column = torch.full((*weights.shape[:-1], columns), initial, dtype=torch.float64, device=m.device)
        by_column.scatter_reduce_(-1, column_of_K.expand_as(weights), weights, how)
        cells.scatter_reduce_(-2, row_of_Q[first : first + height, None].expand_as(by_column), by_column, how)
    return cells / row_of_Q.bincount(minlength=rows)[:, None] if pooling == "sum" else cells


def _ranges(count: int, size: int, device: torch.device) -> Tensor:
    """Return the range of each position, (size,); range b begins at floor(b * size / count)."""
    edges = torch.arange(1, count, device=device) * size // count
    return torch.searchsorted(edges, torch.arange(size, device=device), right=True)
