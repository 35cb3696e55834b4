"""A dense bias that depends on the distance alone, such as T5's of transformers, as one vector per head.

Letters: B batch, H query heads, Q queries, K keys, L distances.
"""

from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from uwaga.ops.biases import DistanceBias
from uwaga.ops.mask_program import Start

_ROWS = 64  # compared at once, so that the comparison takes less memory than the bias


@dataclass(frozen=True, slots=True, eq=False)
class VectorBias(DistanceBias):
    """values[h, j - p - lowest], for the distances that were met; those beyond are never asked for where a query sees."""

    values: Tensor  # (H, L)
    lowest: int  # the distance of the first
    _: KW_ONLY
    start: Start = None

    def heads(self) -> int:
        return self.values.shape[0]

    def parameter(self) -> Tensor:
        return self.values

    def vector(self, distance_L: Tensor) -> Tensor:
        return self.values[:, (distance_L - self.lowest).clamp(0, self.values.shape[1] - 1)]

    @property
    def highest(self) -> int:
        return self.lowest + self.values.shape[1] - 1

    def joined(self, other: "VectorBias") -> "VectorBias | None":
        """Both in one; None where they disagree, or have a gap between them."""
        low, high = max(self.lowest, other.lowest), min(self.highest, other.highest)
        if high < low - 1 or not torch.equal(self._between(low, high), other._between(low, high)):
            return None
        first, last = (self, other) if self.lowest <= other.lowest else (other, self)
        longest = first if first.highest >= last.highest else last
        tail = longest._between(first.highest + 1, longest.highest)
        return replace(first, values=torch.cat((first.values, tail), 1))

    def _between(self, low: int, high: int) -> Tensor:
        return self.values[:, low - self.lowest : max(high + 1 - self.lowest, low - self.lowest)]


def by_distance(bias: Tensor, heads: int) -> VectorBias | None:
    """The vector of a bias (1, H, Q, K) whose last query meets the last key; None where entries of one distance differ.

    Args:
        heads: H; of a bias for all heads alike, (1, 1, Q, K), no vector is made.
    """
    if bias.dim() != 4 or bias.shape[:2] != (1, heads) or 0 in bias.shape:
        return None
    bias_HQK = bias[0]
    queries, keys = bias_HQK.shape[1:]
    # Along the last row, then up the last column: from the lowest distance to the highest.
    vector_HL = torch.cat((bias_HQK[:, -1], bias_HQK[:, :-1, -1].flip(-1)), -1)
    windows_HQK = vector_HL.unfold(-1, keys, 1)  # the last query's first
    for low in range(0, queries, _ROWS):
        rows = bias_HQK.narrow(1, low, min(_ROWS, queries - low)).flip(1)
        if not torch.equal(windows_HQK.narrow(1, queries - low - rows.shape[1], rows.shape[1]), rows):
            return None
    return VectorBias(vector_HL, 1 - keys)
