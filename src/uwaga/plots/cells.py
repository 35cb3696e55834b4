"""What a figure of a matrix draws: every weight of a small map, the pooled cells of a large one.

Letters: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from uwaga.maps.base import WeightMap
from uwaga.plots.coarse import coarse

if TYPE_CHECKING:
    from numpy import ndarray

# What a caller may draw: a map, or weights that are there already, (..., Q, K).
Weights = WeightMap | Tensor

# How a figure is told to pool, and what the colour of a cell then means.
MEANING = {"mass": "weight on the keys of a cell", "max": "largest weight of a cell"}


class Cells(NamedTuple):
    """Matrices of one size."""

    matrices: ndarray  # (..., rows, columns) float64
    queries: int
    keys: int
    meaning: str  # of a colour, in words

    @property
    def is_pooled(self) -> bool:
        return self.matrices.shape[-2:] != (self.queries, self.keys)


class Picked(NamedTuple):
    """One matrix of some weights, or one per head: `weights[at]`, not read yet."""

    weights: Weights  # of a dense map or a tensor
    at: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Q and K."""
        return tuple(self.weights.shape[-2:])


def pick(operation: str, weights: Weights, at: int | tuple[int, ...], *, free: int = 0) -> Picked:
    """What the leading indices `at` pick, filled up with 0 where a dimension has one entry only.

    Args:
        operation: who asks, for the message.
        weights: a map, dense or ragged, or a tensor (..., Q, K).
        at: indices of the leading dimensions; of a ragged map the first is the sequence.
        free: how many dimensions stay before (Q, K).

    Raises:
        ValueError: something else than one matrix is left.
    """
    at = at if isinstance(at, tuple) else (at,)
    leading = tuple(weights.shape[:-2])
    wanted = len(leading) - free
    if len(at) > wanted or any(size != 1 for size in leading[len(at) : max(wanted, 0)]) or wanted < 0:
        rule = f"at must pick one matrix of the weights {tuple(weights.shape)}, and {at} does not"
        raise ValueError(f"{operation}: {rule}")
    at = at + (0,) * (wanted - len(at))
    if isinstance(weights, WeightMap) and weights.parts() is not None:
        return Picked(weights[at[0]], at[1:])
    return Picked(weights, at)


def cells(operation: str, picked: Picked, most: int, how: str) -> Cells:
    """The weights that were picked.

    A map with more than `most` queries or keys is pooled to so many, and is never dense; a tensor is dense already and
    is drawn as it is.
    """
    if how not in MEANING:
        raise ValueError(f"{operation}: how must be one of {', '.join(MEANING)}, not {how!r}")
    weights, at = picked
    queries, keys = picked.sizes
    if isinstance(weights, Tensor) or max(queries, keys) <= most:
        matrices, meaning = weights[at], "weight"
    else:
        matrices, meaning = coarse(weights, at, min(queries, most), min(keys, most), how), MEANING[how]
    return Cells(matrices.detach().to("cpu", torch.float64).numpy(), queries, keys, meaning)
