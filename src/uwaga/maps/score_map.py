"""What softmax is taken of, as an array that is computed when read. Letters: H query heads, Q queries, K keys."""

from collections.abc import Sequence

import torch
from torch import Tensor

from uwaga.maps import definition
from uwaga.maps.base import Shape, WeightMap
from uwaga.maps.spec import Selection
from uwaga.ops.attention.call import Call, compute_dtype


class ScoreMap(WeightMap):
    """The scores s_ij = softcap(q_i . k_j * scale) + bias of an `AttentionMap`; -inf where key j is hidden.

    Computed by their definition in PyTorch, at any length. A kernel of its own adds up in another order, so that
    exp(s_ij - lse_i) agrees with the weight within float32's rounding of a score, and not to the bit.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> from uwaga import AttentionMap, Causal
    >>> AttentionMap(x, x, mask=Causal(), scale=1.0).scores[:]
    tensor([[1., -inf],
            [0., 4.]])
    """

    __slots__ = ("_call", "_described", "_parts", "_shape")

    def __init__(self, call: Call, shape: Shape, described: str, parts: "Sequence[ScoreMap] | None") -> None:
        self._call, self._shape, self._described, self._parts = call, shape, described, parts

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        return compute_dtype(self._call.query.dtype)

    @property
    def device(self) -> torch.device:
        return self._call.query.device

    def describe(self) -> str:
        return self._described

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        with torch.no_grad():
            return definition.scores(self._call, selection, keys)

    def parts(self) -> "Sequence[WeightMap] | None":
        return self._parts
