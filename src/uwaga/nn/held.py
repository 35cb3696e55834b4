"""What a cache slot holds, and masks over it where its rows are of different lengths.

Letters: R rows, G key/value heads, K keys of the longest row, D key width, E value width, N packed tokens.
"""

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from uwaga.ops.biases import AlibiBias, DistanceBias, RelativeBias
from uwaga.ops.masks import Both, Causal, Documents, Either, KeyLengths, Mask, Window, as_mask
from uwaga.ops.ragged import Operand


class Held(NamedTuple):
    """All keys and values of a slot after an append, of the kind that was appended; where padded rows differ in length,
    where the new tokens start in each and how many keys it has."""

    key: Operand  # (R, G, K, D), a view; Ragged (N, G, D)
    value: Operand  # (R, G, K, E), a view; Ragged (N, G, E)
    start_R: Tensor | None = None
    lengths_R: Tensor | None = None

    def mask(self, mask: Mask | Tensor | None) -> Mask | Tensor | None:
        """The mask of the new tokens over these keys, from one as if the rows were of one length."""
        if self.lengths_R is None or self.start_R is None:
            return mask
        inside = KeyLengths(self.lengths_R)
        return inside if mask is None else inside & place_mask(mask, self.start_R)

    def bias(self, bias: DistanceBias | Tensor | None) -> DistanceBias | Tensor | None:
        """The bias likewise."""
        return bias if self.start_R is None else place_bias(bias, self.start_R)


def place_mask(mask: Mask | Tensor, start_R: Tensor) -> Mask:
    """The mask with the row's start wherever it asks for none, which would count from the longest row's end.

    Raises:
        ValueError: Documents without query_ids, which count from there too.
    """
    mask = as_mask(mask)
    if isinstance(mask, Both | Either):
        return replace(mask, left=place_mask(mask.left, start_R), right=place_mask(mask.right, start_R))
    if isinstance(mask, Causal | Window):
        return replace(mask, start=start_R) if mask.start is None else mask
    if isinstance(mask, Documents) and mask.query_ids is None:
        raise ValueError("KeyValueCache: Documents over rows of different lengths needs query_ids")
    return mask


def place_bias(bias: DistanceBias | Tensor | None, start_R: Tensor) -> DistanceBias | Tensor | None:
    """The bias with the row's start where it asks for none; a tensor as it is."""
    if isinstance(bias, AlibiBias | RelativeBias) and bias.start is None:
        return replace(bias, start=start_R)
    return bias
