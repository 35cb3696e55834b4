"""Attention and its gradients by a ring: a process holds its part and two blocks of what travels, whatever the mask.

Forward, blocks of keys and values travel from process to process, in order of their positions: a process sends a block on when it arrives,
then computes it while the next one is under way. The sums of a row go through its blocks (ops/attention/parts.py), from multiples of
PART_KEYS on, so they associate as in one process. Backward there are two such passes. In the first the gradients of the queries are summed
in the same way. In the second the queries travel, with their outputs and output gradients, past the keys, whose gradients are summed over
blocks from multiples of PART_QUERIES on. So no gradient is ever added up from the parts of several processes, which could not have the bits of
one process; docs/log/2026-11-27.md says why one pass cannot do both.

A process does not compute the queries that it was given, but pieces that divide the work evenly (schedule.py); what is computed goes home.

Letters as in sequence.py. Tensors here have rows first, (n, B, H, D), since a part of their rows is then contiguous.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.ops import mask_program
from uwaga.ops.attention import parts
from uwaga.ops.attention.call import Call, Gradients, new_lse, new_output
from uwaga.ops.attention.parts import PART_KEYS, PART_QUERIES, padded
from uwaga.ops.mask_program import Interval
from uwaga.sequence_parallel.division import Division
from uwaga.sequence_parallel.exchange import Message, RelayedMessages, shared_rows
from uwaga.sequence_parallel.schedule import Plan, Steps, make_plan

# Messages of travelling blocks have tags from here on, one for each block.
_TRAVEL = 7200
# Blocks of keys whose gradients are summed together: kBlockKeys of native/kernels/kernels.h.
_KEY_STEP = 64

Intervals = Sequence[Sequence[Interval]]  # of each process, at least one


@dataclass(slots=True)
class Rows:
    """The queries that this process computes, piece by piece."""

    plan: Plan
    query: list[Tensor]  # (n, B, H, D)
    output: list[Tensor]  # (n, B, H, E)
    lse: list[Tensor]  # (n, B, H)


def forward(division: Division, call: Call) -> tuple[Tensor, Tensor, Rows]:
    """The output (B, H, n, E) and lse (B, H, n) of this process's queries, and what `backward` needs. `call` has this process's part of the
    operands, and the mask of the whole sequence."""
    plan = _plan_of_queries(division, call)
    pieces = _held(division, plan)
    query = _moved(division, "query", [_rows(call.query)], _homes(division.query_starts), pieces)
    output = [x.new_empty((*x.shape[:3], call.value.shape[3])) for x in query]
    lse = [x.new_empty(x.shape[:3], dtype=torch.float32) for x in query]
    sums: list[Tensor | None] = [None] * len(query)

    def compute(at: int, n: int, block: Interval, key: Tensor, value: Tensor, is_first: bool, is_last: bool) -> None:
        part = _part(division, call, (query[at], key, value), plan.pieces[n].rows, block)
        given = sums[at] = query[at].new_empty(parts.row_sums(part), dtype=torch.float32) if is_first else sums[at]
        assert given is not None
        result = (_heads(output[at]), lse[at].permute(1, 2, 0)) if is_last else (None, None)
        parts.forward(part, given, not is_first, *result)
        if is_last:
            sums[at] = None

    for visit in _key_visits(division, call, plan, "keys and values"):
        compute(*visit)
    homes = _homes(division.query_starts)
    at_home, lse_at_home = new_output(call), new_lse(call)
    at_home.permute(2, 0, 1, 3).copy_(_moved(division, "output", output, pieces, homes)[0])
    lse_at_home.permute(2, 0, 1).copy_(_moved(division, "lse", lse, pieces, homes)[0])
    return at_home, lse_at_home, Rows(plan, query, output, lse)


@dataclass(slots=True)
class SoftmaxRows:
    """The softmax of the queries that this process computes, piece by piece."""

    plan: Plan
    query: list[Tensor]  # (n, B, H, D)
    maximum: list[Tensor]  # (n, B, H)
    total: list[Tensor]  # (n, B, H)


def softmax(division: Division, call: Call) -> tuple[Tensor, Tensor, SoftmaxRows]:
    """The maximum and the sum (B, H, n) of the softmax of this process's queries, and what `received` needs. The call's value has E = 0."""
    plan = _plan_of_queries(division, call)
    pieces = _held(division, plan)
    query = _moved(division, "query", [_rows(call.query)], _homes(division.query_starts), pieces)
    maximum, total = ([x.new_empty(x.shape[:3], dtype=torch.float32) for x in query] for _ in range(2))
    sums = [x.new_empty(x[..., 0].numel() * 2, dtype=torch.float32) for x in query]
    for at, n, block, key, _, is_first, is_last in _key_visits(division, call, plan, "keys"):
        part = _part(division, call, (query[at], key, key[..., :0]), plan.pieces[n].rows, block)
        result = (maximum[at].permute(1, 2, 0), total[at].permute(1, 2, 0)) if is_last else (None, None)
        parts.softmax(part, sums[at], not is_first, *result)
    homes = _homes(division.query_starts)
    at_home = [_moved(division, "softmax", x, pieces, homes)[0].permute(1, 2, 0) for x in (maximum, total)]
    return at_home[0], at_home[1], SoftmaxRows(plan, query, maximum, total)


def received(division: Division, call: Call, rows: SoftmaxRows) -> Tensor:
    """(B, H, m): the weights that this process's keys receive from all queries, which travel."""
    plan, rank = _plan_of_keys(division, call), division.group.rank
    homes, pieces = _homes(division.key_starts), _held(division, plan)
    key = _moved(division, "key", [_rows(call.key)], homes, pieces)
    batch, heads = call.query.shape[:2]
    results = [x.new_zeros((len(x), batch, heads), dtype=torch.float32) for x in key]
    sums = [x.new_empty(x.numel(), dtype=torch.float64) for x in results]
    travelling = list(zip(rows.query, rows.maximum, rows.total, strict=True))
    for b, block, (query, maximum, total) in _travel(division, plan, "queries", travelling, _held(division, rows.plan)):
        for at, n in enumerate(plan.pieces_of(rank)):
            blocks = plan.blocks_of(n)
            if b in blocks:
                part = _part(division, call, (query, key[at], key[at][..., :0]), block, plan.pieces[n].rows)
                out = results[at].permute(1, 2, 0) if b == blocks[-1] else None
                of_rows = maximum.permute(1, 2, 0), total.permute(1, 2, 0)
                parts.received(part, of_rows, sums[at], b != blocks[0], out)
    (at_home,) = _moved(division, "received weights", results, pieces, homes)
    return at_home.permute(1, 2, 0)


def backward(
    division: Division,
    call: Call,
    rows: Rows,
    grad_output: Tensor,
    grad_lse: Tensor | None,
    needs: Sequence[bool],
) -> Gradients:
    """The gradients of this process's parts of query, key and value, and of relative and sinks by the queries that it computes. `needs`: what
    some process needs, of query, key, value, relative, bias and sinks."""
    homes, pieces = _homes(division.query_starts), _held(division, rows.plan)
    grad_outputs = _moved(division, "gradient of the output", [_rows(grad_output)], homes, pieces)
    grad_lses: list[Tensor] | None = None
    if grad_lse is not None:
        grad_lses = _moved(division, "gradient of the lse", [grad_lse.permute(2, 0, 1)], homes, pieces)
    query = key = value = relative = sinks = None
    if needs[0] or needs[3] or needs[5]:
        query, relative, sinks = _backward_of_queries(division, call, rows, grad_outputs, grad_lses, needs)
    if needs[1] or needs[2]:
        key, value = _backward_of_keys(division, call, rows, grad_outputs, grad_lses)
    return query, key, value, relative, None, sinks


def _backward_of_queries(
    division: Division,
    call: Call,
    rows: Rows,
    grad_outputs: list[Tensor],
    grad_lses: list[Tensor] | None,
    needs: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of query, relative and sinks: keys and values travel."""
    plan = rows.plan
    relative = torch.zeros_like(call.relative) if needs[3] and call.relative is not None else None
    sinks = torch.zeros_like(call.sinks) if needs[5] and call.sinks is not None else None
    results = [torch.empty_like(x) for x in rows.query]
    sums: list[Tensor | None] = [None] * len(results)

    def compute(at: int, n: int, block: Interval, key: Tensor, value: Tensor, is_first: bool, is_last: bool) -> None:
        part = _part(division, call, (rows.query[at], key, value), plan.pieces[n].rows, block)
        given = sums[at] = key.new_empty(parts.query_sums(part), dtype=torch.float32) if is_first else sums[at]
        read = parts.Rows(
            _heads(rows.output[at]),
            rows.lse[at].permute(1, 2, 0),
            _heads(grad_outputs[at]),
            None if grad_lses is None else grad_lses[at].permute(1, 2, 0),
        )
        result = parts.Results(
            query=_heads(results[at]) if is_last else None, relative=relative, sinks=sinks if is_first else None
        )
        parts.backward(part, read, parts.Sums(given, None, None, not is_first, False), result)
        if is_last:
            sums[at] = None

    for visit in _key_visits(division, call, plan, "keys and values of the backward pass"):
        compute(*visit)
    homes, pieces = _homes(division.query_starts), _held(division, plan)
    (query,) = _moved(division, "gradient of the query", results, pieces, homes)
    return _heads(query), relative, sinks


def _backward_of_keys(
    division: Division, call: Call, rows: Rows, grad_outputs: list[Tensor], grad_lses: list[Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The gradients of key and value: queries travel, with what belongs to them."""
    plan = _plan_of_keys(division, call)
    homes, pieces = _homes(division.key_starts), _held(division, plan)
    key, value = (
        _moved(division, name, [_rows(x)], homes, pieces) for name, x in (("key", call.key), ("value", call.value))
    )
    grad_key, grad_value = ([torch.empty_like(x) for x in each] for each in (key, value))
    sums: list[tuple[Tensor, Tensor] | None] = [None] * len(key)
    operands = [rows.query, rows.output, grad_outputs, rows.lse, *([] if grad_lses is None else [grad_lses])]
    travelling = list(zip(*operands, strict=True))
    own, rank = plan.pieces_of(division.group.rank), division.group.rank
    for n, at in zip(own, range(len(key)), strict=False):
        if not plan.blocks_of(n):
            grad_key[at].zero_()
            grad_value[at].zero_()
    for b, block, (query, output, grad_output, lse, *grad_lse) in _travel(
        division, plan, "queries of the backward pass", travelling, _held(division, rows.plan)
    ):
        for at, n in enumerate(plan.pieces_of(rank)):
            blocks = plan.blocks_of(n)
            if b not in blocks:
                continue
            is_first, is_last = b == blocks[0], b == blocks[-1]
            part = _part(division, call, (query, key[at], value[at]), block, plan.pieces[n].rows)
            if is_first:
                of_key, of_value = (parts.key_sums(_heads(x)) for x in (key[at], value[at]))
                sums[at] = torch.empty(of_key, dtype=torch.float32), torch.empty(of_value, dtype=torch.float32)
            given = sums[at]
            assert given is not None
            read = parts.Rows(
                _heads(output),
                lse.permute(1, 2, 0),
                _heads(grad_output),
                grad_lse[0].permute(1, 2, 0) if grad_lse else None,
            )
            result = (
                parts.Results(key=_heads(grad_key[at]), value=_heads(grad_value[at])) if is_last else parts.Results()
            )
            parts.backward(part, read, parts.Sums(None, *given, False, not is_first), result)
            if is_last:
                sums[at] = None
    (own_key,) = _moved(division, "gradient of the key", grad_key, pieces, homes)
    (own_value,) = _moved(division, "gradient of the value", grad_value, pieces, homes)
    return _heads(own_key), _heads(own_value)


class _KeyVisit(NamedTuple):
    """A block of keys and values at one of this process's pieces."""

    at: int  # which of its pieces, and the number of that piece in the plan
    piece: int
    block: Interval
    key: Tensor  # (n, B, G, D)
    value: Tensor  # (n, B, G, E)
    is_first: bool  # of the piece's blocks
    is_last: bool


def _key_visits(division: Division, call: Call, plan: Plan, what: str) -> Iterator[_KeyVisit]:
    """The keys and values that this process's pieces see, block by block in order; no keys, once, for a piece that sees none."""
    key, value = _rows(call.key), _rows(call.value)
    own = plan.pieces_of(division.group.rank)
    for b, block, (key_block, value_block) in _travel(
        division, plan, what, [(key.contiguous(), value.contiguous())], _homes(division.key_starts)
    ):
        for at, n in enumerate(own):
            blocks = plan.blocks_of(n)
            if b in blocks:
                yield _KeyVisit(at, n, block, key_block, value_block, b == blocks[0], b == blocks[-1])
    for at, n in enumerate(own):
        if not plan.blocks_of(n):
            yield _KeyVisit(at, n, (0, 0), key[:0], value[:0], True, True)


def _travel(
    division: Division, plan: Plan, what: str, own: Sequence[Sequence[Tensor]], held: Intervals
) -> Iterator[tuple[int, Interval, list[Tensor]]]:
    """The blocks that this process needs, in order: their number, their interval, and the rows of each operand, (n, ...), until the next one.

    Every block visits the processes that need it one after another, from the one that has its first rows on, in the order of the ranks. While
    one is computed, the next one arrives. No order of processes locks them: a process waits for a block from the one before it in the block's
    order, or for the one after it to take an earlier block, and blocks are taken in order.

    Args:
        own: for each interval of held[rank] its rows of all operands, contiguous.
    """
    group = division.group
    routes = []
    for block in plan.blocks:
        first = [rank for rank in range(group.size) if any(shared_rows(x, block) for x in held[rank])]
        routes.append(first)
    orders = [plan.visits(b, first[0], group.size) for b, first in enumerate(routes)]
    needed = [b for b, visits in enumerate(orders) if group.rank in visits]
    longest = max((last - first for first, last in plan.blocks), default=0)
    buffers = [_Buffer(own[0], longest) for _ in range(min(len(needed), 2))]
    with RelayedMessages(group, f"call {division.number}, {what}") as messages:
        for b, visits in enumerate(orders):
            for interval, operands in zip(held[group.rank], own, strict=True):
                for part, _ in shared_rows(interval, plan.blocks[b]):
                    for x in operands if visits and visits[0] != group.rank else ():
                        messages.send(visits[0], x[part], _TRAVEL + b)

        def receive(n: int) -> list[Message | None]:
            b, buffer = needed[n], buffers[n % 2]
            block, at = plan.blocks[b], orders[b].index(group.rank)
            buffer.divide(block[1] - block[0])
            if at > 0:
                return [messages.receive(orders[b][at - 1], buffer.memory, _TRAVEL + b)]
            arriving: list[Message | None] = []
            for rank in range(group.size):
                for k, interval in enumerate(held[rank]):
                    for part, place in shared_rows(interval, block):
                        for m, x in enumerate(buffer.operands):
                            if rank == group.rank:
                                x[place] = own[k][m][part]
                            else:
                                arriving.append(messages.receive(rank, x[place], _TRAVEL + b))
            return arriving

        arriving, leaving = receive(0) if needed else [], None
        for n, b in enumerate(needed):
            messages.wait(arriving)
            following = orders[b][orders[b].index(group.rank) + 1 :]
            sent = messages.send(following[0], buffers[n % 2].memory, _TRAVEL + b) if following else None
            messages.wait([leaving])  # its buffer is free for the block after this
            leaving = sent
            arriving = receive(n + 1) if n + 1 < len(needed) else []
            yield b, plan.blocks[b], buffers[n % 2].operands


class _Buffer:
    """Memory of one block: the rows of its operands, one after the other, so that one message has them all."""

    def __init__(self, like: Sequence[Tensor], rows: int) -> None:
        self._like = [(x.shape[1:], x.dtype) for x in like]
        self._whole = torch.empty(self._ends(rows)[-1], dtype=torch.uint8)
        self.divide(rows)

    def divide(self, rows: int) -> None:
        """Make `operands` those of a block of so many rows."""
        ends = self._ends(rows)
        self.memory = self._whole[: ends[-1]]
        self.operands = []
        for (shape, dtype), (first, _) in zip(self._like, pairwise(ends), strict=True):
            count = rows * prod(shape)
            memory = self._whole[first : first + count * dtype.itemsize].view(dtype)
            self.operands.append(memory.view(rows, *shape))

    def _ends(self, rows: int) -> list[int]:
        sizes = (padded(rows * prod(shape) * dtype.itemsize, 64) for shape, dtype in self._like)
        return [0, *accumulate(sizes)]


def _part(
    division: Division, call: Call, operands: tuple[Tensor, Tensor, Tensor], rows: Interval, keys: Interval
) -> Call:
    """The call of these rows of query, key and value, (n, B, H, D), as a call of their own."""
    query, key, value = map(_heads, operands)
    return division.part(call, query, key, value, rows, keys)


def _plan_of_queries(division: Division, call: Call) -> Plan:
    """Queries stay, keys travel."""
    program, tensors = call.options.mask_program, call.mask_tensors
    sizes = queries, keys = division.query_starts[-1], division.key_starts[-1]
    steps = Steps(PART_QUERIES, PART_KEYS)
    return make_plan(
        lambda rows: mask_program.keys_seen(program, tensors, sizes, rows), queries, keys, steps, division.group.size
    )


def _plan_of_keys(division: Division, call: Call) -> Plan:
    """Keys stay, queries travel."""
    program, tensors = call.options.mask_program, call.mask_tensors
    sizes = queries, keys = division.query_starts[-1], division.key_starts[-1]
    steps = Steps(_KEY_STEP, PART_QUERIES)
    return make_plan(
        lambda rows: mask_program.queries_that_see(program, tensors, sizes, rows),
        keys,
        queries,
        steps,
        division.group.size,
    )


def _moved(division: Division, name: str, own: Sequence[Tensor], held: Intervals, wanted: Intervals) -> list[Tensor]:
    """Rows of a tensor from where they are to where they are wanted."""
    return division.group.rows(f"call {division.number}, {name}", [x.detach() for x in own], held, wanted)


def _homes(starts: Sequence[int]) -> Intervals:
    """The part of each process, as it was given."""
    return [[interval] for interval in pairwise(starts)]


def _held(division: Division, plan: Plan) -> Intervals:
    """The pieces of each process; an empty one where it has none, so that the types of tensors are known."""
    return [intervals or [(0, 0)] for intervals in plan.intervals(division.group.size)]


def _rows(x_BHnD: Tensor) -> Tensor:
    return x_BHnD.detach().permute(2, 0, 1, 3)


def _heads(x_nBHD: Tensor) -> Tensor:
    return x_nBHD.permute(1, 2, 0, 3)
