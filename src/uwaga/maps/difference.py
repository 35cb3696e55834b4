"""What differs between two maps of the same tokens: of two layers, of two checkpoints, with and without an edit."""

from collections.abc import Sequence

import torch
from torch import Tensor

from uwaga.maps.base import WeightMap
from uwaga.maps.spec import Selection


class DifferenceMap(WeightMap):
    """left - right, computed when read; its rows sum to 0 where those of both sum to the same.

    Args:
        left: a map of any kind.
        right: a map of the same shape, on the same device. Float64 if one of them is.

    Raises:
        ValueError: maps of different shapes, or on different devices.
    """

    __slots__ = ("left", "right")

    def __init__(self, left: WeightMap, right: WeightMap) -> None:
        if left.shapes != right.shapes:
            shapes = (left.shape, right.shape) if left.shape != right.shape else (left.shapes, right.shapes)
            raise ValueError(f"DifferenceMap: the maps differ in shape: {shapes[0]} and {shapes[1]}")
        if left.device != right.device:
            raise ValueError(f"DifferenceMap: the maps are on different devices: {left.device} and {right.device}")
        self.left, self.right = left, right

    @property
    def shape(self) -> tuple[int | None, ...]:
        return self.left.shape

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.left.dtype, self.right.dtype)

    @property
    def device(self) -> torch.device:
        return self.left.device

    def describe(self) -> str:
        return f"{self.left.describe()} less {self.right.describe()}"

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        return self.left.read(selection, keys) - self.right.read(selection, keys)

    def parts(self) -> Sequence[WeightMap] | None:
        left, right = self.left.parts(), self.right.parts()
        if left is None or right is None:
            return None
        return [DifferenceMap(one, other) for one, other in zip(left, right, strict=True)]
