"""The fast path of a plain call: query, key, value and a mask, on the CPU, with no tracer or transform but autograd active.

For a short batch the kernels take less time than the full validation in `arguments`. So here a call is only compared with
the cached layout of an earlier one of the same sizes and options, which holds the structs of the native library complete
except for the addresses of the tensors. Every other call takes the general path (`make_call`, `autograd.run`). A layout is
made from a Call of the general path, so that the two paths compute the same.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N packed tokens,
R ragged rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from uwaga._base.tracing import is_batch_of_gradients, is_plain_eager, is_transformed
from uwaga.ops.attention import autograd, choose, native_structs
from uwaga.ops.attention.arguments import AttentionOptions, make_call, packed, to_4d
from uwaga.ops.attention.call import Call, Options, output_strides
from uwaga.ops.attention.native_structs import MAX_WIDTH, PackedOptions, ProblemTemplate, ResultTemplate, packed_options
from uwaga.ops.mask_program import Band, Lengths, check_lengths, check_starts
from uwaga.ops.masks import Both, Causal, DenseMask, Documents, Either, KeyLengths, Mask, Window
from uwaga.ops.ragged import Operand, Ragged

_NUMBERS = (float, int, type(None))  # no tensor: a cache compares it by identity and misses writes to it
# The attributes of masks that are tensors or masks.
_MASK_PARTS: dict[type[Mask], tuple[str, ...]] = {
    Causal: ("start",),
    Window: ("start",),
    KeyLengths: ("lengths",),
    Documents: ("ids", "query_ids"),
    DenseMask: ("bits",),
    Both: ("left", "right"),
    Either: ("left", "right"),
}

Shape = tuple[int, ...]
ShapesOfOperands = tuple[Shape, Shape, Shape]  # of query, key and value
Memory = tuple[int, int, Shape, Shape]  # of a tensor: address, bytes of the storage, shape and strides
PlainOptions = tuple[float | None, str | None, float | None, str | None]  # scale, normalize, softcap and impl


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
    """Return the output (B, H, Q, E) or Ragged (N, H, E), and where wanted the lse (B, H, Q) or Ragged (N, H); None where the
    call must take the general path."""
    if not (
        is_plain_eager()
        and isinstance(scale, _NUMBERS)
        and isinstance(softcap, _NUMBERS)
        and isinstance(dropout, float | int)
    ):
        return None
    offsets: tuple[Tensor, ...] = ()
    q: Operand
    k: Operand
    v: Operand
    if type(query) is Ragged:
        if not (type(key) is Ragged and type(value) is Ragged and key.offsets is value.offsets):
            return None
        if query.first is not None or key.first is not None:  # a part of a batch, which the general path rejects
            return None
        q, k, v, offsets = query.values, key.values, value.values, (query.offsets, key.offsets)
    else:
        q, k, v = query, key, value
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
    options = (scale, normalize, softcap, impl)
    try:
        if mask is not None and (not (type(mask) is Causal or type(mask) is Window) or isinstance(mask.start, Tensor)):
            if records or not isinstance(mask, Mask):  # autograd would have to save its tensors
                return None
            layout = _layout_of_mask(query, key, value, mask, options)
        elif type(query) is Ragged and type(key) is Ragged:
            layout = _ragged_layout(query, key, v, mask, options)
        else:
            layout = dense_layout(dtype, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), mask, options)
        if layout is None or not 0.0 <= dropout < 1.0:
            return None
    except TypeError:  # an option that cannot be hashed or compared: the general path raises the message
        return None
    seed = int(torch.randint(2**63 - 1, (), device="cpu")) if dropout else 0
    lse: Tensor | None
    if records:
        recorded = _apply(layout, dropout, seed, wants_lse, q, k, v, *offsets)
        output, lse = recorded if wants_lse else (recorded, None)
    else:
        output, lse = _forward(layout, dropout, seed, wants_lse, q, k, v)
    if type(query) is Ragged:
        return query.with_values(output), None if lse is None else query.with_values(lse)
    return output, lse


# Layouts: what is the same for all calls of the same options and sizes.


class Plan(NamedTuple):
    """The options of a call as the native library and the general path take them."""

    packed_options: PackedOptions
    options: Options  # sizes and dropout are not set


class PreparedCall(NamedTuple):
    """A call prepared from its options and sizes: all of it but its tensors and its dropout."""

    plan: Plan
    problem: ProblemTemplate
    result: ResultTemplate
    sizes: Shape  # B or R, H, G, Q, K, D and E, where Q and K of a ragged batch are the longest
    tokens: tuple[int, int]  # packed rows of query and key
    shapes: ShapesOfOperands
    strides: ShapesOfOperands
    output: tuple[Shape, Shape]  # shape and strides
    lse: tuple[Shape, Shape]
    mask_tensors: tuple[Tensor, ...] = ()  # whose memory the template points into


@lru_cache(maxsize=256)
def dense_layout(
    dtype: torch.dtype,
    query: Shape,
    key: Shape,
    value: Shape,
    query_strides: Shape,
    key_strides: Shape,
    value_strides: Shape,
    mask: Mask | None,
    options: PlainOptions,
) -> PreparedCall | None:
    """Return the layout of a dense call, from shapes and strides; None where they do not fit or another engine is chosen."""
    if not len(query) == len(key) == len(value) == 4:
        return None
    batch, heads, _, width = query
    _, groups, keys, _ = key
    if not (batch == key[0] == value[0] and groups == value[1] and keys == value[2] and width == key[3]):
        return None
    plan = plan_of(dtype, heads, groups, (width, value[3]), mask, options)
    if plan is None or not 0 < value[3] <= MAX_WIDTH:
        return None
    return _make_dense_layout(plan, dtype, (query, key, value), (query_strides, key_strides, value_strides))


def _ragged_layout(
    query: Ragged, key: Ragged, v: Tensor, mask: Mask | None, options: PlainOptions
) -> PreparedCall | None:
    """Return the layout of a ragged call. It is not cached: few calls have the same number of tokens."""
    q, k = query.values, key.values
    if not q.dim() == k.dim() == v.dim() == 3 or query.offsets.shape != key.offsets.shape:
        return None
    _, heads, width = q.shape
    _, groups, _ = k.shape
    if v.shape[:2] != k.shape[:2] or k.shape[2] != width:
        return None
    plan = plan_of(q.dtype, heads, groups, (width, v.shape[2]), mask, options, is_ragged=True)
    if plan is None or not 0 < v.shape[2] <= MAX_WIDTH:
        return None
    return _make_ragged_layout(plan, query, key, v)


def _layout_of_mask(
    query: Operand, key: Operand, value: Operand, mask: Mask, options: PlainOptions
) -> PreparedCall | None:
    """Return the layout of a call whose mask has tensors. It is cached in the mask, which a model passes to all its layers."""
    offsets: Tensor | None = None
    longest: tuple[int, ...] = ()
    if isinstance(query, Ragged):
        assert isinstance(key, Ragged)
        assert isinstance(value, Ragged)
        q, k, v = query.values, key.values, value.values
        offsets, longest = query.offsets, (query.max_length, key.max_length)
        if q.dim() != 3 or key.offsets is not offsets:
            return None
    else:
        q, k, v = query, cast(Tensor, key), cast(Tensor, value)
        if q.dim() != 4:
            return None
    shapes, strides = (q.shape, k.shape, v.shape), (q.stride(), k.stride(), v.stride())
    cache_key = (q.dtype, shapes, strides, longest, options)
    cached = _cached_layout(mask, cache_key, offsets)
    if cached is not None:
        return cached
    scale, normalize, softcap, impl = options
    try:
        call = make_call(query, key, value, AttentionOptions(mask, None, scale, normalize, softcap), wants_lse=False)
        if choose.engine_name(call, impl) != "cpu":
            return None
    except ValueError:
        return None
    plan = Plan(packed_options(call), call.options)
    if isinstance(query, Ragged):
        layout = _make_ragged_layout(plan, query, cast(Ragged, key), v)
    else:
        layout = _make_dense_layout(plan, q.dtype, shapes, strides)
    layout = layout._replace(mask_tensors=call.mask_tensors)
    _cache_layout(mask, cache_key, offsets, call, layout)
    return layout


@lru_cache(maxsize=256)
def plan_of(
    dtype: torch.dtype,
    heads: int,
    groups: int,
    widths: tuple[int, int],
    mask: Mask | None,
    options: PlainOptions,
    *,
    is_ragged: bool = False,
) -> Plan | None:
    """Return the plan of a general call with one query and one key, of these widths of keys and values; None where it raises or chooses
    another engine."""
    scale, normalize, softcap, impl = options
    query = torch.empty(1, heads, 1, widths[0], dtype=dtype, device="cpu")
    key = torch.empty(1, groups, 1, widths[0], dtype=dtype, device="cpu")
    value = torch.empty(1, groups, 1, widths[1], dtype=dtype, device="cpu")
    try:
        call = make_call(query, key, value, AttentionOptions(mask, None, scale, normalize, softcap), wants_lse=False)
        offsets = torch.tensor([0, 1], device="cpu") if is_ragged else None
        engine = choose.engine_name(replace(call, query_offsets=offsets, key_offsets=offsets), impl)
    except ValueError:
        return None
    return Plan(packed_options(call), call.options) if engine == "cpu" else None


def _make_dense_layout(
    plan: Plan, dtype: torch.dtype, shapes: ShapesOfOperands, strides: ShapesOfOperands
) -> PreparedCall:
    """Return the layout of a dense call from the shapes and strides of operands that fit together."""
    (batch, heads, queries, width), (_, groups, keys, _), (*_, value_width) = shapes
    heads_inside = strides[0][1] < strides[0][2]
    return _make_layout(
        plan,
        dtype,
        (batch, heads, groups, queries, keys, width, value_width),
        (queries, keys),
        (None, None),
        shapes,
        strides,
        ((batch, heads, queries, value_width), output_strides(heads, queries, value_width, heads_inside)),
        ((batch, heads, queries), (heads * max(queries, 1), max(queries, 1), 1)),
    )


def _make_ragged_layout(plan: Plan, query: Ragged, key: Ragged, v: Tensor) -> PreparedCall:
    """Return the layout of a ragged call from operands that fit together."""
    q, k = query.values, key.values
    tokens, heads, width = q.shape
    value_width = v.shape[2]
    return _make_layout(
        plan,
        q.dtype,
        (query.offsets.shape[0] - 1, heads, k.shape[1], query.max_length, key.max_length, width, value_width),
        (tokens, k.shape[0]),
        (query.offsets, key.offsets),
        (q.shape, k.shape, v.shape),
        (q.stride(), k.stride(), v.stride()),
        ((tokens, heads, value_width), (heads * value_width, value_width, 1)),
        ((tokens, heads), (1, max(tokens, 1))),
    )


def _make_layout(
    plan: Plan,
    dtype: torch.dtype,
    sizes: Shape,
    tokens: tuple[int, int],
    offsets: tuple[Tensor | None, Tensor | None],
    shapes: ShapesOfOperands,
    strides: ShapesOfOperands,
    output: tuple[Shape, Shape],
    lse: tuple[Shape, Shape],
) -> PreparedCall:
    problem = ProblemTemplate.of(plan.packed_options, sizes, tokens, offsets, dtype, strides)
    return PreparedCall(
        plan, problem, ResultTemplate.of(dtype, output, lse), sizes, tokens, shapes, strides, output, lse
    )


# Running a call of a known layout.


def _forward(
    layout: PreparedCall, dropout: float, seed: int, wants_lse: bool, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor | None]:
    output = q.new_empty_strided(*layout.output)
    lse = q.new_empty_strided(*layout.lse, dtype=torch.float32) if wants_lse else None
    native_structs.run_forward(layout.problem.pack(q, k, v, dropout, seed), layout.result.pack(output, lse))
    return output, lse


class PlainAttention(torch.autograd.Function):
    """A plain call recorded for autograd; autograd.Attention records all others."""

    @staticmethod
    def forward(
        ctx: Any,
        layout: PreparedCall,
        dropout: float,
        seed: int,
        gives_lse: bool,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *offsets: Tensor,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        output, lse = _forward(layout, dropout, seed, layout.plan.options.softmax, q, k, v)
        ctx.call = layout, dropout, seed
        ctx.save_for_backward(q, k, v, output, lse, *offsets)
        if not gives_lse:
            return output
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None = None) -> tuple[Tensor | None, ...]:
        layout, dropout, seed = ctx.call
        q, k, v, output, lse, *offsets = ctx.saved_tensors
        absent = (None,) * len(offsets)
        if grad_output is None and grad_lse is None:
            return (None,) * (7 + len(offsets))
        grad_output = torch.zeros_like(output) if grad_output is None else grad_output.resolve_neg()
        grad_lse = None if grad_lse is None else grad_lse.resolve_neg()
        needs_q, needs_k, needs_v = ctx.needs_input_grad[4:7]
        is_batch = is_batch_of_gradients(grad_output) or is_batch_of_gradients(grad_lse)
        if torch.is_grad_enabled() or is_transformed() or is_batch:
            needs = (needs_q, needs_k, needs_v, False, False, False)
            call = _general_call(layout, dropout, seed, q, k, v, offsets)
            result = _differentiable_backward(call, needs, output, lse, grad_output, grad_lse)
            return None, None, None, None, *result, *absent
        problem, strides = layout.problem, (q.stride(), k.stride(), v.stride())
        if offsets or strides != layout.strides:  # saved-tensor hooks may return other strides
            both = (offsets[0], offsets[1]) if offsets else (None, None)
            problem = ProblemTemplate.of(
                layout.plan.packed_options, layout.sizes, layout.tokens, both, problem.dtype, strides
            )
        if (q.shape, k.shape, v.shape) != layout.shapes:  # saved-tensor hooks or `x.data = y` replaced them
            shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
            raise ValueError(
                f"attention: query, key and value were {layout.shapes} when the call began, and are {shapes}"
            )
        problem.check_dtypes(q, k, v)
        grad_q = torch.empty_like(q) if needs_q else None
        grad_k = torch.empty_like(k) if needs_k else None
        grad_v = torch.empty_like(v) if needs_v else None
        native_structs.run_backward(
            problem.pack(q, k, v, dropout, seed), output, lse, grad_output, grad_lse, grad_q, grad_k, grad_v
        )
        return None, None, None, None, grad_q, grad_k, grad_v, *absent


# Function.apply would check again whether a transform of torch.func is active, which costs as much as the rest of a call.
_apply = cast(Any, super(torch.autograd.Function, PlainAttention)).apply


def _general_call(
    layout: PreparedCall, dropout: float, seed: int, q: Tensor, k: Tensor, v: Tensor, offsets: Sequence[Tensor]
) -> Call:
    """Return the Call of the general path."""
    canonical = packed if offsets else to_4d
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


def _differentiable_backward(
    call: Call,
    needs: tuple[bool, ...],
    output: Tensor,
    lse: Tensor | None,
    grad_output: Tensor,
    grad_lse: Tensor | None,
) -> list[Tensor | None]:
    """Return the gradients of query, key and value by the general path's backward pass, which can be differentiated again."""
    is_ragged = call.query_offsets is not None
    if is_ragged:
        grad_output, output = packed(grad_output), packed(output)
        grad_lse, lse = (None if x is None else x.t()[None] for x in (grad_lse, lse))
    result = autograd.backward("cpu", call, output, lse, grad_output, grad_lse, needs)[:3]
    return [None if x is None else x[0].transpose(0, 1) for x in result] if is_ragged else list(result)


# A mask with tensors caches the layout of a call: the layers of a model share one mask and one layout. It does so only if the kernels read
# the mask's own memory and no copy of it, so that later writes to the mask take effect.


class CachedLayout(NamedTuple):
    """A layout, and what must be equal or unchanged for another call to use it."""

    cache_key: object  # the part of the call that must be equal
    offsets: Tensor | None  # of a ragged call; must be the same object
    tensors: tuple[Tensor, ...]  # of the mask, as the user passed them, and the offsets
    memory: tuple[Memory, ...]  # of `tensors`
    read: tuple[Tensor, ...]  # those of the mask as the kernels read them, which keeps their memory alive
    lengths: tuple[Tensor, ...]  # those among them that may not exceed `keys`
    keys: int
    starts: tuple[Tensor, ...]  # those that say where queries stand
    layout: PreparedCall


def _cached_layout(mask: Mask, cache_key: object, offsets: Tensor | None) -> PreparedCall | None:
    """Return the layout that an equal call cached in the mask; None if there is no such layout.

    Raises:
        ValueError: lengths or starts that were overwritten since, and are now out of range.
    """
    cached: CachedLayout | None = getattr(mask, "cached_layout", None)
    if (
        cached is None
        or cached.cache_key != cache_key
        or cached.offsets is not offsets
        or _memory(cached.tensors) != cached.memory
    ):
        return None
    for lengths in cached.lengths:
        check_lengths(lengths, cached.keys)
    for starts in cached.starts:
        check_starts(starts)
    return cached.layout


def _cache_layout(mask: Mask, cache_key: object, offsets: Tensor | None, call: Call, layout: PreparedCall) -> None:
    """Cache the layout of a call in its mask if that is safe."""
    tensors, read, keys = _mask_tensors(mask), call.mask_tensors, call.options.max_keys
    if tensors is None or not _storages(read) <= _storages(tensors):
        return
    if offsets is not None:
        tensors = (*tensors, offsets)
    program = call.options.mask_program
    starts = tuple(read[x.starts] for x in program if isinstance(x, Band) and x.starts is not None)
    lengths = tuple(read[x.lengths] for x in program if isinstance(x, Lengths) and read[x.lengths].numel())
    result = CachedLayout(cache_key, offsets, tensors, _memory(tensors), read, lengths, keys, starts, layout)
    object.__setattr__(mask, "cached_layout", result)


def _mask_tensors(mask: Mask) -> tuple[Tensor, ...] | None:
    """Return the tensors of a mask; None if a part of it is of an unknown type."""
    if type(mask) not in _MASK_PARTS:
        return None
    result: tuple[Tensor, ...] = ()
    for part in (getattr(mask, name) for name in _MASK_PARTS[type(mask)]):
        if type(part) is Tensor:
            result += (part,)
        elif isinstance(part, Mask):
            inside = _mask_tensors(part)
            if inside is None:
                return None
            result += inside
        elif isinstance(part, Tensor):
            return None
    return result


def _memory(tensors: tuple[Tensor, ...]) -> tuple[Memory, ...]:
    return tuple((x.data_ptr(), x.untyped_storage().nbytes(), x.shape, x.stride()) for x in tensors)


def _storages(tensors: tuple[Tensor, ...]) -> set[int]:
    return {x.untyped_storage().data_ptr() for x in tensors}
