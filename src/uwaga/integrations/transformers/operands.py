"""From what a layer hands over to what `uwaga.attention` takes: ragged where that can be, else the whole batch.

Letters as in attention.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uwaga.integrations.serving import autocast, serves
from uwaga.integrations.transformers.carrier import PlannedMask
from uwaga.integrations.transformers.modules import attends_to_itself
from uwaga.integrations.transformers.plan import Plan, Stretches
from uwaga.integrations.transformers.states import PackedStates, Packing
from uwaga.ops.attention.lower import Operand
from uwaga.ops.masks import Causal, Documents, Mask, Window, as_mask
from uwaga.ops.ragged import Ragged

Three = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What a layer says beside its query, key and value."""

    module: nn.Module
    mask: Tensor | None
    position_bias: Tensor | None
    is_causal: bool  # where there is no mask
    sliding_window: int | None  # where there is no mask, of a packed batch
    query_offsets: Tensor | None  # (R+1,) of a packed batch
    key_offsets: Tensor | None

    @property
    def plan(self) -> Plan | None:
        """What the mask was made from, where nobody has changed it since."""
        return self.mask.plan if isinstance(self.mask, PlannedMask) and self.mask.settled is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """The arguments of one call."""

    query: Operand
    key: Operand
    value: Operand
    mask: Mask | None = None
    bias: Tensor | None = None
    packing: Packing | None = None  # where the call knows no padding at all


def over_tokens(layer: Layer, tensors: Three) -> Operands | None:
    """The ragged call over states that hold no padding."""
    stretches, tokens = _stretches(layer), None if layer.plan is None else layer.plan.tokens
    if stretches is None or tokens is None:
        return None
    packing = Packing.current(tokens)
    if not all(_is_of(packing, x) for x in tensors):
        return None
    query, key, value = autocast(*(x.values for x in tensors if isinstance(x, PackedStates)))
    return _ragged((query, key, value), packing.offsets, packing.offsets, stretches.mask, packing)


def over_stretches(layer: Layer, tensors: Three) -> Operands | None:
    """The ragged call over the batch as it lies there."""
    stretches = _stretches(layer)
    if stretches is None:
        return None
    if stretches.lengths is not None and not serves(*tensors):
        return None  # stretches of padding are a mask, and other engines read ragged masks one sequence after the other
    return _ragged(in_a_row(tensors), stretches.offsets, stretches.offsets, stretches.visible())


def over_documents(layer: Layer, tensors: Three) -> Operands | None:
    """The ragged call over a packed batch, by the offsets of its documents, where the mask tells nothing else."""
    if layer.query_offsets is None or layer.position_bias is not None:
        return None
    of_queries, of_keys = documents(layer)
    if layer.mask is None:
        return _ragged(in_a_row(tensors), of_queries, of_keys, _window(layer))
    stretches = None if layer.plan is None else layer.plan.stretches
    if stretches is None or not torch.equal(stretches.offsets, of_queries) or not torch.equal(of_queries, of_keys):
        return None
    return _ragged(in_a_row(tensors), of_queries, of_keys, stretches.mask)


def over_the_batch(layer: Layer, tensors: Three) -> Operands:
    """The dense call, which serves whatever there is."""
    query, key, value = tensors
    mask, bias = whole_mask(layer, query.shape[2], key.shape[2])
    return Operands(query=query, key=key, value=value, mask=mask, bias=bias)


def whole_mask(layer: Layer, queries: int, keys: int) -> tuple[Mask | None, Tensor | None]:
    """The mask and the bias over the scores (B, H, queries, keys)."""
    if layer.query_offsets is None:
        return _mask_and_bias(layer, queries)
    of_queries, of_keys = documents(layer)
    same = Documents(_ids(of_keys, keys), query_ids=_ids(of_queries, queries))
    if layer.mask is not None:
        mask, bias = _mask_and_bias(layer, queries)
        return same if mask is None else mask & same, bias
    band = _window(layer)
    if band is None:
        return same, layer.position_bias
    if not torch.equal(of_queries, of_keys):
        # The distance of a query and a key of one document is then another one in each of them.
        raise ValueError(
            f"attn_implementation='uwaga': {type(layer.module).__name__} attends causally or in a window over a packed "
            "batch whose cu_seq_lens_q and cu_seq_lens_k differ; neither a map nor a position bias is served there"
        )
    return same & band, layer.position_bias


def documents(layer: Layer) -> tuple[Tensor, Tensor]:
    """The offsets of a packed batch, of its queries and of its keys."""
    assert layer.query_offsets is not None
    of_queries = layer.query_offsets.long()
    return of_queries, of_queries if layer.key_offsets is None else layer.key_offsets.long()


def aligned(*tensors: Tensor) -> tuple[Tensor, ...]:
    """One batch size for all, by zero strides: some models have learned queries of their own, with B = 1."""
    batch = max(x.shape[0] for x in tensors)
    return tuple(x if x.shape[0] == batch else x.expand(batch, -1, -1, -1) for x in tensors)


def in_a_row(tensors: Three) -> Three:
    """(B * N, H, D) each: a view where heads lie inside tokens, a copy where a cache has put them before."""
    query, key, value = (x_BHND.transpose(1, 2).flatten(0, 1) for x_BHND in tensors)
    return query, key, value


def _mask_and_bias(layer: Layer, queries: int) -> tuple[Mask | None, Tensor | None]:
    mask, bias = layer.mask, layer.position_bias
    if mask is None:
        # Upper left, as transformers does it for a cache of fixed size that is still empty.
        return (Causal(start=0) if layer.is_causal and queries > 1 else None), bias
    if layer.plan is not None:
        return layer.plan.mask, bias
    if isinstance(mask, PlannedMask):
        mask = mask.dense()
    if mask.is_floating_point():
        return None, mask if bias is None else mask + bias
    return as_mask(mask), bias


def _stretches(layer: Layer) -> Stretches | None:
    """Those of the plan, where queries and keys are the same tokens and nothing else counts."""
    plan = layer.plan
    if plan is None or plan.stretches is None or layer.position_bias is not None or layer.query_offsets is not None:
        return None
    kind: Any = type(layer.module)  # a class may be hashed, whatever its modules say
    return plan.stretches if plan.is_self_attention or attends_to_itself(kind) else None


def _is_of(packing: Packing, x: Tensor) -> bool:
    return isinstance(x, PackedStates) and x.is_packed and x.heads_first and x.packing.has_same_tokens(packing)


def _ragged(
    tensors: Three, of_queries: Tensor, of_keys: Tensor, mask: Mask | None, packing: Packing | None = None
) -> Operands:
    query, key, value = tensors
    ragged_key = Ragged(key, of_keys)
    return Operands(
        query=Ragged(query, of_queries),
        key=ragged_key,
        value=ragged_key.with_values(value),
        mask=mask,
        packing=packing,
    )


def _window(layer: Layer) -> Mask | None:
    """What FlashAttention makes of is_causal and sliding_window, where there is no mask."""
    if layer.sliding_window is None:
        return Causal() if layer.is_causal else None
    reach = layer.sliding_window - 1  # transformers counts the query itself
    return Window(reach, 0 if layer.is_causal else reach)


def _ids(offsets: Tensor, tokens: int) -> Tensor:
    """(N,) the document of each token."""
    return torch.searchsorted(offsets[1:].contiguous(), torch.arange(tokens, device=offsets.device), right=True)
