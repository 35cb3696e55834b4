"""From what a layer hands over to what `uwaga.attention` takes: ragged where that can be, else the whole batch.

Letters as in attention.py.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from uwaga.integrations.serving import autocast, serves
from uwaga.integrations.transformers.layer import Layer, band, documents, whole_mask
from uwaga.integrations.transformers.modules import attends_to_itself
from uwaga.integrations.transformers.plan import Stretches
from uwaga.integrations.transformers.states import PackedStates, Packing, plain
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand, Ragged

Three = tuple[Tensor, Tensor, Tensor]


class Operands(NamedTuple):
    """The arguments of one call."""

    query: Operand
    key: Operand
    value: Operand
    mask: Mask | None = None
    bias: Tensor | None = None
    packing: Packing | None = None  # where the call knows no padding at all
    last: "Operands | None" = (
        None  # of a call for the last position of each sequence, whose result takes the place of this one's
    )


def operands(layer: Layer, tensors: Three) -> Operands:
    """The call that computes least."""
    stretches = _stretches(layer)
    if stretches is not None:
        over_states = _over_tokens(layer, stretches, tensors)
        if over_states is not None:
            return over_states
    query, key, value = whole(*tensors)
    if layer.query_offsets is not None:
        call = _over_documents(layer, (query, key, value))
    elif stretches is not None:
        call = _over_stretches(layer, stretches, (query, key, value))
    else:
        call = None
    if call is not None:
        return call
    mask, bias = whole_mask(layer, query, key)
    return Operands(query, key, value, mask, bias)


def whole(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Plain tensors of the type that autocast asks for and of one batch size: some models have learned queries of their
    own, with B = 1, which take a stride of zero."""
    tensors = autocast(*map(plain, tensors))
    first, *others = [x.shape[0] for x in tensors]
    if all(batch == first for batch in others):
        return tensors
    batch = max(first, *others)
    return tuple(x if x.shape[0] == batch else x.expand(batch, -1, -1, -1) for x in tensors)


def _over_tokens(layer: Layer, stretches: Stretches, tensors: Three) -> Operands | None:
    """The ragged call over states that hold no padding."""
    tokens = None if layer.plan is None else layer.plan.tokens
    states = [x for x in tensors if isinstance(x, PackedStates)]
    if tokens is None or len(states) < len(tensors):
        return None
    packing = Packing.current(tokens)
    if not all(_is_of(packing, x) for x in states):
        return None
    query, key, value = autocast(*(x.values for x in states))
    call = _ragged((query, key, value), packing.offsets, packing.offsets, stretches.mask, packing)
    last = None if layer.plan is None or layer.plan.last is None else layer.plan.last.of_tokens
    return call if last is None else call._replace(last=_last((query, key, value), packing.offsets, last))


def _over_stretches(layer: Layer, stretches: Stretches, tensors: Three) -> Operands | None:
    """The ragged call over the batch as it lies there."""
    if stretches.lengths is not None and not serves(*tensors):
        return None  # stretches of padding are a mask, and other engines read ragged masks one sequence after the other
    rows = _in_a_row(tensors)
    call = _ragged(rows, stretches.offsets, stretches.offsets, stretches.visible)
    if layer.plan is None or layer.plan.last is None:
        return call
    batch, _, length, _ = tensors[0].shape
    offsets = torch.arange(batch + 1, device=stretches.offsets.device) * length
    return call._replace(last=_last(rows, offsets, layer.plan.last.of_batch))


def _over_documents(layer: Layer, tensors: Three) -> Operands | None:
    """The ragged call over a packed batch, by the offsets of its documents, where the mask tells nothing else."""
    if layer.position_bias is not None:
        return None
    of_queries, of_keys = documents(layer)
    if layer.mask is None:
        return _ragged(_in_a_row(tensors), of_queries, of_keys, band(layer))
    stretches = None if layer.plan is None else layer.plan.stretches
    if stretches is None or not torch.equal(stretches.offsets, of_queries) or not torch.equal(of_queries, of_keys):
        return None
    return _ragged(_in_a_row(tensors), of_queries, of_keys, stretches.mask)


def _in_a_row(tensors: Three) -> Three:
    """(B * N, H, D) each: a view where heads lie inside tokens, a copy where a cache has put them before."""
    query, key, value = (x_BHND.transpose(1, 2).flatten(0, 1) for x_BHND in tensors)
    return query, key, value


def _stretches(layer: Layer) -> Stretches | None:
    """Those of the plan, where queries and keys are the same tokens and nothing else counts."""
    plan = layer.plan
    if plan is None or plan.stretches is None or layer.position_bias is not None or layer.query_offsets is not None:
        return None
    kind: Any = type(layer.module)  # a class may be hashed, whatever its modules say
    return plan.stretches if plan.is_self_attention or attends_to_itself(kind) else None


def _is_of(packing: Packing, x: PackedStates) -> bool:
    return x.is_packed and x.heads_first and x.packing.has_same_tokens(packing)


def _last(tensors: Three, offsets: Tensor, mask: Mask) -> Operands:
    """The last query of each sequence, with all keys of it."""
    query, key, value = tensors
    one_each = torch.arange(len(offsets), device=offsets.device)
    return _ragged((query.index_select(0, offsets[1:] - 1), key, value), one_each, offsets, mask)


def put_last(output: Operand, last: Operand, call: Operands) -> Ragged:
    """The output with that of the last queries in the places of these."""
    assert isinstance(output, Ragged)
    assert isinstance(last, Ragged)
    assert isinstance(call.key, Ragged)
    put = Tensor.index_copy if torch.is_grad_enabled() else Tensor.index_copy_
    return output.with_values(put(output.values, 0, call.key.offsets[1:] - 1, last.values))


def _ragged(
    tensors: Three, of_queries: Tensor, of_keys: Tensor, mask: Mask | None, packing: Packing | None = None
) -> Operands:
    query, key, value = tensors
    ragged_key = Ragged(key, of_keys)
    return Operands(Ragged(query, of_queries), ragged_key, ragged_key.with_values(value), mask, None, packing)
