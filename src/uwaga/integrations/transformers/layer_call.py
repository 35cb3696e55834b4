"""From the arguments of a layer of transformers to those of `uwaga.attention`: ragged where possible, else the whole batch.

Letters as in attention.py.
"""

import warnings
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from uwaga._base.tracing import is_intercepted
from uwaga.integrations.torch_patch import autocast, is_supported
from uwaga.integrations.transformers.mask_functions import has_documents, reach
from uwaga.integrations.transformers.mask_plan import LazyMask, MaskPlan, Segments
from uwaga.integrations.transformers.packed_states import PackedStates, Packing, plain
from uwaga.nn.operand import values_of
from uwaga.ops.attention.api import attention
from uwaga.ops.attention.hooks import Asked
from uwaga.ops.masks import Both, Causal, Documents, Mask, Window, as_mask
from uwaga.ops.ragged import Operand, Ragged


class LayerArguments(NamedTuple):
    """The arguments of a layer without query, key and value."""

    module: nn.Module
    mask: Tensor | None
    plan: MaskPlan | None  # of the mask, unless the mask was modified
    position_bias: Tensor | None
    is_causal: bool  # where there is no mask
    sliding_window: int | None  # where there is no mask, of a packed batch
    offsets: Tensor | None  # (R+1,) int64, of a packed batch


def plan_of(mask: Tensor | None) -> MaskPlan | None:
    """Return the plan of a LazyMask that was not modified. Raises ValueError if the plan is invalid.

    Under torch.compile the plan has only the mask, because packed states cannot be traced. The result is None if the mask has a dense form
    for one query, so that all steps of decoding share a graph.
    """
    if not isinstance(mask, LazyMask) or mask.materialized is not None:
        return None
    if torch.compiler.is_compiling() and mask.row is not None:
        return None
    plan = mask.valid_plan()
    says_more = plan.segments is not None or plan.tokens is not None
    return MaskPlan(mask=plan.mask) if says_more and torch.compiler.is_compiling() else plan


def whole_mask(layer: LayerArguments, query: Tensor, key: Tensor) -> tuple[Mask | None, Tensor | None]:
    """Return the mask and the bias over the scores (B, H, Q, K)."""
    if layer.offsets is None:
        return _mask_and_bias(layer, query)
    same = Documents(_ids(layer.offsets, key.shape[2]), query_ids=_ids(layer.offsets, query.shape[2]))
    if layer.mask is not None:
        mask, bias = _mask_and_bias(layer, query)
        return same if mask is None else mask & same, bias
    inside = band(layer)
    return same if inside is None else same & inside, layer.position_bias


def band(layer: LayerArguments) -> Mask | None:
    """Return the mask of is_causal and sliding_window, where there is no other, as in FlashAttention."""
    if layer.sliding_window is None:
        return Causal() if layer.is_causal else None
    left = reach(layer.sliding_window)
    return Window(left, 0 if layer.is_causal else left)


def _mask_and_bias(layer: LayerArguments, query: Tensor) -> tuple[Mask | None, Tensor | None]:
    mask, bias = layer.mask, layer.position_bias
    if mask is None:
        # Upper left, as transformers does it for a cache of fixed size that is still empty.
        return (Causal(start=0) if layer.is_causal and query.shape[2] > 1 else None), bias
    if layer.plan is not None:
        return layer.plan.mask, bias
    if isinstance(mask, LazyMask):
        mask = mask.dense()
    if mask.is_floating_point():
        added = mask if bias is None else mask + bias
        # Eager attention adds a mask of any dtype to scores.
        is_same = added.dtype == query.dtype
        return None, added if is_same else added.to(torch.promote_types(query.dtype, torch.float32))
    return as_mask(mask), bias


def _ids(offsets: Tensor, tokens: int) -> Tensor:
    """Return the document of each token, (N,)."""
    return torch.searchsorted(offsets[1:].contiguous(), torch.arange(tokens, device=offsets.device), right=True)


@cache
def warn_once(layer: type) -> None:
    """Warn once for each class of layers that documents see each other."""
    warnings.warn(
        f"attn_implementation='uwaga': position_ids start again at 0 within a row, but the documents of {layer.__name__} see each other: "
        "with padding, with a cache that is not empty or has a fixed size, or where the model gives its mask no positions, only "
        "cu_seq_lens_q and cu_seq_lens_k keep them apart",
        stacklevel=1,
    )


def check_documents(layer: LayerArguments, position_ids: object) -> None:
    """Warn once where documents of a packed batch are not kept apart: their positions say where they begin, but the mask does not."""
    module, plan = layer.module, layer.plan
    if getattr(module, "layer_idx", None) != 0 or plan is None or plan.is_packed or is_intercepted():
        return
    if layer.offsets is not None or not isinstance(position_ids, Tensor) or position_ids.dim() != 2:
        return
    is_causal = getattr(module, "is_causal", False) and position_ids.shape[1] > 1
    if is_causal and has_documents(position_ids, plan.tokens):
        kind: Any = type(module)
        warn_once(kind)


def remaining_layers(module: nn.Module) -> int | None:
    """Return the number of layers after this one; None where the module does not tell.

    Configs of encoder-decoders have one number for two stacks of layers.
    """
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    count = getattr(config, "num_hidden_layers", None)
    if not isinstance(index, int) or not isinstance(count, int) or getattr(config, "is_encoder_decoder", False):
        return None
    return count - 1 - index


def is_output_collected(name: str) -> bool:
    """Return whether the model collects "attentions", "hidden_states" or the like in this forward pass. Not all layers get it as an argument."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # older versions pass it to their layers
        return False
    return name in (_active_collector.get() or ())


QueryKeyValue = tuple[Tensor, Tensor, Tensor]


class AttentionCall(NamedTuple):
    """The arguments of a call of uwaga.attention."""

    query: Operand
    key: Operand
    value: Operand
    mask: Mask | None = None
    bias: Tensor | None = None
    packing: Packing | None = None  # where the operands are packed states
    # A separate call for the last position of each sequence, whose result replaces that of this one: offsets of the sequences, and its mask.
    last: tuple[Tensor, Mask] | None = None


def attention_call(layer: LayerArguments, tensors: QueryKeyValue) -> AttentionCall:
    """Return the cheapest call: over packed states, segments or documents; else over the whole batch with a mask."""
    segments = _segments(layer)
    if segments is not None:
        over_states = _packed_states_call(layer, segments, tensors)
        if over_states is not None:
            return over_states
    query, key, value = plain_tensors(*tensors)
    call: AttentionCall | None = None
    if layer.offsets is not None:
        call = _packed_batch_call(layer, (query, key, value))
    elif segments is not None:
        call = _segments_call(layer, segments, (query, key, value))
    return call or AttentionCall(query, key, value, *whole_mask(layer, query, key))


def plain_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return plain tensors in the dtype of autocast and with equal batch sizes: learned queries with B = 1 are expanded."""
    tensors = autocast(*map(plain, tensors))
    first, *others = [x.shape[0] for x in tensors]
    if all(batch == first for batch in others):
        return tensors
    batch = max(first, *others)
    return tuple(x if x.shape[0] == batch else x.expand(batch, -1, -1, -1) for x in tensors)


def _packed_states_call(layer: LayerArguments, segments: Segments, tensors: QueryKeyValue) -> AttentionCall | None:
    """Return the ragged call over packed states."""
    tokens = None if layer.plan is None else layer.plan.tokens
    states = [x for x in tensors if isinstance(x, PackedStates)]
    if tokens is None or len(states) < len(tensors):
        return None
    packing = Packing.current(tokens)
    if not all(x.is_packed and x.heads_first and x.packing.has_same_tokens(packing) for x in states):
        return None
    query, key, value = autocast(*(x.values for x in states))
    call = _ragged((query, key, value), packing.offsets, segments.mask, packing)
    last = None if layer.plan is None or layer.plan.last is None else layer.plan.last.of_tokens
    return call if last is None else call._replace(last=(packing.offsets, last))


def _segments_call(layer: LayerArguments, segments: Segments, tensors: QueryKeyValue) -> AttentionCall | None:
    """Return the ragged call over the segments of the batch, in place."""
    if segments.lengths is not None and not is_supported(*tensors):
        return None  # segments of padding need a ragged mask, which other engines compute sequence by sequence
    rows = _in_a_row(tensors)
    call = _ragged(rows, segments.offsets, segments.visible)
    if layer.plan is None or layer.plan.last is None:
        return call
    batch, _, length, _ = tensors[0].shape
    offsets = torch.arange(batch + 1, device=segments.offsets.device) * length
    return call._replace(last=(offsets, layer.plan.last.of_batch))


def _packed_batch_call(layer: LayerArguments, tensors: QueryKeyValue) -> AttentionCall | None:
    """Return the ragged call over a packed batch, by the offsets of its documents, where the mask has no other restriction."""
    offsets = layer.offsets
    if layer.position_bias is not None or offsets is None:
        return None
    if layer.mask is None:
        return _ragged(_in_a_row(tensors), offsets, band(layer))
    if layer.plan is None:
        return None
    segments = layer.plan.segments
    if segments is None and layer.plan.tokens is None and _is_same_in_any_document(layer.plan.mask):
        # Made for the whole row, as ModernBERT's windows are. Over documents a token has the bits that it has alone.
        return _ragged(_in_a_row(tensors), offsets, layer.plan.mask)
    if segments is None or not torch.equal(segments.offsets, offsets):
        return None
    return _ragged(_in_a_row(tensors), offsets, segments.mask)


def _is_same_in_any_document(mask: Mask | None) -> bool:
    """Return whether a mask of a row, whose queries are its keys, is that of each of its documents."""
    if isinstance(mask, Both):
        return _is_same_in_any_document(mask.left) and _is_same_in_any_document(mask.right)
    return mask is None or (isinstance(mask, Causal | Window) and isinstance(mask.start, int) and mask.start == 0)


def _in_a_row(tensors: QueryKeyValue) -> QueryKeyValue:
    """Return each tensor as (B * N, H, D): a view if heads lie inside tokens, a copy if a cache has put them first."""
    query, key, value = (x_BHND.transpose(1, 2).flatten(0, 1) for x_BHND in tensors)
    return query, key, value


def _segments(layer: LayerArguments) -> Segments | None:
    """Return the segments of the plan, if queries and keys are the same tokens and there is no position bias."""
    plan = layer.plan
    if plan is None or not plan.is_self_attention or layer.position_bias is not None or layer.offsets is not None:
        return None
    return plan.segments


def put_last(asked: Asked, output: Operand, last: tuple[Tensor, Mask]) -> Ragged:
    """Return the output with the rows of the last query of each sequence replaced: it may see all keys of the sequence."""
    assert isinstance(output, Ragged)
    offsets, mask = last
    at, one_each = offsets[1:] - 1, torch.arange(len(offsets), device=offsets.device)
    query = Ragged(values_of(asked.query).index_select(0, at), one_each)
    key = Ragged(values_of(asked.key), offsets)
    value = key.with_values(values_of(asked.value))
    rows = attention(query, key, value, **asked.options | {"mask": mask, "bias": None})
    put = Tensor.index_copy if torch.is_grad_enabled() else Tensor.index_copy_
    return output.with_values(put(output.values, 0, at, values_of(rows)))


def _ragged(
    tensors: QueryKeyValue, offsets: Tensor, mask: Mask | None, packing: Packing | None = None
) -> AttentionCall:
    query, key, value = (Ragged(x, offsets) for x in tensors)
    return AttentionCall(query, key, value, mask, None, packing)
