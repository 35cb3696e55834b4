"""Biases that depend on the distance j - p only: one vector per head, never a Q x K tensor.

Query i stands at position p = i + start; `start` as in masks.py. The vectors are made of differentiable PyTorch
operations, so gradients reach slopes and tables. Letters: H query heads, L distances.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from uwaga.ops.mask_program import Start
from uwaga.ops.validation import check_real, check_start, invalid, is_integer


class DistanceBias(ABC):
    """A bias that is a function of the distance j - p; `start` is the position of query 0 among the keys."""

    __slots__ = ()
    start: Start

    @abstractmethod
    def heads(self) -> int:
        """Return the number of query heads H."""

    @abstractmethod
    def parameter(self) -> Tensor:
        """Return the learnable tensor of the bias, for error messages and checks of its device."""

    @abstractmethod
    def vector(self, distance_L: Tensor) -> Tensor:
        """Compute the bias (H, L) at each distance j - p."""


@dataclass(frozen=True, slots=True, eq=False)
class AlibiBias(DistanceBias):
    """Add -slopes[h] * |j - p| to the scores (Press, Smith and Lewis, "Train Short, Test Long", 2022; symmetric form).

    Args:
        slopes: (H,), real.
        start: position of the first query among the keys, as in masks.

    Raises:
        ValueError: slopes of another shape or complex, or start is not None, an integer or a tensor.
    """

    slopes: Tensor
    _: KW_ONLY
    start: Start = None

    def __post_init__(self) -> None:
        check_real("AlibiBias", "slopes", self.slopes)
        check_start("AlibiBias", self.start)
        if self.slopes.dim() != 1:
            raise invalid("AlibiBias", "slopes", "(H,), one per query head", tuple(self.slopes.shape))

    def heads(self) -> int:
        return self.slopes.shape[0]

    def parameter(self) -> Tensor:
        return self.slopes

    def vector(self, distance_L: Tensor) -> Tensor:
        # Stored in half precision, as a model's buffers may be, slopes are multiplied in float32: distances grow large.
        slopes_H = self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))
        return -slopes_H[:, None] * distance_L.abs()


@dataclass(frozen=True, slots=True, eq=False)
class RelativeBias(DistanceBias):
    """Add table[bucket(j - p), h] to the scores, with the buckets of T5 (Raffel et al., 2020).

    With `bidirectional`, half of the buckets are for keys after the query. Without it, all keys after the query share bucket 0. In each
    direction, the first half of the buckets has one distance each; the others are logarithmically wider, up to `max_distance`.

    Args:
        table: (buckets, H), real; gradients reach it.
        bidirectional: as in T5's encoder; False as in its decoder.
        max_distance: in tokens; all distances from there on share the last bucket.
        start: position of the first query among the keys, as in masks.

    Raises:
        ValueError: a table of another shape or complex, fewer than two buckets a direction, or a max_distance that is not more
            than half of the buckets of a direction.
    """

    table: Tensor
    _: KW_ONLY
    bidirectional: bool = True
    max_distance: int = 128
    start: Start = None

    def __post_init__(self) -> None:
        check_real("RelativeBias", "table", self.table)
        check_start("RelativeBias", self.start)
        if self.table.dim() != 2:
            raise invalid("RelativeBias", "table", "(buckets, H)", tuple(self.table.shape))
        if not is_integer(self.max_distance):
            raise invalid("RelativeBias", "max_distance", "an integer", repr(self.max_distance))
        one_way = self.table.shape[0] // 2 if self.bidirectional else self.table.shape[0]
        if one_way < 2 or self.max_distance <= one_way // 2:
            rule = "needs at least two buckets a direction and a max_distance of more than half of them"
            raise ValueError(f"RelativeBias: {rule}, not {one_way} and {self.max_distance}")

    def heads(self) -> int:
        return self.table.shape[1]

    def parameter(self) -> Tensor:
        return self.table

    def vector(self, distance_L: Tensor) -> Tensor:
        # Widened first: the gradient of a table adds up over all distances that share a bucket, in the dtype that is indexed.
        table = self.table.to(torch.promote_types(self.table.dtype, torch.float32))
        return table[self.bucket(distance_L)].T

    def bucket(self, distance: Tensor) -> Tensor:
        """Return T5's bucket of each distance j - p, as in transformers' T5Attention._relative_position_bucket."""
        buckets = self.table.shape[0]
        if self.bidirectional:
            buckets //= 2
            first = (distance > 0).long() * buckets
            away = distance.abs()
        else:
            first = torch.zeros_like(distance)
            away = (-distance).clamp(min=0)
        exact = buckets // 2
        # float32 and this order of operations, since checkpoints were trained with its rounding at the bucket edges.
        growth = torch.log(away.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        wide = exact + (growth * (buckets - exact)).long()
        return first + torch.where(away < exact, away, wide.clamp(max=buckets - 1))
