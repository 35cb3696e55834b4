"""The short way of a plain call: query, key, value and a mask, on the CPU, while nobody looks on.

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
from uwaga.ops.attention.native_structs import DTYPES, MAX_WIDTH, Frame, ResultFrame, Rule, rule
from uwaga.ops.attention.remembered import recall, remember
from uwaga.ops.attention.spec import Call, Options, output_strides
from uwaga.ops.masks import Causal, Mask, Window
from uwaga.ops.ragged import Ragged

_MASKS = (type(None), Causal, Window)
_NUMBERS = (type(None), float, int)  # a tensor could be written to, and is remembered by its place alone


class Plan(NamedTuple):
    """What the options of a call come to."""

    rule: Rule
    options: Options  # with the sizes and the dropout of no call


class Layout(NamedTuple):
    """What the options and the sizes of a call come to: all of it but its tensors and its dropout."""

    plan: Plan
    frame: Frame
    result: ResultFrame
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # of query, key and value
    output: tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides
    lse: tuple[tuple[int, ...], tuple[int, ...]]
    mask_tensors: tuple[Tensor, ...] = ()  # which the frame points into


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
    if is_watched() or type(scale) not in _NUMBERS or type(softcap) not in _NUMBERS:
        return None
    is_ragged = type(query) is Ragged
    if is_ragged:
        if not type(key) is type(value) is Ragged or key.offsets is not value.offsets:
            return None
        q, k, v, offsets = query.values, key.values, value.values, (query.offsets, key.offsets)
    else:
        q, k, v, offsets = query, key, value, ()
    if not type(q) is type(k) is type(v) is Tensor:
        return None
    dtype = q.dtype
    if not (
        dtype is k.dtype is v.dtype
        and q.is_cpu
        and k.is_cpu
        and v.is_cpu
        and not (q.is_neg() or k.is_neg() or v.is_neg())
    ):
        return None
    records = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    try:
        if type(mask) not in _MASKS or (mask is not None and isinstance(mask.start, Tensor)):
            if records or not isinstance(mask, Mask):
                return None
            layout = _layout_of_tensors(query, key, value, v, mask, (scale, normalize, softcap, impl))
        elif is_ragged:
            layout = _ragged_layout(query, key, v, (mask, scale, normalize, softcap, impl))
        else:
            rules = (mask, scale, normalize, softcap, impl)
            layout = _layout(dtype, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), rules)
        if layout is None or not 0.0 <= dropout < 1.0:
            return None
    except TypeError:  # an option of a type that means nothing
        return None
    seed = int(torch.randint(2**63 - 1, (), device="cpu")) if dropout else 0
    if records:
        found = _record(layout, dropout, seed, wants_lse, q, k, v, *offsets)
        output, lse = found if wants_lse else (found, None)
    else:
        output, lse = _forward(layout, dropout, seed, wants_lse, q, k, v)
    if is_ragged:
        return query.with_values(output), query.with_values(lse) if wants_lse else None
    return output, lse


@lru_cache(maxsize=256)
def _layout(
    dtype: torch.dtype,
    query: tuple[int, ...],
    key: tuple[int, ...],
    value: tuple[int, ...],
    query_strides: tuple[int, ...],
    key_strides: tuple[int, ...],
    value_strides: tuple[int, ...],
    rules: tuple,
) -> Layout | None:
    """Of a dense call, from shapes and strides; None where they do not fit or the long way takes another engine."""
    if not len(query) == len(key) == len(value) == 4:
        return None
    batch, heads, _, width = query
    _, groups, keys, _ = key
    if not (batch == key[0] == value[0] and groups == value[1] and keys == value[2] and width == key[3]):
        return None
    plan = _plan(dtype, heads, groups, width, *rules)
    if plan is None or not 0 < value[3] <= MAX_WIDTH:
        return None
    return _of_dense(plan, dtype, query, key, value, (query_strides, key_strides, value_strides))


def _ragged_layout(query: Ragged, key: Ragged, v: Tensor, rules: tuple) -> Layout | None:
    """Of a ragged call. It is not remembered: hardly any two have the same number of tokens."""
    q, k = query.values, key.values
    if not q.dim() == k.dim() == v.dim() == 3 or query.offsets.shape != key.offsets.shape:
        return None
    _, heads, width = q.shape
    _, groups, _ = k.shape
    if v.shape[:2] != k.shape[:2] or k.shape[2] != width:
        return None
    plan = _plan(q.dtype, heads, groups, width, *rules)
    return None if plan is None or not 0 < v.shape[2] <= MAX_WIDTH else _of_ragged(plan, query, key, v)


def _layout_of_tensors(
    query: Operand, key: Operand, value: Operand, v: Tensor, mask: Mask, rules: tuple
) -> Layout | None:
    """Of a call whose mask has tensors. It is kept with the mask: a model hands the same one to its layers."""
    if type(query) is Ragged:
        q, k, offsets, longest = query.values, key.values, query.offsets, (query.max_length, key.max_length)
        if q.dim() != 3 or key.offsets is not offsets:
            return None
    else:
        q, k, offsets, longest = query, key, None, ()
        if q.dim() != 4:
            return None
    asked = (q.dtype, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), longest, rules)
    layout: Layout | None = recall(mask, asked, offsets)
    if layout is not None:
        return layout
    scale, normalize, softcap, impl = rules
    try:
        call = lower(query, key, value, mask, None, scale, normalize, softcap, None, 0.0, False)
        if available.chosen(call, impl) != "cpu":
            return None
    except ValueError:
        return None
    plan = Plan(rule(call), call.options)
    if type(query) is Ragged:
        layout = _of_ragged(plan, query, key, v)
    else:
        layout = _of_dense(plan, q.dtype, q.shape, k.shape, v.shape, (q.stride(), k.stride(), v.stride()))
    layout = layout._replace(mask_tensors=call.mask_tensors)
    remember(mask, asked, offsets, call.options.mask_program, call.mask_tensors, call.options.max_keys, layout)
    return layout


def _of_dense(plan: Plan, dtype: torch.dtype, query, key, value, strides) -> Layout:
    """From the shapes and strides of operands that fit."""
    batch, heads, queries, width = query
    value_width = value[3]
    heads_inside = strides[0][1] < strides[0][2]
    return _laid_out(
        plan,
        dtype,
        (batch, heads, key[1], queries, key[2], width, value_width),
        (None, None),
        strides,
        ((batch, heads, queries, value_width), output_strides(heads, queries, value_width, heads_inside)),
        ((batch, heads, queries), (heads * max(queries, 1), max(queries, 1), 1)),
    )


def _of_ragged(plan: Plan, query: Ragged, key: Ragged, v: Tensor) -> Layout:
    """From operands that fit."""
    q, k = query.values, key.values
    tokens, heads, width = q.shape
    value_width = v.shape[2]
    return _laid_out(
        plan,
        q.dtype,
        (len(query), heads, k.shape[1], query.max_length, key.max_length, width, value_width),
        (query.offsets, key.offsets),
        (q.stride(), k.stride(), v.stride()),
        ((tokens, heads, value_width), (heads * value_width, value_width, 1)),
        ((tokens, heads), (1, max(tokens, 1))),
    )


def _laid_out(plan: Plan, dtype: torch.dtype, sizes, offsets, strides, output, lse) -> Layout:
    number = DTYPES[dtype]
    frame = Frame.of(plan.rule, sizes, offsets, number, strides)
    return Layout(plan, frame, ResultFrame.of(number, output[1], lse[1]), sizes, strides, output, lse)


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
    layout: Layout, dropout: float, seed: int, wants_lse: bool, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor | None]:
    output = q.new_empty_strided(*layout.output)
    lse = q.new_empty_strided(*layout.lse, dtype=torch.float32) if wants_lse else None
    cpu.run_forward(layout.frame.problem(q, k, v, dropout, seed), layout.result.result(output, lse))
    return output, lse


class PlainAttention(torch.autograd.Function):
    """A plain call recorded for autograd; functions.Attention records all others."""

    @staticmethod
    def forward(
        ctx, layout: Layout, dropout: float, seed: int, gives_lse: bool, q: Tensor, k: Tensor, v: Tensor, *offsets
    ):
        output, lse = _forward(layout, dropout, seed, layout.plan.options.softmax, q, k, v)
        ctx.call = layout, dropout, seed
        ctx.save_for_backward(q, k, v, output, lse, *offsets)
        if not gives_lse:
            return output
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx, grad_output: Tensor | None, grad_lse: Tensor | None = None):
        layout, dropout, seed = ctx.call
        q, k, v, output, lse, *offsets = ctx.saved_tensors
        absent = (None,) * len(offsets)
        if grad_output is None and grad_lse is None:
            return (None,) * (7 + len(offsets))
        grad_output = torch.zeros_like(output) if grad_output is None else grad_output.resolve_neg()
        grad_lse = None if grad_lse is None else grad_lse.resolve_neg()
        needs_q, needs_k, needs_v = ctx.needs_input_grad[4:7]
        if torch.is_grad_enabled() or is_transformed():
            needs = (needs_q, needs_k, needs_v, False, False, False)
            call = _long_call(layout, dropout, seed, q, k, v, offsets)
            found = _differentiable_backward(call, needs, output, lse, grad_output, grad_lse)
            return None, None, None, None, *found, *absent
        frame, strides = layout.frame, (q.stride(), k.stride(), v.stride())
        if offsets or strides != layout.strides:  # hooks may have moved what was saved
            frame = Frame.of(layout.plan.rule, layout.sizes, tuple(offsets) or (None, None), DTYPES[q.dtype], strides)
        grad_q = torch.empty_like(q) if needs_q else None
        grad_k = torch.empty_like(k) if needs_k else None
        grad_v = torch.empty_like(v) if needs_v else None
        problem = frame.problem(q, k, v, dropout, seed)
        cpu.run_backward(problem, output, lse, grad_output, grad_lse, grad_q, grad_k, grad_v)
        return None, None, None, None, grad_q, grad_k, grad_v, *absent


# Function.apply itself would ask once more whether torch.func looks on, and cost as much as the rest.
_record = super(torch.autograd.Function, PlainAttention).apply


def _long_call(
    layout: Layout, dropout: float, seed: int, q: Tensor, k: Tensor, v: Tensor, offsets: list[Tensor]
) -> Call:
    """The same call as the long way would have it."""
    canonical = packed if offsets else four
    query_offsets, key_offsets = offsets or (None, None)
    return Call(
        query=canonical(q),
        key=canonical(k),
        value=canonical(v),
        query_offsets=query_offsets,
        key_offsets=key_offsets,
        seed=torch.tensor(seed) if dropout else None,
        options=replace(
            layout.plan.options,
            dropout=dropout,
            max_queries=layout.sizes[3],
            max_keys=layout.sizes[4],
            wants_lse=layout.plan.options.softmax,
        ),
    )


def _differentiable_backward(call: Call, needs, output, lse, grad_output, grad_lse) -> list[Tensor | None]:
    """The gradients of query, key and value by the long way's backward pass, which can be differentiated once more."""
    if call.query_offsets is None:
        state = (grad_output, grad_lse, output, lse)
    else:
        rows = [None if x is None else x.t()[None] for x in (grad_lse, lse)]
        state = (packed(grad_output), rows[0], packed(output), rows[1])
    found = functions.AttentionBackward.apply(call.options, "cpu", needs, *state, *call.tensors)[:3]
    if call.query_offsets is None:
        return list(found)
    return [None if x is None else x[0].transpose(0, 1) for x in found]
