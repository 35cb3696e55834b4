"""The gradients by heads: a process computes those of some key heads, with the query heads that read them, over the whole sequence.

So one pass of five products has them all, as in one process, where the two passes of a ring have seven (ring.py). Parts of all operands
go to the process that has their head, while it computes the one before, and parts of the gradients come home: the all-to-all of Jacobs et al.,
"DeepSpeed Ulysses", 2023.

Letters as in sequence.py; R query heads of a key head.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.ops import mask_program
from uwaga.ops.attention import parts
from uwaga.ops.attention.call import Call, Gradients
from uwaga.ops.mask_program import CallPart
from uwaga.sequence_parallel.division import Division
from uwaga.sequence_parallel.exchange import Message, RelayedMessages

_THERE, _BACK = 7150, 7151  # tags
_PRODUCTS = 5 / 7  # of the ring's
_OF_KEYS = ("key", "value")


class _Unit(NamedTuple):
    """A key head of a sequence, and who computes it."""

    rank: int
    sequence: int
    head: int


def serves(division: Division, call: Call) -> bool:
    """Whether there are so many key heads that fewer products make up for processes with fewer of them than others. The gradient of a bias tensor
    is the ring's, which never has all pairs of a head."""
    heads, size = call.key.shape[1], division.group.size
    return call.bias is None and heads >= -(-heads // size) * size * _PRODUCTS


def backward(
    division: Division,
    call: Call,
    output: Tensor,
    lse: Tensor,
    grad_output: Tensor,
    grad_lse: Tensor | None,
    needs: Sequence[bool],
) -> Gradients:
    """The gradients of this process's parts of query, key and value, and of relative and sinks by the heads that it computes.

    Args:
        output, lse: what the forward pass gave for this process's queries.
        grad_output, grad_lse: their gradients.
        needs: what some process needs, of query, key, value, relative, bias and sinks.
    """
    own = {"query": call.query, "output": output, "lse": lse, "grad_output": grad_output, "grad_lse": grad_lse}
    # (B, G, R, n, ...), of keys with R = 1
    given = {
        name: x.detach().unflatten(1, (-1, call.heads_per_key_head)) for name, x in own.items() if x is not None
    } | {name: x.detach()[:, :, None] for name, x in zip(_OF_KEYS, (call.key, call.value), strict=True)}
    names = [name for name, needed in zip(("query", *_OF_KEYS), needs, strict=False) if needed]
    home = {name: torch.empty(given[name].shape, dtype=call.query.dtype) for name in names}
    relative = torch.zeros_like(call.relative) if needs[3] and call.relative is not None else None
    sinks = torch.zeros_like(call.sinks) if needs[5] and call.sinks is not None else None
    rounds = _rounds(call, division.group.size)
    with RelayedMessages(division.group, f"call {division.number}, heads of the backward pass") as messages:
        exchange = _Exchange(division, messages)
        for unit in (unit for units in rounds for unit in units):
            if unit.rank != division.group.rank:
                for name in names:
                    exchange.receive(unit.rank, home[name][unit.sequence, unit.head])
        arrivals = deque(exchange.gather(units, given) for units in rounds[:1])
        for n in range(len(rounds)):
            arrived = arrivals.popleft()
            messages.wait(arrived.messages)
            arrivals.extend(exchange.gather(units, given) for units in rounds[n + 1 : n + 2])
            if arrived.unit is None:
                continue
            _, sequence, head = arrived.unit
            heads = slice(head * call.heads_per_key_head, (head + 1) * call.heads_per_key_head)
            of_head = (x if x is None else x[heads] for x in (relative, sinks))
            whole = {name: x[None] for name, x in arrived.whole.items()}
            results = _gradients(_call_of(call, sequence, heads, whole), whole, names, *of_head)
            for name in names:
                exchange.scatter(name, results[name][0], home[name][sequence, head])
    return *(home[x].flatten(1, 2) if x in home else None for x in ("query", *_OF_KEYS)), relative, None, sinks


def _rounds(call: Call, size: int) -> list[list[_Unit]]:
    """One unit of each process at a time, while it has some. A process has all sequences of its heads: they may be of any lengths."""
    batch, heads = call.key.shape[:2]
    of_rank = [range(heads * rank // size, heads * (rank + 1) // size) for rank in range(size)]
    return [
        [_Unit(rank, sequence, own[n]) for rank, own in enumerate(of_rank) if n < len(own)]
        for n in range(max(map(len, of_rank)))
        for sequence in range(batch)
    ]


class _Arrival(NamedTuple):
    """The unit of this process in a round, and its operands (R, N, ...) once the messages are there."""

    unit: _Unit | None
    whole: dict[str, Tensor]
    messages: list[Message | None]


class _Exchange:
    """Parts (R, n, ...) of units, which every process sends and receives in the same order."""

    def __init__(self, division: Division, messages: RelayedMessages) -> None:
        self._rank, self._messages = division.group.rank, messages
        places = ([slice(*x) for x in pairwise(starts)] for starts in (division.query_starts, division.key_starts))
        self._of_queries, self._of_keys = places

    def _places(self, name: str) -> list[slice]:
        """Of each process among the tokens of the whole."""
        return self._of_keys if name in _OF_KEYS else self._of_queries

    def gather(self, units: Sequence[_Unit], given: dict[str, Tensor]) -> _Arrival:
        """Send this process's parts of these units, and receive those of its own one."""
        result = _Arrival(next((x for x in units if x.rank == self._rank), None), {}, [])
        for rank, sequence, head in units:
            for name, x in given.items():
                part, places = x[sequence, head], self._places(name)
                if rank != self._rank:
                    self._send(rank, part, _THERE)
                    continue
                whole = part.new_empty((len(part), places[-1].stop, *part.shape[2:]))
                whole[:, places[rank]] = part
                result.whole[name] = whole
                others = [n for n in range(len(places)) if n != rank]
                result.messages.extend(
                    self._messages.receive(n, row[places[n]], _THERE) for n in others for row in whole
                )
        return result

    def receive(self, rank: int, part: Tensor) -> None:
        """The part of a gradient that comes home; contiguous."""
        for row in part:
            self._messages.receive(rank, row, _BACK)

    def scatter(self, name: str, whole: Tensor, home: Tensor) -> None:
        """Send the parts of a gradient home."""
        for rank, place in enumerate(self._places(name)):
            if rank == self._rank:
                home.copy_(whole[:, place])
            else:
                self._send(rank, whole[:, place], _BACK)

    def _send(self, rank: int, part: Tensor, tag: int) -> None:
        for row in part:
            self._messages.send(rank, row.contiguous(), tag)


def _call_of(call: Call, sequence: int, heads: slice, whole: dict[str, Tensor]) -> Call:
    """The call of some query heads of a sequence, with the whole of their operands."""
    own = slice(sequence, sequence + 1)
    part = CallPart(own, torch.arange(heads.start, heads.stop))
    starts = call.relative_starts
    return replace(
        call,
        query=whole["query"],
        key=whole["key"],
        value=whole["value"],
        relative=None if call.relative is None else call.relative[heads],
        sinks=None if call.sinks is None else call.sinks[heads],
        relative_starts=None if starts is None else starts[own],
        # The kernels add the number of sequence and head to it.
        seed=None if call.seed is None else call.seed + sequence * call.query.shape[1] + heads.start,
        mask_tensors=mask_program.select(call.options.mask_program, call.mask_tensors, part),
        options=replace(call.options, max_queries=whole["query"].shape[2], max_keys=whole["key"].shape[2]),
    )


def _gradients(
    call: Call, whole: dict[str, Tensor], names: Sequence[str], relative: Tensor | None, sinks: Tensor | None
) -> dict[str, Tensor]:
    """Those that are named; those of relative and sinks are added to."""
    results = {name: torch.empty_like(whole[name]) for name in names}
    rows = parts.Rows(whole["output"], whole["lse"], whole["grad_output"], whole.get("grad_lse"))
    parts.backward(
        call, rows, parts.Sums(None, None, None, False, False), parts.Results(**results, relative=relative, sinks=sinks)
    )
    return results
