"""What the options and the sizes of a plain call come to: laid out once, where that can be, for many calls.

A layout comes from the long way, `lower`: the two cannot come to mean different things. Letters as in spec.py.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.ops.attention import available
from uwaga.ops.attention.arguments import make_call
from uwaga.ops.attention.call import Options, output_strides
from uwaga.ops.attention.mask_cache import recall, remember
from uwaga.ops.attention.native_structs import MAX_WIDTH, Frame, ResultFrame, Rule, rule
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand, Ragged


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
    tokens: tuple[int, int]  # packed rows of query and key
    shapes: tuple[tuple[int, ...], ...]  # of query, key and value
    strides: tuple[tuple[int, ...], ...]
    output: tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides
    lse: tuple[tuple[int, ...], tuple[int, ...]]
    mask_tensors: tuple[Tensor, ...] = ()  # which the frame points into


@lru_cache(maxsize=256)
def of_dense(
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
    return _dense(plan, dtype, query, key, value, (query_strides, key_strides, value_strides))


def of_ragged(query: Ragged, key: Ragged, v: Tensor, rules: tuple) -> Layout | None:
    """Of a ragged call. It is not remembered: hardly any two have the same number of tokens."""
    q, k = query.values, key.values
    if not q.dim() == k.dim() == v.dim() == 3 or query.offsets.shape != key.offsets.shape:
        return None
    _, heads, width = q.shape
    _, groups, _ = k.shape
    if v.shape[:2] != k.shape[:2] or k.shape[2] != width:
        return None
    plan = _plan(q.dtype, heads, groups, width, *rules)
    return None if plan is None or not 0 < v.shape[2] <= MAX_WIDTH else _ragged(plan, query, key, v)


def of_mask(query: Operand, key: Operand, value: Operand, mask: Mask, rules: tuple) -> Layout | None:
    """Of a call whose mask has tensors. It is kept with the mask: a model hands the same one to its layers."""
    if type(query) is Ragged:
        q, k, v = query.values, key.values, value.values
        offsets, longest = query.offsets, (query.max_length, key.max_length)
        if q.dim() != 3 or key.offsets is not offsets:
            return None
    else:
        q, k, v, offsets, longest = query, key, value, None, ()
        if q.dim() != 4:
            return None
    asked = (q.dtype, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), longest, rules)
    layout: Layout | None = recall(mask, asked, offsets)
    if layout is not None:
        return layout
    scale, normalize, softcap, impl = rules
    try:
        call = make_call(query, key, value, mask, None, scale, normalize, softcap, None, 0.0, False)
        if available.chosen(call, impl) != "cpu":
            return None
    except ValueError:
        return None
    plan = Plan(rule(call), call.options)
    if type(query) is Ragged:
        layout = _ragged(plan, query, key, v)
    else:
        layout = _dense(plan, q.dtype, q.shape, k.shape, v.shape, (q.stride(), k.stride(), v.stride()))
    layout = layout._replace(mask_tensors=call.mask_tensors)
    remember(mask, asked, offsets, call.options.mask_program, call.mask_tensors, call.options.max_keys, layout)
    return layout


def _dense(plan: Plan, dtype: torch.dtype, query, key, value, strides) -> Layout:
    """From the shapes and strides of operands that fit."""
    batch, heads, queries, width = query
    value_width = value[3]
    heads_inside = strides[0][1] < strides[0][2]
    return _laid_out(
        plan,
        dtype,
        (batch, heads, key[1], queries, key[2], width, value_width),
        (queries, key[2]),
        (None, None),
        (query, key, value),
        strides,
        ((batch, heads, queries, value_width), output_strides(heads, queries, value_width, heads_inside)),
        ((batch, heads, queries), (heads * max(queries, 1), max(queries, 1), 1)),
    )


def _ragged(plan: Plan, query: Ragged, key: Ragged, v: Tensor) -> Layout:
    """From operands that fit."""
    q, k = query.values, key.values
    tokens, heads, width = q.shape
    value_width = v.shape[2]
    return _laid_out(
        plan,
        q.dtype,
        (len(query), heads, k.shape[1], query.max_length, key.max_length, width, value_width),
        (tokens, k.shape[0]),
        (query.offsets, key.offsets),
        (q.shape, k.shape, v.shape),
        (q.stride(), k.stride(), v.stride()),
        ((tokens, heads, value_width), (heads * value_width, value_width, 1)),
        ((tokens, heads), (1, max(tokens, 1))),
    )


def _laid_out(plan: Plan, dtype: torch.dtype, sizes, tokens, offsets, shapes, strides, output, lse) -> Layout:
    frame = Frame.of(plan.rule, sizes, tokens, offsets, dtype, strides)
    return Layout(plan, frame, ResultFrame.of(dtype, output, lse), sizes, tokens, shapes, strides, output, lse)


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
        call = make_call(query, key, key, mask, None, scale, normalize, softcap, None, 0.0, False)
        engine = available.chosen(call, impl)
    except ValueError:
        return None
    return Plan(rule(call), call.options) if engine == "cpu" else None
