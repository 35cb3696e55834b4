"""What a layer of transformers says beside its query, key and value, and the mask that this makes.

Letters as in attention.py.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from uwaga.integrations.transformers.carrier import PlannedMask
from uwaga.integrations.transformers.closures import reach
from uwaga.integrations.transformers.plan import Plan, Refused
from uwaga.ops.masks import Causal, Documents, Mask, Window, as_mask


class Layer(NamedTuple):
    """What a layer says beside its query, key and value."""

    module: nn.Module
    mask: Tensor | None
    plan: Plan | Refused | None  # what the mask was made from, where nobody has changed it since
    position_bias: Tensor | None
    is_causal: bool  # where there is no mask
    sliding_window: int | None  # where there is no mask, of a packed batch
    query_offsets: Tensor | None  # (R+1,) of a packed batch
    key_offsets: Tensor | None


def plan_of(mask: Tensor | None) -> Plan | Refused | None:
    """What a mask was made from, where nobody has changed it since. Under torch.compile no more than the mask itself: states
    without padding have no place in a graph; and nothing where the mask has a dense form, which serves all steps of decoding
    in one graph. Raises ValueError: a plan that was refused."""
    if not isinstance(mask, PlannedMask) or mask.settled is not None:
        return None
    if torch.compiler.is_compiling() and mask.row is not None:
        return None
    plan = mask.plan
    says_more = plan.stretches is not None or plan.tokens is not None
    return Plan(mask=plan.mask) if says_more and torch.compiler.is_compiling() else plan


def whole_mask(layer: Layer, query: Tensor, key: Tensor) -> tuple[Mask | None, Tensor | None]:
    """The mask and the bias over the scores (B, H, Q, K)."""
    if layer.query_offsets is None:
        return _mask_and_bias(layer, query)
    queries, keys = query.shape[2], key.shape[2]
    of_queries, of_keys = documents(layer)
    same = Documents(_ids(of_keys, keys), query_ids=_ids(of_queries, queries))
    if layer.mask is not None:
        mask, bias = _mask_and_bias(layer, query)
        return same if mask is None else mask & same, bias
    inside = band(layer)
    if inside is None:
        return same, layer.position_bias
    if not torch.equal(of_queries, of_keys):
        # The distance of a query and a key of one document is then another one in each of them.
        raise ValueError(
            f"attn_implementation='uwaga': {type(layer.module).__name__} attends causally or in a window over a packed "
            "batch whose cu_seq_lens_q and cu_seq_lens_k differ; neither a map nor a position bias is served there"
        )
    return same & inside, layer.position_bias


def documents(layer: Layer) -> tuple[Tensor, Tensor]:
    """The offsets of a packed batch, of its queries and of its keys."""
    assert layer.query_offsets is not None
    of_queries = layer.query_offsets.long()
    return of_queries, of_queries if layer.key_offsets is None else layer.key_offsets.long()


def band(layer: Layer) -> Mask | None:
    """What FlashAttention makes of is_causal and sliding_window, where there is no mask."""
    if layer.sliding_window is None:
        return Causal() if layer.is_causal else None
    left = reach(layer.sliding_window)
    return Window(left, 0 if layer.is_causal else left)


def _mask_and_bias(layer: Layer, query: Tensor) -> tuple[Mask | None, Tensor | None]:
    mask, bias = layer.mask, layer.position_bias
    if mask is None:
        # Upper left, as transformers does it for a cache of fixed size that is still empty.
        return (Causal(start=0) if layer.is_causal and query.shape[2] > 1 else None), bias
    if layer.plan is not None:
        return layer.plan.mask, bias
    if isinstance(mask, PlannedMask):
        mask = mask.dense()
    if mask.is_floating_point():
        return None, _added(mask if bias is None else mask + bias, query.dtype)
    return as_mask(mask), bias


def _added(mask: Tensor, to: torch.dtype) -> Tensor:
    """A mask that is added to scores of this type: eager attention takes one of any other type, too."""
    if mask.dtype == to:
        return mask
    return mask.to(torch.promote_types(to, torch.float32))


def _ids(offsets: Tensor, tokens: int) -> Tensor:
    """(N,) the document of each token."""
    return torch.searchsorted(offsets[1:].contiguous(), torch.arange(tokens, device=offsets.device), right=True)
