"""FlexAttention, PyTorch's generator of fused kernels: masks, softcap, biases, sinks, dropout and lse without a matrix of scores.

Dong et al., "Flex Attention" (2024). A mask program becomes a block mask, of which the kernel skips the empty blocks and does not
test the full ones, and a function for the rest; softcap and biases become a function of the score. Three things are not functions
of one score:

    sinks    out * exp(lse - lse'), lse' = log(exp(lse) + exp(sink))
    dropout  a second kernel whose hidden weights are those that dropout takes: its output, of weights normalised by exp(lse_kept),
             times exp(lse_kept - lse') / (1 - p); the hash is the reference's, in 32 bits
    ragged   the packed tokens are one sequence, in which a query sees the keys of its own document

On the CPU, FlexAttention is not fused and stores all scores: there it serves only a caller who names it, such as the tests.

As in every kernel of PyTorch's, a nan in a key or value that some query sees can reach a query that does not see it, where both
are in one block (0 * nan inside the kernel). Keys that no query sees are replaced by zeros, except those that only Documents hide.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, L distances; X and Y
blocks of queries and keys. Of a ragged call B = 1, and Q and K are its packed tokens.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import and_, or_
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from uwaga._base.tracing import constant, is_in_forward_mode, is_intercepted, is_transformed
from uwaga.ops.attention import reference
from uwaga.ops.attention.call import Call, compute_dtype, has_groups
from uwaga.ops.mask_program import START_LAST, START_VALUE, UNBOUNDED, And, Band, Dense, Lengths, SameDocument

_BLOCK = 128  # tokens of a block of the block mask; a multiple of what every kernel of FlexAttention's computes at once
_LEAST_WIDTH = 16  # narrower heads get columns of zeros
_CACHED_MASKS = 4
_SIGN = 1 << 31
# What a mask does to a block: it hides all of its pairs (0), some or none. AND is the minimum of two, OR the maximum.
_PARTIAL, _FULL = 1, 2


def refusal(call: Call) -> str | None:
    query = call.query
    if not call.options.softmax:
        return "FlexAttention always applies softmax"
    if query.dtype.itemsize == 8:
        return "FlexAttention has no kernels for float64"
    if query.device.type == "cuda":
        why = why_not_on_cuda()
        if why is not None:
            return why
    elif query.device.type != "cpu":
        return f"FlexAttention has no kernels for tensors on the device {query.device.type!r}"
    elif torch.compiler.is_compiling():
        return "on the CPU FlexAttention cannot be traced: it is not fused there"
    if not torch.compiler.is_compiling() and (is_transformed() or is_in_forward_mode()):
        return "FlexAttention knows neither torch.func nor forward mode"
    return None


@constant
def why_not_on_cuda() -> str | None:
    """Return why FlexAttention cannot be compiled for the GPU of this machine; None where it can."""
    from torch.utils._triton import has_triton  # here, since importing it looks for Triton

    return None if has_triton() else "FlexAttention's kernels need Triton and a GPU of compute capability 7.0 or more"


def cost(call: Call) -> str | None:
    """Return what a call costs beyond one fused kernel, for `explain`; None where it is one."""
    if call.query.device.type == "cpu":
        sizes = (*call.query.shape[:3], call.key.shape[2])
        return f"on the CPU FlexAttention is not fused: it stores all scores, {sizes} in float32, several times"
    return "dropout takes a second kernel, which computes the scores once more" if call.options.dropout else None


def attend(call: Call) -> tuple[Tensor, Tensor | None]:
    """Return the output (B, H, Q, E), and the lse (B, H, Q) where it is wanted; differentiable once."""
    if 0 in (*call.query.shape[:3], call.key.shape[2]):
        return _nothing(call)
    options, mask = call.options, _mask(call)
    query, key, value = call.query, call.key, call.value
    if not mask.all_queries_see:
        query = torch.where(mask.sees_BHQ[..., None], query, 0.0)
    if not mask.all_keys_are_seen:
        seen_BG1K = _of_key_heads(mask.seen_BHK, call)[..., None]
        key, value = torch.where(seen_BG1K, key, 0.0), torch.where(seen_BG1K, value, 0.0)
    query, key, value = _widened(query), _widened(key), _widened(value)

    scores = _Scores.of(call)
    if options.dropout:
        # Of this kernel only the lse is used: its values are any, as narrow as they may be.
        _, lse_BHQ = _run(scores.without_dropout(), mask, query, key, key[..., :_LEAST_WIDTH])
        out_BHQE, lse_kept_BHQ = _run(scores, mask, query, key, value)
    else:
        out_BHQE, lse_BHQ = _run(scores, mask, query, key, value)
        lse_kept_BHQ = lse_BHQ
    out_BHQE = out_BHQE[..., : call.value.shape[3]]

    if call.sinks is not None:
        lse_BHQ = torch.logaddexp(lse_BHQ, call.sinks[:, None])
    if options.dropout or call.sinks is not None:
        part_BHQ = _exp_of_difference(lse_kept_BHQ, lse_BHQ) / (1.0 - options.dropout)
        out_BHQE = (out_BHQE * part_BHQ[..., None]).to(call.query.dtype)
    if not mask.all_queries_see:
        # What sees nothing has no part in any gradient, whatever the gradient of its output holds.
        out_BHQE = torch.where(mask.sees_BHQ[..., None] & (lse_kept_BHQ != -torch.inf)[..., None], out_BHQE, 0.0)
    return out_BHQE, lse_BHQ if options.wants_lse else None


def _nothing(call: Call) -> tuple[Tensor, Tensor | None]:
    """Return the result without a query or without a key: zeros that depend on the query without reading it, since it may hold a nan."""
    zeros_BHQ = call.query[..., :0].sum(-1)
    output = zeros_BHQ[..., None].expand(*zeros_BHQ.shape, call.value.shape[3])
    if not call.options.wants_lse:
        return output, None
    zeros_BHQ = zeros_BHQ.to(compute_dtype(call.query.dtype))
    return output, zeros_BHQ - torch.inf if call.sinks is None else zeros_BHQ + call.sinks[:, None]


def _exp_of_difference(less: Tensor, more: Tensor) -> Tensor:
    """Compute exp(less - more), and 0, with no gradient, where `less` is -inf."""
    is_zero = less == -torch.inf
    difference = torch.where(is_zero, 0.0, less) - torch.where(is_zero, 0.0, more)
    return torch.where(is_zero, 0.0, difference.exp())


def _widened(x: Tensor) -> Tensor:
    """Return heads as wide as the kernels want them, with columns of zeros, whose numbers lie side by side in memory."""
    if x.shape[3] < _LEAST_WIDTH:
        return functional.pad(x, (0, _LEAST_WIDTH - x.shape[3]))
    return x if x.stride(3) == 1 else x.contiguous()


def _of_key_heads(seen_BHK: Tensor, call: Call) -> Tensor:
    """Return whether any query head of a key head's group sees a key: (B, G, K), where the mask differs between heads."""
    if seen_BHK.shape[1] == 1:
        return seen_BHK
    return seen_BHK.unflatten(1, (call.key.shape[1], call.heads_per_key_head)).any(2)


# Where the tokens of a call are.


class _Tokens(NamedTuple):
    """Queries and keys of a ragged call: the document of each, and where it stands in it. int64."""

    row_Q: Tensor
    local_Q: Tensor
    local_K: Tensor
    first_key_Q: Tensor  # of the query's document
    keys_Q: Tensor  # how many the query's document has
    queries_Q: Tensor

    @staticmethod
    def of(call: Call) -> "_Tokens | None":
        if call.query_offsets is None:
            return None
        assert call.key_offsets is not None
        row_Q, i_Q = _rows(call.query_offsets, call.query.shape[2])
        row_K, j_K = _rows(call.key_offsets, call.key.shape[2])
        local_Q, local_K = i_Q - call.query_offsets[row_Q], j_K - call.key_offsets[row_K]
        queries_R, keys_R = call.query_offsets.diff(), call.key_offsets.diff()
        return _Tokens(row_Q, local_Q, local_K, call.key_offsets[row_Q], keys_R[row_Q], queries_R[row_Q])


def _rows(offsets: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Return the document of each packed token, and its place among all."""
    at = torch.arange(tokens, device=offsets.device)
    return (torch.searchsorted(offsets, at, right=True) - 1).clamp(0, offsets.shape[0] - 2), at


def _place(call: Call, tokens: _Tokens | None, mode: int, start: int, starts: Tensor | None) -> Tensor:
    """Return where each query stands among the keys: (Q,), or (B, Q) where there is a start per sequence. int64."""
    if tokens is not None:
        own_Q = start if mode == START_VALUE else tokens.keys_Q - tokens.queries_Q
        return tokens.first_key_Q + tokens.local_Q + (own_Q if starts is None else starts[tokens.row_Q])
    i_Q = torch.arange(call.query.shape[2], device=call.query.device)
    if starts is not None:
        return i_Q + starts[:, None]
    return i_Q + (call.key.shape[2] - call.query.shape[2] if mode == START_LAST else start)


# A mask: an expression over tensors, which the kernel evaluates for one query and key, and its block mask. Dataclasses, since a kernel is
# found by its expression: tuples of two types are equal where their numbers are.


@dataclass(frozen=True, slots=True)
class _Interval:
    """Keys from low[q] to high[q]: of bands, lengths and documents of a ragged batch. Numbers of two tensors, (Q,) or (B, Q) int32."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class _Same:
    """Keys whose id is the query's: numbers of two tensors, (B or 1, Q) and (B or 1, K)."""

    query_ids: int
    ids: int


@dataclass(frozen=True, slots=True)
class _Element:
    """An element of a tensor that broadcasts to the scores, and which of b, h, q and k it depends on."""

    at: int
    axes: str
    tokens: int | None = None  # of a ragged call, the number of the first of the tensors row_Q, local_Q and local_K


@dataclass(frozen=True, slots=True)
class _Both:
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class _Either:
    left: Any
    right: Any


_Leaf = _Interval | _Same | _Element
_Node = _Leaf | _Both | _Either


class _Mask(NamedTuple):
    """A mask, ready for the kernel."""

    node: _Node | None  # None: every query sees every key
    tensors: tuple[Tensor, ...]
    blocks: tuple[Tensor | None, ...]  # the block lists of torch's BlockMask
    all_queries_see: bool  # known without reading anything
    all_keys_are_seen: bool
    sees_BHQ: Tensor  # false: surely sees no key
    seen_BHK: Tensor  # false: surely seen by no query


def _mask(call: Call) -> _Mask:
    """Return the mask of a call, cached where the layers of a model share it. A bias of -inf is a part of it."""
    tensors = (*call.mask_tensors, *(x for x in (call.query_offsets, call.key_offsets) if x is not None))
    if call.bias is not None or is_intercepted() or any(x.is_inference() for x in tensors):
        return _build(call)
    stream = _stream(call.query)
    if stream is None:
        return _build(call)
    where = (call.query.device, stream, call.query.shape[:3], call.key.shape[2], torch.is_grad_enabled())
    # The entry holds the tensors, so that no other can have their memory.
    memory = tuple((x.data_ptr(), x._version, x.shape, x.stride()) for x in tensors)
    cache_key = (call.options.mask_program, where, memory)
    with _masks_lock:
        entry = cached_masks.pop(cache_key, None)
    entry = entry or (_build(call), tensors)
    with _masks_lock:
        cached_masks[cache_key] = entry  # the last one
        while len(cached_masks) > _CACHED_MASKS:
            cached_masks.popitem(last=False)
    return entry[0]


def _stream(x: Tensor) -> object:
    """Return the stream that a cached mask is made on, and read on: on another one it may not be there yet. None: no mask is cached, since what
    is computed belongs to a graph that is being captured."""
    if not x.is_cuda:
        return 0
    return None if torch.cuda.is_current_stream_capturing() else torch.cuda.current_stream(x.device)


cached_masks: OrderedDict[object, tuple[_Mask, tuple[Tensor, ...]]] = OrderedDict()
_masks_lock = threading.Lock()


def _build(call: Call) -> _Mask:
    tensors: list[Tensor] = []
    node = _node(call, tensors)
    device, (queries, keys) = call.query.device, (call.query.shape[2], call.key.shape[2])
    yes = torch.ones((1, 1, 1), dtype=torch.bool, device=device)
    if node is None:
        return _Mask(None, (), (), True, True, yes, yes)
    all_queries_see, all_keys_are_seen = _is_total(call)
    return _Mask(
        node,
        tuple(tensors),
        _block_lists(_states(node, tensors, queries, keys)),
        all_queries_see,
        all_keys_are_seen,
        yes if all_queries_see else _combined(node, lambda leaf: _may_see(leaf, tensors)),
        yes if all_keys_are_seen else _combined(node, lambda leaf: _may_be_seen(leaf, tensors, keys)),
    )


def _is_total(call: Call) -> tuple[bool, bool]:
    """Return whether every query surely sees a key, and every key is surely seen, by options and sizes alone."""
    program, queries, keys = call.options.mask_program, call.query.shape[2], call.key.shape[2]
    if call.bias is not None or (call.query_offsets is not None and call.query_offsets is not call.key_offsets):
        return False, False
    if not program:
        return True, True
    if len(program) != 1 or not isinstance(band := program[0], Band):
        return False, False
    if band.start_mode != START_LAST or band.low > 0 or band.high < 0:
        return False, False
    return queries <= keys, band.low == -UNBOUNDED or queries >= keys


def _node(call: Call, tensors: list[Tensor]) -> _Node | None:
    """Return the expression of a call's mask, and of its tensors, which it adds to `tensors`."""

    def add(*added: Tensor) -> int:
        tensors.extend(added)
        return len(tensors) - len(added)

    def interval(low_Q: Tensor | int, high_Q: Tensor | int, like: Tensor) -> _Interval:
        # No key stands before 0 or from K on, so int32 holds every bound.
        low_Q, high_Q = (
            x.expand_as(like) if isinstance(x, Tensor) else torch.full_like(like, x) for x in (low_Q, high_Q)
        )
        low_Q, high_Q = low_Q.clamp(0, keys), high_Q.clamp(-1, keys - 1)
        return _Interval(add(low_Q.int().contiguous()), add(high_Q.int().contiguous()))

    def both(left: _Node, right: _Node) -> _Node:
        if not (isinstance(left, _Interval) and isinstance(right, _Interval)):
            return _Both(left, right)
        low = torch.maximum(tensors[left.low], tensors[right.low])
        return _Interval(add(low), add(torch.minimum(tensors[left.high], tensors[right.high])))

    keys, tokens = call.key.shape[2], _Tokens.of(call)
    i_Q = torch.arange(call.query.shape[2], device=call.query.device)
    stack: list[_Node] = []
    for operation in call.options.mask_program:
        if isinstance(operation, Band):
            starts = None if operation.starts is None else call.mask_tensors[operation.starts]
            place = _place(call, tokens, operation.start_mode, operation.start, starts)
            low = 0 if operation.low == -UNBOUNDED else place + operation.low
            stack.append(interval(low, keys if operation.high == UNBOUNDED else place + operation.high, place))
        elif isinstance(operation, Lengths):
            lengths_B = call.mask_tensors[operation.lengths]
            if tokens is None:
                high = (lengths_B[:, None] - 1).expand(-1, call.query.shape[2])
            else:
                high = tokens.first_key_Q + lengths_B[tokens.row_Q] - 1
            stack.append(interval(0, high, high))
        elif isinstance(operation, SameDocument):
            ids = call.mask_tensors[operation.ids]
            ids_BK = ids if tokens is None else ids[None]
            if operation.query_ids is not None:
                query_ids = call.mask_tensors[operation.query_ids]
                query_ids = query_ids if tokens is None else query_ids[None]
            else:
                place = _place(call, tokens, START_LAST, 0, None).clamp(0, keys - 1)
                query_ids = ids_BK[:, place]
            stack.append(_Same(add(query_ids), add(ids_BK)))
        elif isinstance(operation, Dense):
            stack.append(_element(call.mask_tensors[operation.bits], tokens, tensors))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(both(left, right) if isinstance(operation, And) else _Either(left, right))
    if tokens is not None:
        last_key_Q = tokens.first_key_Q + tokens.keys_Q - 1
        stack.append(interval(tokens.first_key_Q, last_key_Q, i_Q))
    if call.bias is not None:
        stack.append(_element(call.bias.detach() != -torch.inf, tokens, tensors))
    while len(stack) > 1:
        right, left = stack.pop(), stack.pop()
        stack.append(both(left, right))
    return stack[0] if stack else None


def _element(tensor: Tensor, tokens: _Tokens | None, tensors: list[Tensor]) -> _Element:
    """Return an element of a tensor that broadcasts to the scores of each document."""
    axes = "".join(axis for axis, size in zip("bhqk", tensor.shape, strict=True) if size > 1)
    first = None
    if tokens is not None and axes:
        # Offsets may have been changed since they were checked: then the numbers are wrong, and no other memory is read.
        local_Q, local_K = (
            x.clamp(0, max(size - 1, 0))
            for x, size in ((tokens.local_Q, tensor.shape[2]), (tokens.local_K, tensor.shape[3]))
        )
        first = len(tensors)
        tensors.extend((tokens.row_Q, local_Q, local_K))
    tensors.append(tensor.reshape([size for size in tensor.shape if size > 1]))
    return _Element(len(tensors) - 1, axes, first)


def _states(node: _Node, tensors: Sequence[Tensor], queries: int, keys: int) -> Tensor:
    """Return what the mask does to each block, 0, _PARTIAL or _FULL: int8, four dimensions that broadcast to (B, H, X, Y).

    0 and _FULL are right; _PARTIAL may stand for either.
    """
    first_Y = torch.arange(0, keys, _BLOCK, device=tensors[0].device)
    last_Y = (first_Y + _BLOCK).clamp(max=keys) - 1
    blocks = -(-queries // _BLOCK), len(first_Y)

    def state_of(node: _Leaf) -> Tensor:
        if isinstance(node, _Interval):
            (low_least, low_most), (high_least, high_most) = (
                [x[:, None, :, None] for x in _ranges(tensors[at])] for at in (node.low, node.high)
            )
            some = (first_Y <= high_most) & (last_Y >= low_least)
            return _state(some, (low_most <= first_Y) & (last_Y <= high_least))
        if isinstance(node, _Same):
            least_X, most_X = (x[:, None, :, None] for x in _ranges(tensors[node.query_ids]))
            least_Y, most_Y = (x[:, None, None, :] for x in _ranges(tensors[node.ids]))
            some = (least_X <= most_Y) & (least_Y <= most_X)
            return _state(some, (least_X == most_Y) & (least_Y == most_X))
        if node.tokens is not None:
            return torch.full((1, 1, *blocks), _PARTIAL, dtype=torch.int8, device=first_Y.device)
        some = whole = bits = _with_axes(tensors[node.at], node.axes)
        for dimension in (2, 3):
            if bits.shape[dimension] > 1:
                some = _blocks_of(some, dimension).any(dimension + 1)
                whole = _blocks_of(whole, dimension).all(dimension + 1)
        return _state(some, whole)

    states = _combined(node, state_of, torch.minimum, torch.maximum).expand(-1, -1, *blocks).clone()
    # A block with less than all its tokens is tested: the kernels leave nothing out of a full one.
    if queries % _BLOCK:
        states[:, :, -1].clamp_(max=_PARTIAL)
    if keys % _BLOCK:
        states[..., -1].clamp_(max=_PARTIAL)
    return states


def _state(some: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole, _FULL, some.to(torch.int8)).to(torch.int8)


def _ranges(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest number of each block of (Q,) or (B, Q): two of (1 or B, X)."""
    in_blocks = _blocks_of(x if x.ndim == 2 else x[None], 1)
    return in_blocks.amin(-1), in_blocks.amax(-1)


def _blocks_of(x: Tensor, dimension: int) -> Tensor:
    """Return a dimension in blocks; the last one is filled up with its last entry."""
    size = x.shape[dimension]
    count = -(-size // _BLOCK)
    if size % _BLOCK:
        x = x.index_select(dimension, torch.arange(count * _BLOCK, device=x.device).clamp(max=size - 1))
    return x.unflatten(dimension, (count, _BLOCK))


def _block_lists(states_BHXY: Tensor) -> tuple[Tensor | None, ...]:
    """Return the lists of torch's BlockMask: how many blocks of keys each block of queries has to test, and which; those that are full;
    and the same of each block of keys, for the backward pass."""
    lists: list[Tensor | None] = []
    for states in (states_BHXY, states_BHXY.transpose(2, 3)):
        if len(lists) and not torch.is_grad_enabled():
            lists += [None] * 4
            continue
        for state in (_PARTIAL, _FULL):
            result = states == state
            order = result.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
            lists += [result.sum(-1, dtype=torch.int32).contiguous(), order.int().contiguous()]
    return tuple(lists)


def _combined(
    node: _Node,
    leaf: Callable[[_Leaf], Tensor],
    both: Callable[[Tensor, Tensor], Tensor] = and_,
    either: Callable[[Tensor, Tensor], Tensor] = or_,
) -> Tensor:
    """Return what an expression makes of the tensors of its leaves."""
    if not isinstance(node, _Both | _Either):
        return leaf(node)
    combine = both if isinstance(node, _Both) else either
    return combine(_combined(node.left, leaf, both, either), _combined(node.right, leaf, both, either))


def _may_see(node: _Leaf, tensors: Sequence[Tensor]) -> Tensor:
    """Return a bool tensor that broadcasts to (B, H, Q): false where a query surely sees no key."""
    if isinstance(node, _Interval):
        sees = tensors[node.low] <= tensors[node.high]
        return sees[:, None] if sees.ndim == 2 else sees[None, None]
    if isinstance(node, _Element) and node.tokens is None:
        return _with_axes(tensors[node.at], node.axes).any(3)
    return torch.ones((1, 1, 1), dtype=torch.bool, device=tensors[0].device)


def _may_be_seen(node: _Leaf, tensors: Sequence[Tensor], keys: int) -> Tensor:
    """Return a bool tensor that broadcasts to (B, H, K): false where a key is surely seen by no query."""
    if isinstance(node, _Interval):
        low, high = (x if x.ndim == 2 else x[None] for x in (tensors[node.low], tensors[node.high]))
        # One more query from `low` on, one less behind `high`; an empty interval counts nothing.
        is_some = (low <= high).int()
        change = torch.zeros((low.shape[0], keys + 1), dtype=torch.int32, device=low.device)
        change.scatter_add_(1, low.long(), is_some)
        change.scatter_add_(1, (high + 1).clamp(0, keys).long(), -is_some)
        return (change.cumsum(1)[:, :keys] > 0)[:, None]
    if isinstance(node, _Element) and node.tokens is None:
        return _with_axes(tensors[node.at], node.axes).any(2)
    return torch.ones((1, 1, 1), dtype=torch.bool, device=tensors[0].device)


def _with_axes(tensor: Tensor, axes: str) -> Tensor:
    for dimension, axis in enumerate("bhqk"):
        tensor = tensor if axis in axes else tensor.unsqueeze(dimension)
    return tensor


# What happens to a score.


class _ScoreForm(NamedTuple):
    """What is compiled into a kernel: the numbers of the call, and which of the tensors are which."""

    scale: float
    softcap: str  # as text, which is a constant of the kernel: torch.compile makes a variable of a float; "" is none
    relative: int | None  # the number of the tensor (H, L), before L - 1 and the place of distance 0, (Q,) or (B, Q)
    bias: _Element | None
    dropout: int | None  # the number of the tensor of the rows' hashes (B, H, Q), before the places of the keys (K,)
    threshold: int  # a weight is dropped whose hash is less, both less 2**31


class _Scores(NamedTuple):
    form: _ScoreForm
    tensors: tuple[Tensor, ...]

    @staticmethod
    def of(call: Call) -> "_Scores":
        options, tokens = call.options, _Tokens.of(call)
        tensors: list[Tensor] = []
        relative = bias = dropout = None
        softcap = repr(options.softcap) if options.softcap else ""
        threshold = 0
        if call.relative is not None:
            relative = 0
            start = (options.relative_start_mode, options.relative_start, call.relative_starts)
            place = _place(call, tokens, *start)  # (Q,) or (B, Q)
            last = torch.full((), call.relative.shape[1] - 1, dtype=torch.int32, device=call.query.device)
            tensors += [call.relative, last, (place - options.relative_zero).int()]
        if call.bias is not None:
            bias = _element(call.bias, tokens, tensors)
        if options.dropout:
            assert call.seed is not None
            dropout = len(tensors)
            # Places of keys as a tensor: whether the numbers q and k are int32 or int64 is the kernel's own affair.
            j_K = torch.arange(call.key.shape[2], device=call.query.device) if tokens is None else tokens.local_K
            tensors += [_hash_of_rows(call, tokens), j_K.int()]
            threshold = min(int(options.dropout * 2**32), 2**32 - 1) - _SIGN
        form = _ScoreForm(options.scale, softcap, relative, bias, dropout, threshold)
        return _Scores(form, tuple(tensors))

    def without_dropout(self) -> "_Scores":
        return self._replace(form=self.form._replace(dropout=None, threshold=0))


def _hash_of_rows(call: Call, tokens: _Tokens | None) -> Tensor:
    """Compute `row_key` of reference.kept for each query, as int32 of the same bits: (B, H, Q)."""
    batch, heads, queries, _ = call.query.shape
    assert call.seed is not None
    device = call.query.device
    h_H = torch.arange(heads, device=device)
    if tokens is None:
        stream = (torch.arange(batch, device=device)[:, None] * heads + h_H)[..., None]
        i_Q = torch.arange(queries, device=device)
    else:
        stream, i_Q = (tokens.row_Q * heads + h_H[:, None])[None], tokens.local_Q
    key = reference.row_keys(call.seed.to(device) + stream, i_Q)
    return torch.where(key >= _SIGN, key - 2 * _SIGN, key).int()


def _score(
    form: _ScoreForm, tensors: Sequence[Tensor], score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor
) -> Tensor:
    """Return a score as softmax takes it."""
    if form.softcap:
        softcap = float(form.softcap)
        score = softcap * torch.tanh(score / softcap)
    if form.relative is not None:
        distance = k - _of_query(tensors[form.relative + 2], b, q)
        # Of keys in another document of a ragged batch there is no distance, and the mask hides them.
        distance = torch.minimum(distance.clamp(min=0), tensors[form.relative + 1])
        score = score + tensors[form.relative][h, distance]
    if form.bias is not None:
        score = score + _read(form.bias, tensors, b, h, q, k)
    if form.dropout is not None:
        kept = _is_kept(tensors[form.dropout][b, h, q], tensors[form.dropout + 1][k], form.threshold)
        score = torch.where(kept, score, -torch.inf)
    return score


def _is_kept(row_key: Tensor, j: Tensor, threshold: int) -> Tensor:
    """Compute the end of reference.kept for one weight: the hash in int32, whose products wrap as those modulo 2**32 do."""
    x = row_key + j * (0x9E3779B1 - 2 * _SIGN)
    x = (x ^ ((x >> 16) & 0xFFFF)) * (0x85EBCA6B - 2 * _SIGN)
    x = (x ^ ((x >> 13) & 0x7FFFF)) * (0xC2B2AE35 - 2 * _SIGN)
    x = x ^ ((x >> 16) & 0xFFFF)
    return (x ^ -_SIGN) >= threshold  # the comparison of unsigned numbers


def _visible(node: _Node, tensors: Sequence[Tensor], b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return whether a query sees a key."""

    def sees(leaf: _Leaf) -> Tensor:
        if isinstance(leaf, _Interval):
            return (_of_query(tensors[leaf.low], b, q) <= k) & (k <= _of_query(tensors[leaf.high], b, q))
        if isinstance(leaf, _Same):
            return _of_query(tensors[leaf.query_ids], b, q) == _of_query(tensors[leaf.ids], b, k)
        return _read(leaf, tensors, b, h, q, k)

    return _combined(node, sees)


def _of_query(tensor: Tensor, b: Tensor, q: Tensor) -> Tensor:
    if tensor.ndim == 1:
        return tensor[q]
    return tensor[b, q] if tensor.shape[0] > 1 else tensor[0][q]


def _read(element: _Element, tensors: Sequence[Tensor], b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    if element.tokens is not None:
        row_Q, local_Q, local_K = tensors[element.tokens : element.tokens + 3]
        b, q, k = row_Q[q], local_Q[q], local_K[k]
    result, at = tensors[element.at], {"b": b, "h": h, "q": q, "k": k}
    return result[tuple(at[axis] for axis in element.axes)] if element.axes else result


# The kernels.


def _run(scores: _Scores, mask: _Mask, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, Q, E) in the query's dtype, and the lse (B, H, Q) in float32; sinks and dropout's scale are left out."""
    arguments = (query, key, value, scores.tensors, mask.tensors, mask.blocks)
    if torch.compiler.is_compiling():  # then this is a part of what is compiled
        return _flex(scores.form, mask.node, *arguments)
    if query.device.type == "cpu":
        return unfused(scores.form, mask.node, *arguments)
    sizes = (query.shape[1], key.shape[1], query.shape[3], value.shape[3])
    # torch.compile compiles again for one size and for several, a few times for one kernel.
    others = (x for x in (*scores.tensors, *mask.tensors, *mask.blocks) if x is not None)
    ones = tuple(size == 1 for x in (query, key, *others) for size in x.shape)
    kind = (query.dtype, query.device, sizes, torch.is_grad_enabled(), query.shape[2] == key.shape[2], ones)
    return compiled(scores.form, mask.node, kind)(*arguments)


_Kernel = Callable[..., tuple[Tensor, Tensor]]


@lru_cache(maxsize=256)
def compiled(form: _ScoreForm, node: _Node | None, kind: object) -> _Kernel:
    """Return the kernel of a form of call, for one kind of operands: dtype, device, numbers of heads, widths, whether gradients are recorded, whether
    there are as many queries as keys, and which sizes are 1."""

    def kernel(*arguments: Any) -> tuple[Tensor, Tensor]:
        return _flex(form, node, *arguments)

    # Code of its own: torch.compile counts recompilations by code, and this one needs some, for one length and any. With fullgraph there is an
    # error beyond the limit, and not the slow way.
    kernel.__code__ = kernel.__code__.replace(co_name="attention")
    return cast(_Kernel, torch.compile(kernel, fullgraph=True))


def _flex(
    form: _ScoreForm,
    node: _Node | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_tensors: tuple[Tensor, ...],
    mask_tensors: tuple[Tensor, ...],
    blocks: tuple[Tensor | None, ...],
) -> tuple[Tensor, Tensor]:
    """Call FlexAttention, to be compiled: uncompiled, it stores all scores."""
    # Here, since it imports the compiler.
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, flex_attention

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return _score(form, score_tensors, score, b, h, q, k)

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert node is not None
        return _visible(node, mask_tensors, b, h, q, k)

    block_mask = None
    if node is not None:
        block_mask = _block_mask((query.shape[2], key.shape[2]), blocks, mask_mod)
    is_plain = not (form.softcap or form.relative is not None or form.bias is not None or form.dropout is not None)
    output, aux = flex_attention(
        query,
        key,
        value,
        score_mod=None if is_plain else score_mod,
        block_mask=block_mask,
        scale=form.scale,
        enable_gqa=has_groups(query, key),
        return_aux=AuxRequest(lse=True),
    )
    assert isinstance(output, Tensor)
    assert isinstance(aux, AuxOutput)
    assert aux.lse is not None
    return output, aux.lse


def _block_mask(lengths: tuple[int, int], blocks: tuple[Tensor | None, ...], mask_mod: Callable[..., Tensor]) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    return BlockMask(lengths, *blocks, BLOCK_SIZE=(_BLOCK, _BLOCK), mask_mod=mask_mod)  # type: ignore[misc, arg-type]


def unfused(
    form: _ScoreForm,
    node: _Node | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_tensors: tuple[Tensor, ...],
    mask_tensors: tuple[Tensor, ...],
    blocks: tuple[Tensor | None, ...],
) -> tuple[Tensor, Tensor]:
    """Compute what `_flex` computes by the operator below flex_attention, which has gradients on the CPU and compiles nothing."""
    from torch._higher_order_ops.flex_attention import flex_attention

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, *tensors: Tensor) -> Tensor:
        return _score(form, tensors, score, b, h, q, k)

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor, *tensors: Tensor) -> Tensor:
        return (q >= 0) & (k >= 0) if node is None else _visible(node, tensors, b, h, q, k)

    lengths = query.shape[2], key.shape[2]
    if node is None:
        sizes = [-(-length // _BLOCK) for length in lengths]
        whole = torch.full((1, 1, *sizes), _FULL, dtype=torch.int8, device=query.device)
        blocks = _block_lists(whole)
    block_mask = _block_mask(lengths, blocks, mask_mod)
    options = {"BACKEND": "AUTO", "OUTPUT_LOGSUMEXP": True, "OUTPUT_MAX": False}
    output, lse2, _ = flex_attention(
        query, key, value, score_mod, block_mask.as_tuple(), form.scale, options, score_tensors, mask_tensors
    )
    return output, lse2 * 0.6931471805599453  # the kernels' logarithm is that of base 2
