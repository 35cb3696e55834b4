"""The short way of a plain call: nothing but query, key and value as tensors, on the CPU, while nobody looks on.

A short batch keeps the kernels busy for less time than Python takes to look at a call as `lower` does, with words for
everything that can be wrong. So a plain call is only compared with itself here, and what its options come to is
remembered. Whatever is not plain or does not fit goes the long way, which is also where a plan comes from: the two
cannot come to mean different things.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N packed tokens,
R ragged rows.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base.eager import is_transformed, is_watched
from uwaga.ops.attention import available, functions
from uwaga.ops.attention.engines import cpu
from uwaga.ops.attention.lower import Operand, four, lower, packed
from uwaga.ops.attention.native_structs import Rule, pack_problem, rule
from uwaga.ops.attention.spec import Call, Options, output_strides
from uwaga.ops.masks import Causal, Mask, Window
from uwaga.ops.ragged import Ragged

_MASKS = (type(None), Causal, Window)


class Plan(NamedTuple):
    """What does not depend on the sizes of a plain call, nor on where its tensors lie."""

    rule: Rule
    options: Options  # with the sizes and the dropout of no call


class PlainCall(NamedTuple):
    plan: Plan
    sizes: tuple[int, ...]  # as pack_problem takes them
    dropout: float
    seed: int


def attend(
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Mask | Tensor | None,
    scale: float | None,
    normalize: str | None,
    softcap: float | None,
    dropout: float,
    impl: str | None,
    wants_lse: bool,
) -> tuple[Operand, Operand | None] | None:
    """The output (B, H, Q, E) or Ragged (N, H, E), and where wanted the lse (B, H, Q) or Ragged (N, H); None where the
    call must go the long way."""
    if type(mask) not in _MASKS or is_watched():
        return None
    if mask is not None and isinstance(mask.start, Tensor):
        return None
    is_ragged = type(query) is Ragged
    if is_ragged:
        if not type(key) is type(value) is Ragged or key.offsets is not value.offsets:
            return None
        q, k, v, offsets = query.values, key.values, value.values, (query.offsets, key.offsets)
    else:
        q, k, v, offsets = query, key, value, (None, None)
    if not type(q) is type(k) is type(v) is Tensor:
        return None
    try:
        if is_ragged:
            _, heads, width = q.shape
            tokens, groups, key_width = k.shape
            value_tokens, value_groups, value_width = v.shape
            sequences, queries, keys = offsets[0].shape[0] - 1, query.max_length, key.max_length
            fits = tokens == value_tokens and offsets[0].shape == offsets[1].shape
        else:
            sequences, heads, queries, width = q.shape
            batch, groups, keys, key_width = k.shape
            value_batch, value_groups, value_keys, value_width = v.shape
            fits = sequences == batch == value_batch and keys == value_keys
    except ValueError:  # another rank
        return None
    dtype = q.dtype
    if not (
        fits
        and groups == value_groups
        and width == key_width
        and dtype is k.dtype is v.dtype
        and q.is_cpu
        and k.is_cpu
        and v.is_cpu
        and not (q.is_neg() or k.is_neg() or v.is_neg())
    ):
        return None
    try:
        plan = _plan(dtype, heads, groups, width, mask, scale, normalize, softcap, impl)
        if plan is None or not 0.0 <= dropout < 1.0:
            return None
    except TypeError:  # an option of a type that means nothing
        return None
    seed = int(torch.randint(2**63 - 1, ())) if dropout else 0
    call = PlainCall(plan, (sequences, heads, groups, queries, keys, width, value_width), dropout, seed)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        found = _record(call, wants_lse, q, k, v, *offsets)
        output, lse = found if wants_lse else (found, None)
    else:
        output, lse = _forward(call, wants_lse, q, k, v, *offsets)
    if is_ragged:
        return query.with_values(output), query.with_values(lse) if wants_lse else None
    return output, lse


@lru_cache(maxsize=256)
def _plan(
    dtype: torch.dtype,
    heads: int,
    groups: int,
    width: int,
    mask: Mask | None,
    scale: float | None,
    normalize: str | None,
    softcap: float | None,
    impl: str | None,
) -> Plan | None:
    """What the long way makes of a call of one query and one key; None where it raises or takes another engine."""
    query = torch.empty(1, heads, 1, width, dtype=dtype, device="cpu")
    key = torch.empty(1, groups, 1, width, dtype=dtype, device="cpu")
    try:
        call = lower(query, key, key, mask, None, scale, normalize, softcap, None, 0.0, False)
        engine = available.chosen(call, impl)
    except ValueError:
        return None
    return Plan(rule(call), call.options) if engine == "cpu" else None


def _forward(
    call: PlainCall,
    wants_lse: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_offsets: Tensor | None,
    key_offsets: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    sequences, heads, _, queries, _, _, width = call.sizes
    lse = None
    if query_offsets is not None:
        tokens = q.shape[0]
        output = q.new_empty((tokens, heads, width))
        if wants_lse:
            lse = q.new_empty_strided((tokens, heads), (1, tokens), dtype=torch.float32)
    else:
        _, head_stride, token_stride, _ = q.stride()
        strides = output_strides(heads, queries, width, head_stride < token_stride)
        output = q.new_empty_strided((sequences, heads, queries, width), strides)
        if wants_lse:
            lse = q.new_empty((sequences, heads, queries), dtype=torch.float32)
    packed = pack_problem(call.plan.rule, call.sizes, (query_offsets, key_offsets), q, k, v, call.dropout, call.seed)
    cpu.run_forward(packed, output, lse)
    return output, lse


class PlainAttention(torch.autograd.Function):
    """A plain call recorded for autograd; functions.Attention records all others."""

    @staticmethod
    def forward(ctx, call: PlainCall, gives_lse: bool, q: Tensor, k: Tensor, v: Tensor, *offsets):
        output, lse = _forward(call, call.plan.options.softmax, q, k, v, *offsets)
        ctx.call = call
        ctx.save_for_backward(q, k, v, output, lse, *offsets)
        if not gives_lse:
            return output
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx, grad_output: Tensor | None, grad_lse: Tensor | None = None):
        call = ctx.call
        q, k, v, output, lse, *offsets = ctx.saved_tensors
        if grad_output is None:
            if grad_lse is None:
                return (None,) * 7
            grad_output = torch.zeros_like(output)
        elif grad_output.is_neg():
            grad_output = grad_output.resolve_neg()
        _, _, needs_q, needs_k, needs_v, _, _ = ctx.needs_input_grad
        if torch.is_grad_enabled() or is_transformed():
            needs = (needs_q, needs_k, needs_v)
            found = _differentiable_backward(call, needs, (q, k, v), offsets, output, lse, grad_output, grad_lse)
            return None, None, *found, None, None
        grad_q = torch.empty_like(q) if needs_q else None
        grad_k = torch.empty_like(k) if needs_k else None
        grad_v = torch.empty_like(v) if needs_v else None
        packed = pack_problem(call.plan.rule, call.sizes, offsets, q, k, v, call.dropout, call.seed)
        cpu.run_backward(packed, output, lse, grad_output, grad_lse, grad_q, grad_k, grad_v)
        return None, None, grad_q, grad_k, grad_v, None, None


# Function.apply itself would ask once more whether torch.func looks on, and cost as much as the rest.
_record = super(torch.autograd.Function, PlainAttention).apply


def _differentiable_backward(call: PlainCall, needs, operands, offsets, output, lse, grad_output, grad_lse):
    """The gradients of query, key and value by the long way's backward pass, which can be differentiated once more."""
    is_ragged = offsets[0] is not None
    canonical = packed if is_ragged else four
    q, k, v = map(canonical, operands)
    options = replace(
        call.plan.options,
        dropout=call.dropout,
        max_queries=call.sizes[3],
        max_keys=call.sizes[4],
        wants_lse=lse is not None,
    )
    long = Call(
        query=q,
        key=k,
        value=v,
        query_offsets=offsets[0],
        key_offsets=offsets[1],
        seed=torch.tensor(call.seed) if call.dropout else None,
        options=options,
    )
    rows = [x.t()[None] if is_ragged and x is not None else x for x in (grad_lse, lse)]
    state = (canonical(grad_output), rows[0], canonical(output), rows[1])
    found = functions.AttentionBackward.apply(options, "cpu", (*needs, False, False, False), *state, *long.tensors)
    return [x[0].transpose(0, 1) if is_ragged and x is not None else x for x in found[:3]]
