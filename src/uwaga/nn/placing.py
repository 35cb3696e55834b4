"""Masks and biases over a cache whose rows are of different lengths: each row's queries start at a place of their own."""

from dataclasses import replace

from torch import Tensor

from uwaga.ops.biases import DistanceBias
from uwaga.ops.masks import Both, Causal, Documents, Either, Mask, Window, as_mask


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
    if isinstance(bias, DistanceBias) and bias.start is None:
        return replace(bias, start=start_R)
    return bias
