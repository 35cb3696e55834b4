"""Maps that are made of one other map."""

import torch

from uwaga.maps.base import WeightMap


class DerivedMap(WeightMap):
    """A map whose numbers are those of another kind and place: of `map`, which a subclass sets."""

    __slots__ = ("map",)

    map: WeightMap

    @property
    def dtype(self) -> torch.dtype:
        return self.map.dtype

    @property
    def device(self) -> torch.device:
        return self.map.device
