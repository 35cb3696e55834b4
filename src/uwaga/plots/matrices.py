"""The numbers that a figure of a matrix draws: every weight of a small map, the pooled weights of a large one.

Letters: Q queries, K keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from uwaga.maps.base import WeightMap, map_of_sequence, read_rectangle
from uwaga.maps.map import AttentionMap

if TYPE_CHECKING:
    from numpy import ndarray
# What can be drawn: a map, or a tensor of weights (..., Q, K).
Weights = WeightMap | Tensor


class MatrixData(NamedTuple):
    """A matrix as it is drawn."""

    matrix: ndarray  # (rows, columns) float64
    queries: int  # Q and K of the map; more than rows and columns where it is pooled
    keys: int

    @property
    def is_pooled(self) -> bool:
        return self.matrix.shape != (self.queries, self.keys)


def matrix_data(operation: str, weights: Weights, at: int | tuple[int, ...], max_size: int) -> MatrixData:
    """Return the matrix at the leading indices `at`; a dimension of size 1 needs no index.

    Args:
        operation: name of the public function, for the message.
        weights: a map, dense or ragged, or a tensor (..., Q, K).
        at: indices of the leading dimensions; of a ragged map the first is the sequence.
        max_size: a map with more queries or keys is pooled to this many ranges, and never made dense; a tensor is dense
            already and is drawn as it is.

    Raises:
        ValueError: `at` does not select one matrix.
    """
    at = at if isinstance(at, tuple) else (at,)
    leading = tuple(weights.shape[:-2])
    if len(at) > len(leading) or any(size != 1 for size in leading[len(at) :]):
        rule = f"at must select one matrix of the weights {tuple(weights.shape)}, and {at} does not"
        raise ValueError(f"{operation}: {rule}")
    at = at + (0,) * (len(leading) - len(at))
    if isinstance(weights, WeightMap) and weights.parts() is not None:
        weights, at = map_of_sequence(weights, at[0]), at[1:]
    queries, keys = weights.shape[-2:]
    if isinstance(weights, Tensor):
        matrix = weights[at]
    elif max(queries, keys) <= max_size:
        matrix = read_rectangle(weights, at)
    else:
        matrix = _pooled(weights, at, min(queries, max_size), min(keys, max_size))
    return MatrixData(matrix.detach().to("cpu", torch.float64).numpy(), queries, keys)


def _pooled(m: WeightMap, at: tuple[int, ...], rows: int, columns: int) -> Tensor:
    """Pool a matrix of a dense map into equal ranges, as `AttentionMap.pool` does; other maps are read a range of queries at a time."""
    if isinstance(m, AttentionMap):
        return m.select(*at).pool(rows, columns).weights
    first_of_row, first_of_column = (
        torch.arange(count + 1, device=m.device) * size // count
        for count, size in zip((rows, columns), m.shape[-2:], strict=True)
    )
    means = [
        read_rectangle(m, (*at, slice(start, stop), slice(None))).double().mean(0)
        for start, stop in first_of_row.unfold(0, 2, 1).tolist()
    ]
    return torch.segment_reduce(torch.stack(means), "sum", lengths=first_of_column.diff().expand(rows, -1), axis=1)
