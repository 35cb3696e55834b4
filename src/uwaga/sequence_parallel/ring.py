"""Attention and its gradients by a ring: a process holds its part and two blocks of what travels, whatever the mask.

Forward, blocks of keys and values travel from process to process, in order of their positions: a process sends a block on when it arrives,
then computes it while the next one is under way. The sums of a row go through its blocks (ops/attention/parts.py), from multiples of
PART_KEYS on, so they associate as in one process. Backward there are two such passes. In the first the gradients of the queries are summed
in the same way. In the second the queries travel, with their outputs and output gradients, past the keys, whose gradients are summed over
blocks from multiples of PART_QUERIES on. So no gradient is ever added up from the parts of several processes, which could not have the bits of
one process; docs/log.md says why one pass cannot do both.

A process does not compute the queries that it was given, but pieces that divide the work evenly (schedule.py); what is computed goes home.

Letters as in sequence.py. Tensors here have rows first, (n, B, H, D), since a part of their rows is then contiguous.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.ops import mask_program
from uwaga.ops.attention import parts
from uwaga.ops.attention.call import Call, Gradients, new_lse, new_output
from uwaga.ops.attention.parts import PART_KEYS, PART_QUERIES
from uwaga.ops.mask_program import Interval, MaskProgram
from uwaga.sequence_parallel.division import Division, rectangle_of
from uwaga.sequence_parallel.exchange import Message, RelayedMessages, rows_or_memory, rows_within, shared_rows
from uwaga.sequence_parallel.schedule import Plan, Steps, make_plan

# Messages of travelling blocks have tags from here on, one for each block.
_TRAVEL = 7200
# Blocks of keys whose gradients are summed together: kBlockKeys of native/kernels/kernels.h.
KEY_STEP = 64

Intervals = Sequence[Sequence[Interval]]  # of each process, at least one


@dataclass(slots=True)
class Rows:
    """The queries that this process computes, piece by piece."""

    plan: Plan
    query: list[Tensor]  # (n, B, H, D)
    output: list[Tensor]  # (n, B, H, E)
    lse: list[Tensor]  # (n, B, H)

    def tensors(self) -> list[Tensor]:
        return [*self.query, *self.output, *self.lse]

    @classmethod
    def of(cls, plan: Plan, tensors: Sequence[Tensor]) -> "Rows":
        """Return the rows from the result of their method `tensors`."""
        count = len(tensors) // 3
        return cls(plan, *(list(tensors[n * count : (n + 1) * count]) for n in range(3)))


def forward(division: Division, call: Call) -> tuple[Tensor, Tensor, Rows]:
    """Return the output (B, H, n, E) and lse (B, H, n) of this process's queries, and what `backward` needs. `call` has this process's part of the
    operands, and the mask of the whole sequence."""
    plan, rank = plan_of_queries(division, call), division.group.rank
    homes, pieces = home_intervals(division.query_starts), plan_intervals(division, plan)
    query = move_rows(division, "query", [by_rows(call.query)], homes, pieces)
    at_home, lse_at_home = new_output(call), new_lse(call)
    # A piece of queries that are at home is computed where its results belong.
    output, lse = (rows_or_memory([by_rows(x)], homes[rank], pieces[rank]) for x in (at_home, lse_at_home))
    sums: dict[int, Tensor] = {}
    for at, rows, block, (key, value), is_first, is_last in key_visits(division, call, plan, "keys and values"):
        part = part_of(division, call, (query[at], key, value), rows, block)
        if is_first:
            sums[at] = parts.new_sums(parts.row_sums(part))
        result = (by_heads(output[at]), by_heads(lse[at])) if is_last else (None, None)
        parts.forward(part, sums[at], not is_first, *result)
        if is_last:
            del sums[at]
    move_rows(division, "output", output, pieces, homes, [by_rows(at_home)])
    move_rows(division, "lse", lse, pieces, homes, [by_rows(lse_at_home)])
    return at_home, lse_at_home, Rows(plan, query, output, lse)


def backward(
    division: Division, call: Call, rows: Rows, grad_output: Tensor, grad_lse: Tensor | None, needs: Sequence[bool]
) -> Gradients:
    """Return the gradients of this process's parts of query, key and value, and of relative and sinks by the queries that it computes. `needs`: what
    some process needs, of query, key, value, relative, bias and sinks."""
    homes, pieces = home_intervals(division.query_starts), plan_intervals(division, rows.plan)
    grads = [move_rows(division, "gradient of the output", [by_rows(grad_output)], homes, pieces)]
    if grad_lse is not None:
        grads.append(move_rows(division, "gradient of the lse", [by_rows(grad_lse)], homes, pieces))
    # The queries of each piece, and what the backward pass reads with them.
    read = list(zip(rows.query, rows.output, rows.lse, *grads, strict=True))
    query = key = value = relative = bias = sinks = None
    if needs[0] or any(needs[3:]):
        query, relative, bias, sinks = _backward_of_queries(division, call, rows.plan, read, needs)
    if needs[1] or needs[2]:
        key, value = _backward_of_keys(division, call, rows.plan, read)
    return query, key, value, relative, bias, sinks


def _backward_of_queries(
    division: Division, call: Call, plan: Plan, read: Sequence[Sequence[Tensor]], needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of query, relative, bias and sinks: keys and values travel."""
    homes, pieces = home_intervals(division.query_starts), plan_intervals(division, plan)
    relative = torch.zeros_like(call.relative) if needs[3] and call.relative is not None else None
    sinks = torch.zeros_like(call.sinks) if needs[5] and call.sinks is not None else None
    bias = torch.zeros(call.bias.shape, dtype=torch.float32) if needs[4] and call.bias is not None else None
    results = [torch.empty_like(query) for query, *_ in read]
    sums: dict[int, Tensor] = {}
    for at, rows, block, (key, value), is_first, is_last in key_visits(
        division, call, plan, "keys and values of the backward pass"
    ):
        query, *of_rows = read[at]
        part = part_of(division, call, (query, key, value), rows, block)
        if is_first:
            sums[at] = parts.new_sums(parts.query_sums(part))
        pairs = None if bias is None else torch.zeros(*part.query.shape[:3], part.key.shape[2])
        result = parts.Results(
            query=by_heads(results[at]) if is_last else None,
            relative=relative,
            sinks=sinks if is_first else None,
            bias=pairs,
        )
        part_sums = parts.Sums(sums[at], None, None, not is_first, False)
        parts.backward(part, parts.Rows(*map(by_heads, of_rows)), part_sums, result)
        if bias is not None and pairs is not None:
            of_part = rectangle_of(bias, rows, block)
            of_part += pairs.sum_to_size(of_part.shape)
        if is_last:
            del sums[at]
    (at_home,) = move_rows(division, "gradient of the query", results, pieces, homes)
    if bias is not None and call.bias is not None:
        bias = bias.to(call.bias.dtype)
    return by_heads(at_home), relative, bias, sinks


def _backward_of_keys(
    division: Division, call: Call, plan_of_queries: Plan, read: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of key and value: queries travel, with what belongs to them."""
    plan = plan_of_keys(division, call)
    homes, pieces = home_intervals(division.key_starts), plan_intervals(division, plan)
    key, value = (
        move_rows(division, name, [by_rows(x)], homes, pieces) for name, x in (("key", call.key), ("value", call.value))
    )
    grad_key, grad_value = ([torch.empty_like(x) for x in tensors] for tensors in (key, value))
    sums: dict[int, tuple[Tensor, Tensor]] = {}
    for at, keys, block, (query, *of_rows), is_first, is_last in all_visits(
        division, plan, "queries of the backward pass", read, plan_intervals(division, plan_of_queries)
    ):
        part = part_of(division, call, (query, key[at], value[at]), block, keys)
        if is_first:
            counts = (parts.key_sums(by_heads(x)) for x in (key[at], value[at]))
            of_key, of_value = (parts.new_sums(count) for count in counts)
            sums[at] = of_key, of_value
        result = (
            parts.Results(key=by_heads(grad_key[at]), value=by_heads(grad_value[at])) if is_last else parts.Results()
        )
        part_sums = parts.Sums(None, *sums[at], False, not is_first)
        parts.backward(part, parts.Rows(*map(by_heads, of_rows)), part_sums, result)
        if is_last:
            del sums[at]
    (own_key,) = move_rows(division, "gradient of the key", grad_key, pieces, homes)
    (own_value,) = move_rows(division, "gradient of the value", grad_value, pieces, homes)
    return by_heads(own_key), by_heads(own_value)


class _Visit(NamedTuple):
    """A block of what travels at one of this process's pieces."""

    at: int  # which of its pieces
    piece: Interval
    block: Interval
    operands: Sequence[Tensor]  # of the block, (n, ...)
    is_first: bool  # of the piece's blocks
    is_last: bool


def all_visits(
    division: Division, plan: Plan, what: str, tensors: Sequence[Sequence[Tensor]], held: Intervals
) -> Iterator[_Visit]:
    """Return the blocks that this process's pieces need, in order; an empty one, once, for a piece that needs none. Arguments as of `travel`."""
    numbers = plan.pieces_of(division.group.rank)
    pieces = [(at, plan.pieces[n].rows, plan.blocks_of(n)) for at, n in enumerate(numbers)]
    for b, block, operands in travel(division, plan, what, tensors, held):
        for at, piece, blocks in pieces:
            if b in blocks:
                yield _Visit(at, piece, block, operands, b == blocks[0], b == blocks[-1])
    for at, piece, blocks in pieces:
        if not blocks:
            yield _Visit(at, piece, (0, 0), [x[:0] for x in tensors[0]], True, True)


def key_visits(division: Division, call: Call, plan: Plan, what: str) -> Iterator[_Visit]:
    """Return the visits of keys and values."""
    tensors = [[by_rows(x) for x in (call.key, call.value)]]
    return all_visits(division, plan, what, tensors, home_intervals(division.key_starts))


def travel(
    division: Division, plan: Plan, what: str, tensors: Sequence[Sequence[Tensor]], held: Intervals
) -> Iterator[tuple[int, Interval, list[Tensor]]]:
    """Return the blocks that this process needs, in order: their number, their interval, and the rows of each operand, (n, ...), until the next one.

    Every block visits the processes that need it one after another, from the one that has its first rows on, in the order of the ranks. While
    one is computed, the next one arrives, and leaves if it begins its way here. No order of processes locks them: a process waits for a block from the
    one before it in the block's order, or for the one after it to take an earlier block, and blocks are taken in order.

    Args:
        tensors: for each interval of held[rank] its rows of all operands, in any strides.
    """
    group = division.group
    orders = []
    for b, interval in enumerate(plan.blocks):
        first = next(rank for rank in range(group.size) if any(shared_rows(x, interval) for x in held[rank]))
        orders.append(plan.visits(b, first, group.size))
    needed = [b for b, visits in enumerate(orders) if group.rank in visits]
    longest = max((last - first for first, last in plan.blocks), default=0)
    buffers = [[x.new_empty((longest, *x.shape[1:])) for x in tensors[0]] for _ in range(min(len(needed), 2))]
    leaving: dict[int, list[Message | None]] = {}  # blocks on their way to the next process
    with RelayedMessages(group, f"call {division.number}, {what}") as messages:

        def send(to: int, b: int, operands: Sequence[Tensor]) -> list[Message | None]:
            return [messages.send(to, x.contiguous(), _TRAVEL + b) for x in operands]

        def send_on(b: int, operands: Sequence[Tensor]) -> None:
            following = orders[b][orders[b].index(group.rank) + 1 :]
            if b not in leaving:
                leaving[b] = send(following[0], b, operands) if following else []

        def operands_here(b: int) -> list[Tensor]:
            """Return the operands of a block that begins its way here, if all of it is in one interval; else empty."""
            found = [rows_within(x, held[group.rank], plan.blocks[b]) for x in zip(*tensors, strict=True)]
            return [x for x in found if x is not None] if orders[b][:1] == [group.rank] else []

        def take(n: int) -> _Block:
            """Return the n-th block that is needed. What is not here is under way to it; what is whole leaves for the next process."""
            b = needed[n]
            (first, last), at = plan.blocks[b], orders[b].index(group.rank)
            if here := operands_here(b):
                send_on(b, here)
                return _Block(here, in_buffer=False)
            block = _Block([x[: last - first] for x in buffers[n % 2]])
            if at > 0:
                block.arriving = [messages.receive(orders[b][at - 1], x, _TRAVEL + b) for x in block.operands]
            for rank in range(group.size) if at == 0 else ():
                for k, interval in enumerate(held[rank]):
                    for part, place in shared_rows(interval, (first, last)):
                        for m, x in enumerate(block.operands):
                            if rank == group.rank:
                                x[place] = tensors[k][m][part]
                            else:
                                block.arriving.append(messages.receive(rank, x[place], _TRAVEL + b))
            return block

        for b, visits in enumerate(orders):
            if visits and visits[0] != group.rank:
                for interval, operands in zip(held[group.rank], tensors, strict=True):
                    for part, _ in shared_rows(interval, plan.blocks[b]):
                        send(visits[0], b, [x[part] for x in operands])
        early, late = turns_of(orders, group.rank)
        before, ahead = None, take(0) if needed else None
        for n, b in enumerate(needed):
            block = ahead
            assert block is not None
            for other in early.get(n, ()):
                if here := operands_here(other):
                    send_on(other, here)
            messages.wait(block.arriving)
            send_on(b, block.operands)
            if before is not None and before.in_buffer:
                messages.wait(leaving[needed[n - 1]])  # its buffer is free for the block after this
            for other in late.get(n, ()):
                messages.wait(leaving.pop(other))  # the copy that was sent is given up
            before, ahead = block, take(n + 1) if n + 1 < len(needed) else None
            yield b, plan.blocks[b], block.operands


@dataclass(slots=True)
class _Block:
    """A block of what travels, while it is here: its operands, (n, ...) each, whether they are no views of what this process has, and what of them is
    still to arrive."""

    operands: list[Tensor]
    in_buffer: bool = True
    arriving: list[Message | None] = field(default_factory=list)


def turns_of(orders: Sequence[Sequence[int]], rank: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return the blocks that begin their way at a process and go on, by how many blocks it has taken when it sends them, if that is before their turn, and when it
    waits until the next process has them. They are sent early where the next one takes them earlier than this one, as under a window, where else each process
    would begin when the one before it ends; and they are waited for once both have had the time to take them, so that few are on their way."""
    early: dict[int, list[int]] = {}
    late: dict[int, list[int]] = {}
    taken: Counter[int] = Counter()  # by each process, before this block
    for b, visits in enumerate(orders):
        if visits[:1] == [rank] and len(visits) > 1:
            here, there = taken[rank], taken[visits[1]]
            if there < here:
                early.setdefault(max(there - 1, 0), []).append(b)
            late.setdefault(max(here, there) + 1, []).append(b)
        taken.update(visits)
    return early, late


def part_of(
    division: Division, call: Call, operands: tuple[Tensor, Tensor, Tensor], rows: Interval, keys: Interval
) -> Call:
    """Return the call of these rows of query, key and value, (n, B, H, D), as a call of their own."""
    query, key, value = map(by_heads, operands)
    return division.part(call, query, key, value, rows, keys)


def plan_of_queries(division: Division, call: Call, second: tuple[MaskProgram, Sequence[Tensor]] = ((), ())) -> Plan:
    """Plan queries that stay, and keys that travel: those that a second mask, of the whole, shows too."""
    masks = (call.options.mask_program, call.mask_tensors), second
    memories: list[mask_program.Memo] = [{}, {}]

    def seen(rows: Interval) -> Interval:
        (begin, end), (also_begin, also_end) = (
            mask_program.keys_seen(*mask, division.sizes, rows, memory)
            for mask, memory in zip(masks, memories, strict=True)
        )
        begin = max(begin, also_begin)
        return begin, max(begin, min(end, also_end))

    return make_plan(seen, *division.sizes, Steps(PART_QUERIES, PART_KEYS), division.group.size)


def plan_of_keys(division: Division, call: Call) -> Plan:
    """Plan keys that stay, and queries that travel."""
    queries, keys = division.sizes
    memory: mask_program.Memo = {}

    def seen(columns: Interval) -> Interval:
        mask = call.options.mask_program, call.mask_tensors
        return mask_program.queries_that_see(*mask, division.sizes, columns, memory)

    return make_plan(seen, keys, queries, Steps(KEY_STEP, PART_QUERIES), division.group.size)


def move_rows(
    division: Division,
    name: str,
    tensors: Sequence[Tensor],
    held: Intervals,
    needed: Intervals,
    into: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Move rows of a tensor from the processes that have them to those that need them: see `Group.rows`."""
    return division.group.rows(f"call {division.number}, {name}", [x.detach() for x in tensors], held, needed, into)


def home_intervals(starts: Sequence[int]) -> Intervals:
    """Return the part of each process, as it was given."""
    return [[interval] for interval in pairwise(starts)]


def plan_intervals(division: Division, plan: Plan) -> Intervals:
    """Return the pieces of each process; an empty one where it has none, so that the types of tensors are known."""
    return [intervals or [(0, 0)] for intervals in plan.intervals(division.group.size)]


def by_rows(x: Tensor) -> Tensor:
    """Return (n, B, H, ...) of (B, H, n, ...), detached."""
    return x.detach().movedim(2, 0)


def by_heads(x: Tensor) -> Tensor:
    """Return (B, H, n, ...) of (n, B, H, ...)."""
    return x.movedim(0, 2)
