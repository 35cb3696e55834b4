"""Triton kernels of map statistics: a tile of scores at a time, from queries and keys, on a GPU or in Triton's interpreter.

One pass with queries outside (`row_statistics`, `second_mask`), one with keys outside (`received_weights`), rectangles
(`pooled_cells`) and single weights (`chosen_weights`). Every kernel computes a score in the same way, in tiles that start
at multiples of their size, so that its bits do not depend on which statistic is asked for.

The mask is a program of int64 records in memory, whose tensors are addresses: one compiled kernel serves every mask, and
tiles that a mask without `|` cannot reach are not visited.

Letters: B sequences, H query heads, Q queries, K keys, D query/key width; M queries and N keys of a tile, C cells.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton import TritonError as TritonError
from triton.runtime.interpreter import InterpretedFunction

# A record: code, start mode, start, low, high, address, address of query ids, four strides in elements, and nothing.
RECORD = 12
_RECORD = tl.constexpr(RECORD)
# The codes of ops/mask_program.py; a test compares them.
BAND, LENGTHS, DOCUMENTS, DENSE, AND, OR = (tl.constexpr(code) for code in (0, 1, 2, 3, 10, 11))
START_LAST, START_PER_ROW = tl.constexpr(0), tl.constexpr(2)
_FAR = tl.constexpr(1 << 30)  # farther than any two tokens of a call
_INFINITY = tl.constexpr(float("inf"))
_LOWEST = tl.constexpr(-3.0e38)  # the order of visible scores of -inf, above that of hidden ones


class Scores(NamedTuple):
    """The operands of scores; None for what a call does not have."""

    query: Any  # (B, H, Q, D) of any strides; ragged: (1, H, N, D)
    key: Any
    query_strides: tuple[int, ...]  # in elements
    key_strides: tuple[int, ...]
    heads: int  # H
    heads_per_key_head: int
    queries: int  # Q and K, or the packed tokens
    keys: int
    width: int  # D
    scale: float
    softcap: float | None
    bias: Any  # (B, H, Q, K) by strides of zero; ragged: (R, H, max Q, max K)
    bias_strides: tuple[int, ...] | None
    relative: Any  # (H, L)
    distances: int  # L
    relative_zero: int
    relative_start_mode: int
    relative_start: int
    relative_starts: int  # the address of (B,) int64
    query_offsets: Any  # (R+1,)
    key_offsets: Any
    max_queries: int  # of a ragged call
    max_keys: int


class Program(NamedTuple):
    """A mask program in memory."""

    records: Any  # int64; None for a mask that hides nothing
    operations: int
    narrowing: int  # how many operations bound the visible keys: all of them, or 0 where there is an `|`


class Chosen(NamedTuple):
    """The rows to compute; None: all of them."""

    sequences: Any  # int64, as of maps/spec.py's Selection
    heads: Any
    queries: Any
    count_heads: int
    count_queries: int  # Q or the longest sequence, without a selection


class RowResults(NamedTuple):
    """(B, H, Q) float32 each; None where it is not wanted."""

    maximum: Any
    sum: Any
    entropy: Any
    squares: Any
    distance: Any
    distance_mode: int
    distance_start: int
    distance_starts: int  # the address of (B,) int64
    top_scores: Any  # (B, H, Q, k): in no order; -inf where fewer than k keys are visible
    top_positions: Any  # int32; below 0 there


# Extents.


@triton.jit
def _sequence(x, b):
    """First query, queries, first key and keys of a sequence. Offsets are clamped: they may have changed since they were checked."""
    if x.query_offsets is None:
        first_query, first_key = tl.cast(0, tl.int64), tl.cast(0, tl.int64)
        queries, keys = tl.cast(x.queries, tl.int64), tl.cast(x.keys, tl.int64)
    else:
        first_query = tl.minimum(tl.maximum(tl.load(x.query_offsets + b), 0), x.queries)
        first_key = tl.minimum(tl.maximum(tl.load(x.key_offsets + b), 0), x.keys)
        queries = tl.minimum(tl.load(x.query_offsets + b + 1), x.queries) - first_query
        keys = tl.minimum(tl.load(x.key_offsets + b + 1), x.keys) - first_key
        queries = tl.minimum(tl.maximum(queries, 0), x.max_queries)
        keys = tl.minimum(tl.maximum(keys, 0), x.max_keys)
    return first_query, queries.to(tl.int32), first_key, keys.to(tl.int32)


@triton.jit
def _batch(x, b):
    """The index of a sequence in the batch dimension of query and key."""
    if x.query_offsets is None:
        index = b
    else:
        index = b * 0
    return index


@triton.jit
def _start(mode, value, starts, b, queries, keys):
    """Where query 0 stands among the keys, int64; `starts` is an address."""
    start = tl.cast(value, tl.int64)
    if mode == START_LAST:
        start = (keys - queries).to(tl.int64)
    if mode == START_PER_ROW:
        start = tl.load(tl.cast(starts, tl.int64).to(tl.pointer_type(tl.int64)) + b)
    return start


@triton.jit
def _bounds(record, b, queries, keys):
    """The smallest and largest j - i that a band shows."""
    start = _start(tl.load(record + 1), tl.load(record + 2), tl.load(record + 5), b, queries, keys)
    low = tl.minimum(tl.maximum(tl.load(record + 3) + start, -_FAR), _FAR)
    high = tl.minimum(tl.maximum(tl.load(record + 4) + start, -_FAR), _FAR)
    return low.to(tl.int32), high.to(tl.int32)


@triton.jit
def _key_range(program, b, first, last, queries, keys, begin, end):
    """[begin, end) without keys that no query in first..last sees."""
    if program.records is not None:
        for at in range(program.narrowing):
            record = program.records + at * _RECORD
            code = tl.load(record)
            if code == BAND:
                low, high = _bounds(record, b, queries, keys)
                begin = tl.maximum(begin, first + low)
                end = tl.minimum(end, last + high + 1)
            if code == LENGTHS:
                length = tl.load(tl.load(record + 5).to(tl.pointer_type(tl.int64)) + b)
                end = tl.minimum(end, tl.minimum(length, _FAR).to(tl.int32))
    return begin, end


@triton.jit
def _query_range(program, b, first, last, queries, keys):
    """[begin, end) of the queries that may see a key in first..last."""
    begin, end = queries * 0, queries
    if program.records is not None:
        for at in range(program.narrowing):
            record = program.records + at * _RECORD
            code = tl.load(record)
            if code == BAND:
                low, high = _bounds(record, b, queries, keys)
                begin = tl.maximum(begin, first - high)
                end = tl.minimum(end, last - low + 1)
            if code == LENGTHS:
                length = tl.load(tl.load(record + 5).to(tl.pointer_type(tl.int64)) + b)
                end = tl.where(length <= first, 0, end)
    return begin, end


# A tile of scores.


@triton.jit
def _load_query(x, b, h, i, inside, first_query, DOT: tl.constexpr, BLOCK_D: tl.constexpr):
    """(M, D), zeros outside."""
    d = tl.arange(0, BLOCK_D)
    base = x.query + _batch(x, b) * x.query_strides[0] + h * x.query_strides[1]
    row = (first_query + i) * x.query_strides[2]
    at = base + row[:, None] + d.to(tl.int64)[None, :] * x.query_strides[3]
    return tl.load(at, mask=inside[:, None] & (d < x.width)[None, :], other=0.0).to(DOT)


@triton.jit
def _load_key(x, b, h, j, inside, first_key, DOT: tl.constexpr, BLOCK_D: tl.constexpr):
    """(D, N), zeros outside."""
    d = tl.arange(0, BLOCK_D)
    base = x.key + _batch(x, b) * x.key_strides[0] + (h // x.heads_per_key_head) * x.key_strides[1]
    column = (first_key + j) * x.key_strides[2]
    at = base + column[None, :] + d.to(tl.int64)[:, None] * x.key_strides[3]
    return tl.load(at, mask=inside[None, :] & (d < x.width)[:, None], other=0.0).to(DOT)


@triton.jit
def _shown(program, b, h, i, j, inside, first_query, queries, first_key, keys):
    """(M, N) bool: the mask. The results of records are the bits of a number, the last one lowest."""
    stack = tl.where(inside, 1, 0)
    if program.records is not None:
        for at in range(program.operations):
            record = program.records + at * _RECORD
            code = tl.load(record)
            address = tl.load(record + 5)
            if code == BAND:
                low, high = _bounds(record, b, queries, keys)
                distance = j[None, :] - i[:, None]
                stack = stack * 2 + tl.where((distance >= low) & (distance <= high), 1, 0)
            if code == LENGTHS:
                length = tl.load(address.to(tl.pointer_type(tl.int64)) + b)
                stack = stack * 2 + tl.where(inside & (j[None, :] < length), 1, 0)
            if code == DOCUMENTS:
                of_batch = address + (b * tl.load(record + 7) + first_key) * 8
                of_queries = tl.load(record + 6)
                # Without ids of their own the queries are the last keys.
                position = of_queries + (b * tl.load(record + 8) + first_query) * 8
                position = tl.where(of_queries == 0, of_batch + (keys - queries) * 8, position)
                low_i = tl.where(of_queries == 0, queries - keys, 0)
                ids_of_keys = of_batch.to(tl.pointer_type(tl.int64)) + j
                ids_of_queries = position.to(tl.pointer_type(tl.int64)) + i
                id_j = tl.load(ids_of_keys, mask=(j >= 0) & (j < keys), other=0)
                id_i = tl.load(ids_of_queries, mask=(i >= low_i) & (i < queries), other=0)
                stack = stack * 2 + tl.where(id_i[:, None] == id_j[None, :], 1, 0)
            if code == DENSE:
                base = address.to(tl.pointer_type(tl.int8)) + b * tl.load(record + 7) + h * tl.load(record + 8)
                row, column = i.to(tl.int64) * tl.load(record + 9), j.to(tl.int64) * tl.load(record + 10)
                bits = tl.load(base + row[:, None] + column[None, :], mask=inside, other=0)
                stack = stack * 2 + tl.where(bits != 0, 1, 0)
            if code == AND:
                stack = (stack // 4) * 2 + ((stack // 2) & stack & 1)
            if code == OR:
                stack = (stack // 4) * 2 + (((stack // 2) | stack) & 1)
    return inside & ((stack & 1) == 1)


@triton.jit
def _tanh(x):
    """In float32 to its last digits, which 1 - 2 / (exp(2 x) + 1) has not for small x: the polynomial of Cephes' tanhf."""
    z = x * x
    near = -5.70498872745e-3 * z + 2.06390887954e-2
    near = near * z - 5.37397155531e-2
    near = near * z + 1.33314422036e-1
    near = near * z - 3.33332819422e-1
    near = near * z * x + x
    size = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size < 0.625, near, tl.where(x < 0.0, -far, far))


@triton.jit
def _scores(x, q, k, b, h, i, j, seen, queries, keys):
    """(M, N) float32 scores, and which of them are visible: without those that a bias of -inf hides."""
    scores = tl.dot(q, k, input_precision="ieee") * x.scale
    if x.softcap is not None:
        scores = x.softcap * _tanh(scores / x.softcap)
    if x.relative is not None:
        start = _start(x.relative_start_mode, x.relative_start, x.relative_starts, b, queries, keys)
        place = j[None, :] - i[:, None] + (x.relative_zero - start)
        is_there = seen & (place >= 0) & (place < x.distances)
        scores += tl.load(x.relative + h * x.distances + place, mask=is_there, other=0.0)
    if x.bias is not None:
        base = x.bias + b * x.bias_strides[0] + h * x.bias_strides[1]
        row, column = i.to(tl.int64) * x.bias_strides[2], j.to(tl.int64) * x.bias_strides[3]
        bias = tl.load(base + row[:, None] + column[None, :], mask=seen, other=0.0).to(tl.float32)
        seen = seen & (bias != -_INFINITY)
        scores += bias
    return scores, seen


@triton.jit
def _weights(scores, seen, maximum, total):
    """(M, N): the weights, given the normalizer of the rows; 0 where hidden."""
    shifted = tl.where(seen, scores - maximum[:, None], 0.0)
    divisor = tl.where(total == 0.0, 1.0, total)
    return tl.where(seen, tl.exp(shifted) / divisor[:, None], 0.0)


@triton.jit
def _rows_of(x, chosen, b, h, first_query, queries, tile, BLOCK_M: tl.constexpr):
    """The queries of a tile, which of them exist, and the index of each in (B, H, Q)."""
    place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    if chosen.queries is None:
        i, inside = place, place < queries
    else:
        inside = place < chosen.count_queries
        i = tl.load(chosen.queries + place, mask=inside, other=0).to(tl.int32)
    at = (_batch(x, b) * x.heads + h) * x.queries + first_query + i
    return i, inside, at


@triton.jit
def _tile_of(chosen, BLOCK_M: tl.constexpr):
    """Tile, head and sequence of a program; the last tiles first, since causal ones are the longest."""
    program = tl.program_id(0).to(tl.int64)
    tiles = tl.cdiv(chosen.count_queries, BLOCK_M)
    tile = (tiles - 1 - program % tiles).to(tl.int32)
    h, b = (program // tiles) % chosen.count_heads, program // tiles // chosen.count_heads
    return tile, h, b


@triton.jit
def row_statistics(
    x,
    program,
    chosen,
    sinks,
    results,
    TOP: tl.constexpr,
    BLOCK_T: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Normalizer and statistics of the rows of one tile, in one pass over the keys.

    Sums are rescaled as the maximum m rises; with e_j = exp(s_j - m) they are sum e, sum e^2, sum e (s - m) and
    sum e |j - p|, added up in float64 over tiles: there may be thousands of these.
    """
    tile, h, b = _tile_of(chosen, BLOCK_M)
    if chosen.sequences is not None:
        b = tl.load(chosen.sequences + b)
        h = tl.load(chosen.heads + h)
    first_query, queries, first_key, keys = _sequence(x, b)
    i, inside, at = _rows_of(x, chosen, b, h, first_query, queries, tile, BLOCK_M)
    q = _load_query(x, b, h, i, inside, first_query, DOT, BLOCK_D)
    maximum = tl.full([BLOCK_M], -_INFINITY, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float64)
    squares = tl.zeros([BLOCK_M], tl.float64)
    moment = tl.zeros([BLOCK_M], tl.float64)
    distances = tl.zeros([BLOCK_M], tl.float64)
    slot = tl.arange(0, BLOCK_T)
    # Slots beyond k are never the smallest; empty ones are told apart by their positions.
    top = tl.zeros([BLOCK_M, BLOCK_T], tl.float32) + tl.where(slot < TOP, -_INFINITY, _INFINITY)[None, :]
    top_at = tl.zeros([BLOCK_M, BLOCK_T], tl.int32) - 1 - slot[None, :]
    if results.distance is not None:
        origin = _start(results.distance_mode, results.distance_start, results.distance_starts, b, queries, keys)

    first = tl.min(tl.where(inside, i, _FAR))
    last = tl.max(tl.where(inside, i, -1))
    begin, end = _key_range(program, b, first, last, queries, keys, keys * 0, keys)
    end = tl.where(last < 0, 0, end)
    for start in range(begin // BLOCK_N * BLOCK_N, end, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        is_key = j < keys
        within = inside[:, None] & is_key[None, :]
        seen = _shown(program, b, h, i, j, within, first_query, queries, first_key, keys)
        if tl.max(tl.where(seen, 1, 0)) > 0:
            k = _load_key(x, b, h, j, is_key, first_key, DOT, BLOCK_D)
            scores, seen = _scores(x, q, k, b, h, i, j, seen, queries, keys)
            scores = tl.where(seen, scores, -_INFINITY)
            higher = tl.maximum(maximum, tl.max(scores, axis=1))
            finite = tl.where(higher == -_INFINITY, 0.0, higher)
            shifted = scores - finite[:, None]
            e = tl.exp(shifted)
            # The largest score so far need not be visible: from -inf it falls by 0, as there is nothing to rescale.
            fall = tl.where(total == 0.0, 0.0, maximum - finite)
            keep = tl.exp(fall).to(tl.float64)
            if results.entropy is not None:
                part = tl.sum(e * tl.where(e == 0.0, 0.0, shifted), axis=1)
                moment = keep * (moment + fall.to(tl.float64) * total) + part.to(tl.float64)
            if results.squares is not None:
                squares = keep * keep * squares + tl.sum(e * e, axis=1).to(tl.float64)
            if results.distance is not None:
                far = tl.abs((j[None, :] - i[:, None]).to(tl.int64) - origin).to(tl.float32)
                part = tl.sum(e * far, axis=1)
                distances = keep * distances + part.to(tl.float64)
            total = keep * total + tl.sum(e, axis=1).to(tl.float64)
            maximum = higher
            if TOP > 0:
                order = tl.where(scores != scores, _INFINITY, tl.maximum(scores, _LOWEST))
                order = tl.where(seen, order, -_INFINITY)
                least = tl.min(top, axis=1)
                best = tl.max(order, axis=1)
                while tl.max(tl.where(best > least, 1, 0)) > 0:
                    # The tile's largest score that is left, the first of equal ones, in place of the least that is kept.
                    at_best = tl.min(tl.where(order == best[:, None], j[None, :], _FAR), axis=1)
                    is_least = top == least[:, None]
                    last_of = tl.max(tl.where(is_least, top_at, -_FAR), axis=1)
                    goes = is_least & (top_at == last_of[:, None]) & (best > least)[:, None]
                    top = tl.where(goes, best[:, None], top)
                    top_at = tl.where(goes, at_best[:, None], top_at)
                    order = tl.where(j[None, :] == at_best[:, None], -_INFINITY, order)
                    least = tl.min(top, axis=1)
                    best = tl.max(order, axis=1)

    of_keys = total
    if sinks is not None:
        sink = tl.load(sinks + h)
        higher = tl.maximum(maximum, sink)
        finite = tl.where(higher == -_INFINITY, 0.0, higher)
        fall = tl.where(total == 0.0, 0.0, maximum - finite)
        keep = tl.exp(fall).to(tl.float64)
        moment = keep * (moment + fall.to(tl.float64) * total)
        squares = keep * keep * squares
        distances = keep * distances
        of_keys = keep * total
        total = of_keys + tl.exp(sink - finite).to(tl.float64)
        maximum = higher
    maximum = tl.where(maximum == -_INFINITY, 0.0, maximum)
    tl.store(results.maximum + at, maximum, mask=inside)
    tl.store(results.sum + at, total.to(tl.float32), mask=inside)
    divisor = tl.where(total == 0.0, 1.0, total)
    if results.entropy is not None:
        entropy = (of_keys * tl.log(divisor) - moment) / divisor
        # Rounding may make it negative; NaN stays.
        tl.store(results.entropy + at, tl.where(entropy < 0.0, 0.0, entropy).to(tl.float32), mask=inside)
    if results.squares is not None:
        tl.store(results.squares + at, (squares / divisor / divisor).to(tl.float32), mask=inside)
    if results.distance is not None:
        tl.store(results.distance + at, (distances / divisor).to(tl.float32), mask=inside)
    if TOP > 0:
        places = at[:, None] * TOP + slot[None, :]
        kept = inside[:, None] & (slot < TOP)[None, :]
        tl.store(results.top_scores + places, top, mask=kept)
        tl.store(results.top_positions + places, top_at, mask=kept)


@triton.jit
def second_mask(
    x,
    program,
    second,
    chosen,
    maximum,
    total,
    out,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """(B, H, Q): the weight on the keys that a second mask shows too. Keys that it cannot show are not visited."""
    tile, h, b = _tile_of(chosen, BLOCK_M)
    first_query, queries, first_key, keys = _sequence(x, b)
    i, inside, at = _rows_of(x, chosen, b, h, first_query, queries, tile, BLOCK_M)
    q = _load_query(x, b, h, i, inside, first_query, DOT, BLOCK_D)
    highest = tl.load(maximum + at, mask=inside, other=0.0)
    divisor = tl.load(total + at, mask=inside, other=1.0)
    result = tl.zeros([BLOCK_M], tl.float64)
    first, last = tile * BLOCK_M, tl.minimum(tile * BLOCK_M + BLOCK_M, queries) - 1
    begin, end = _key_range(program, b, first, last, queries, keys, keys * 0, keys)
    begin, end = _key_range(second, b, first, last, queries, keys, begin, end)
    end = tl.where(last < first, 0, end)
    for start in range(begin // BLOCK_N * BLOCK_N, end, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        is_key = j < keys
        within = inside[:, None] & is_key[None, :]
        seen = _shown(second, b, h, i, j, within, first_query, queries, first_key, keys)
        seen = _shown(program, b, h, i, j, seen, first_query, queries, first_key, keys)
        if tl.max(tl.where(seen, 1, 0)) > 0:
            k = _load_key(x, b, h, j, is_key, first_key, DOT, BLOCK_D)
            scores, seen = _scores(x, q, k, b, h, i, j, seen, queries, keys)
            result += tl.sum(_weights(scores, seen, highest, divisor), axis=1).to(tl.float64)
    tl.store(out + at, result.to(tl.float32), mask=inside)


@triton.jit
def received_weights(
    x,
    program,
    maximum,
    total,
    row_weights,
    row_strides,
    out,
    longest,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """(B, H, K): sum_i w_i a_ij, with keys outside. Rows of weight 0 are left out, even if they hold NaN."""
    pid = tl.program_id(0).to(tl.int64)
    tiles = tl.cdiv(longest, BLOCK_N)
    tile, h, b = (pid % tiles).to(tl.int32), (pid // tiles) % x.heads, pid // tiles // x.heads
    first_query, queries, first_key, keys = _sequence(x, b)
    j = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    is_key = j < keys
    k = _load_key(x, b, h, j, is_key, first_key, DOT, BLOCK_D)
    result = tl.zeros([BLOCK_N], tl.float64)
    last = tl.minimum(tile * BLOCK_N + BLOCK_N, keys) - 1
    begin, end = _query_range(program, b, tile * BLOCK_N, last, queries, keys)
    end = tl.where(last < tile * BLOCK_N, 0, tl.minimum(end, queries))
    begin = tl.maximum(begin, 0)
    rows = (_batch(x, b) * x.heads + h) * x.queries + first_query
    for start in range(begin // BLOCK_M * BLOCK_M, end, BLOCK_M):
        i = start + tl.arange(0, BLOCK_M)
        inside = i < queries
        if row_weights is not None:
            places = _batch(x, b) * row_strides[0] + h * row_strides[1] + (first_query + i) * row_strides[2]
            w = tl.load(row_weights + places, mask=inside, other=0.0)
            inside = inside & (w != 0.0)
        within = inside[:, None] & is_key[None, :]
        seen = _shown(program, b, h, i, j, within, first_query, queries, first_key, keys)
        if tl.max(tl.where(seen, 1, 0)) > 0:
            q = _load_query(x, b, h, i, inside, first_query, DOT, BLOCK_D)
            highest = tl.load(maximum + rows + i, mask=inside, other=0.0)
            divisor = tl.load(total + rows + i, mask=inside, other=1.0)
            scores, seen = _scores(x, q, k, b, h, i, j, seen, queries, keys)
            weights = _weights(scores, seen, highest, divisor)
            if row_weights is not None:
                weights = tl.where(seen, w[:, None] * weights, 0.0)
            result += tl.sum(weights, axis=0).to(tl.float64)
    at = (_batch(x, b) * x.heads + h) * x.keys + first_key + j
    tl.store(out + at, result.to(tl.float32), mask=is_key)


@triton.jit
def pooled_cells(
    x,
    program,
    maximum,
    total,
    query_edges,
    key_edges,
    rows,
    columns,
    cells,
    positions,
    IS_MAX: tl.constexpr,
    BLOCK_C: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The cells of one range of queries and BLOCK_C ranges of keys: sums, or largest weights with their positions.

    The rows of a tile are reduced first, then its columns into cells, so that a cell costs nothing beside its weights.
    """
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(columns, BLOCK_C)
    block, row = pid % blocks, (pid // blocks) % rows
    h, b = (pid // blocks // rows) % x.heads, pid // blocks // rows // x.heads
    first_query, queries, first_key, keys = _sequence(x, b)
    edges = query_edges + b * (rows + 1) + row
    i_first = tl.maximum(tl.load(edges), 0).to(tl.int32)
    i_end = tl.minimum(tl.load(edges + 1), queries).to(tl.int32)
    cell = block * BLOCK_C + tl.arange(0, BLOCK_C)
    is_cell = cell < columns
    edges = key_edges + b * (columns + 1) + cell
    low = tl.load(edges, mask=is_cell, other=0)
    high = tl.load(edges + 1, mask=is_cell, other=0)
    begin = tl.maximum(tl.min(tl.where(is_cell, low, _FAR)), 0).to(tl.int32)
    end = tl.minimum(tl.max(high), keys).to(tl.int32)
    begin, end = _key_range(program, b, i_first, i_end - 1, queries, keys, begin, end)
    sums = tl.zeros([BLOCK_C], tl.float64)
    best = tl.full([BLOCK_C], -1.0, tl.float32)
    best_i = tl.full([BLOCK_C], -1, tl.int32)
    best_j = tl.full([BLOCK_C], -1, tl.int32)
    at_rows = (_batch(x, b) * x.heads + h) * x.queries + first_query
    for i_start in range(i_first // BLOCK_M * BLOCK_M, i_end, BLOCK_M):
        i = i_start + tl.arange(0, BLOCK_M)
        inside = (i >= i_first) & (i < i_end)
        q = _load_query(x, b, h, i, inside, first_query, DOT, BLOCK_D)
        highest = tl.load(maximum + at_rows + i, mask=inside, other=0.0)
        divisor = tl.load(total + at_rows + i, mask=inside, other=1.0)
        for start in range(begin // BLOCK_N * BLOCK_N, end, BLOCK_N):
            j = start + tl.arange(0, BLOCK_N)
            is_key = j < keys
            within = inside[:, None] & is_key[None, :]
            seen = _shown(program, b, h, i, j, within, first_query, queries, first_key, keys)
            if tl.max(tl.where(seen, 1, 0)) > 0:
                k = _load_key(x, b, h, j, is_key, first_key, DOT, BLOCK_D)
                scores, seen = _scores(x, q, k, b, h, i, j, seen, queries, keys)
                weights = _weights(scores, seen, highest, divisor)
                belongs = (j[:, None] >= low[None, :]) & (j[:, None] < high[None, :])
                if IS_MAX:
                    order = tl.where(weights != weights, _INFINITY, weights)
                    order = tl.where(seen, order, -1.0)
                    of_key = tl.max(order, axis=0)
                    is_it = seen & (order == of_key[None, :])
                    i_of_key = tl.min(tl.where(is_it, i[:, None], _FAR), axis=0)
                    spread = tl.where(belongs, of_key[:, None], -1.0)
                    here = tl.max(spread, axis=0)
                    is_it = belongs & (spread == here[None, :]) & (here >= 0.0)[None, :]
                    i_here = tl.min(tl.where(is_it, i_of_key[:, None], _FAR), axis=0)
                    is_it = is_it & (i_of_key[:, None] == i_here[None, :])
                    j_here = tl.min(tl.where(is_it, j[:, None], _FAR), axis=0)
                    # Tiles follow each other by query, then by key, but a later tile's query may be the smaller one.
                    is_new = (here > best) | ((here == best) & (here >= 0.0) & (i_here < best_i))
                    best = tl.where(is_new, here, best)
                    best_i = tl.where(is_new, i_here, best_i)
                    best_j = tl.where(is_new, j_here, best_j)
                else:
                    of_key = tl.sum(weights, axis=0)
                    sums += tl.sum(tl.where(belongs, of_key[:, None], 0.0), axis=0).to(tl.float64)
    at = ((b * x.heads + h) * rows + row) * columns + cell
    if IS_MAX:
        result = tl.where(best == _INFINITY, float("nan"), tl.maximum(best, 0.0))
        tl.store(cells + at, result, mask=is_cell)
        tl.store(positions + at * 2, best_i.to(tl.int64), mask=is_cell)
        tl.store(positions + at * 2 + 1, best_j.to(tl.int64), mask=is_cell)
    else:
        count = tl.maximum(i_end - i_first, 1).to(tl.float64)
        tl.store(cells + at, (sums / count).to(tl.float32), mask=is_cell)


@triton.jit
def chosen_weights(
    x,
    program,
    chosen,
    maximum,
    total,
    key_list,
    count_keys,
    out,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """(sequences, heads, queries, keys) of a dense call: the weights of a selection; 0 where hidden."""
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(count_keys, BLOCK_N)
    tiles = tl.cdiv(chosen.count_queries, BLOCK_M)
    block, tile = (pid % blocks).to(tl.int32), ((pid // blocks) % tiles).to(tl.int32)
    head, sequence = (pid // blocks // tiles) % chosen.count_heads, pid // blocks // tiles // chosen.count_heads
    b, h = tl.load(chosen.sequences + sequence), tl.load(chosen.heads + head)
    first_query, queries, first_key, keys = _sequence(x, b)
    i, inside, at = _rows_of(x, chosen, b, h, first_query, queries, tile, BLOCK_M)
    place = block * BLOCK_N + tl.arange(0, BLOCK_N)
    is_key = place < count_keys
    j = tl.load(key_list + place, mask=is_key, other=0).to(tl.int32)
    q = _load_query(x, b, h, i, inside, first_query, DOT, BLOCK_D)
    k = _load_key(x, b, h, j, is_key, first_key, DOT, BLOCK_D)
    within = inside[:, None] & is_key[None, :]
    seen = _shown(program, b, h, i, j, within, first_query, queries, first_key, keys)
    scores, seen = _scores(x, q, k, b, h, i, j, seen, queries, keys)
    highest = tl.load(maximum + at, mask=inside, other=0.0)
    divisor = tl.load(total + at, mask=inside, other=1.0)
    weights = _weights(scores, seen, highest, divisor)
    rank = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row = ((sequence * chosen.count_heads + head) * chosen.count_queries + rank) * count_keys
    tl.store(out + row[:, None] + place[None, :], weights, mask=within)


@triton.jit
def probe(out):
    """Whether a kernel runs at all."""
    tl.store(out, 1.0)


IS_INTERPRETED = isinstance(probe, InterpretedFunction)
_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def dot_type(dtype: torch.dtype) -> Any:
    """What the operands of q . k are multiplied in: their own dtype, with sums in float32.

    The interpreter multiplies in float32, since NumPy has no bfloat16; products of two 16-bit numbers are the same there.
    """
    return tl.float32 if IS_INTERPRETED else _TYPES[dtype]
