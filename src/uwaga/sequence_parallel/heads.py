"""The gradients by heads: a process computes those of some key heads, with the query heads that read them, over the whole sequence.

So one pass of five products has them all, as in one process, where the two passes of a ring have seven (ring.py). Parts of the operands go to the
process that has their head, while it computes the one before, and parts of the gradients come home: the all-to-all of Jacobs et al., "DeepSpeed
Ulysses", 2023.

Letters as in sequence.py; R query heads of a key head.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from uwaga.ops.attention import parts
from uwaga.ops.attention.call import Call, Gradients
from uwaga.ops.attention.sequences import part_of
from uwaga.ops.mask_program import CallPart
from uwaga.sequence_parallel.division import Division
from uwaga.sequence_parallel.exchange import Message, RelayedMessages

_THERE, _BACK = 7150, 7151  # tags
_PRODUCTS = 5 / 7  # of the ring's
_NAMES = ("query", "key", "value")

_Operands = dict[str, Tensor]


def serves(division: Division, call: Call) -> bool:
    """Return whether there are so many key heads that fewer products make up for processes with fewer of them than others. The gradient of a bias tensor
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
    """Return what `ring.backward` returns; relative and sinks have the gradients of the heads that are computed here. output, lse: of this process's queries."""
    of_queries = {"query": call.query, "output": output, "lse": lse, "grad_output": grad_output, "grad_lse": grad_lse}
    # (B, G, R, n, ...), of keys with R = 1
    operands = {
        k: x.detach().unflatten(1, (-1, call.heads_per_key_head)) for k, x in of_queries.items() if x is not None
    }
    operands |= {"key": call.key.detach()[:, :, None], "value": call.value.detach()[:, :, None]}
    home = {
        k: torch.empty(operands[k].shape, dtype=call.query.dtype)
        for k, needed in zip(_NAMES, needs, strict=False)
        if needed
    }
    relative = torch.zeros_like(call.relative) if needs[3] and call.relative is not None else None
    sinks = torch.zeros_like(call.sinks) if needs[5] and call.sinks is not None else None
    for sequence, heads, whole, results in _exchanged(division, call, operands, home):
        of_heads = CallPart(slice(sequence, sequence + 1), torch.arange(heads.start, heads.stop))
        part = part_of(call, of_heads, whole["query"], whole["key"], whole["value"])
        of_head = (x if x is None else x[heads] for x in (relative, sinks))
        rows = parts.Rows(whole["output"], whole["lse"], whole["grad_output"], whole.get("grad_lse"))
        of_parameters = dict(zip(("relative", "sinks"), of_head, strict=True))
        parts.backward(
            part, rows, parts.Sums(None, None, None, False, False), parts.Results(**results, **of_parameters)
        )
    return *(home[k].flatten(1, 2) if k in home else None for k in _NAMES), relative, None, sinks


def _exchanged(
    division: Division, call: Call, operands: _Operands, home: _Operands
) -> Iterator[tuple[int, slice, _Operands, _Operands]]:
    """Yield, for each of this process's key heads in each sequence, the sequence, its query heads, their operands (1, R, N, ...), and gradients to be
    filled in before the next one, whose parts go home. A process has all sequences of its heads: they may be of any lengths."""
    me, size, (batch, heads) = division.group.rank, division.group.size, call.key.shape[:2]
    of_rank = [range(heads * rank // size, heads * (rank + 1) // size) for rank in range(size)]
    # A head of each process at a time, while it has some.
    rounds = [
        [(rank, sequence, numbers[n]) for rank, numbers in enumerate(of_rank) if n < len(numbers)]
        for n in range(max(map(len, of_rank)))
        for sequence in range(batch)
    ]
    queries, keys = ([slice(*x) for x in pairwise(starts)] for starts in (division.query_starts, division.key_starts))
    places = {name: keys if name in ("key", "value") else queries for name in operands}
    with RelayedMessages(division.group, f"call {division.number}, heads of the backward pass") as messages:
        sent: list[list[Message | None]] = []  # of each round: what is waited for is given up

        def send(rank: int, part: Tensor, tag: int) -> None:
            sent[-1] += [messages.send(rank, row.contiguous(), tag) for row in part]

        def gather(units: Sequence[tuple[int, int, int]]) -> tuple[_Operands, list[Message | None]]:
            whole: _Operands = {}
            arriving: list[Message | None] = []
            sent.append([])
            for rank, sequence, head in units:
                for name, x in operands.items():
                    if rank != me:
                        send(rank, x[sequence, head], _THERE)
                        continue
                    y = whole[name] = x.new_empty((x.shape[2], places[name][-1].stop, *x.shape[4:]))
                    for other, place in enumerate(places[name]):
                        if other == me:
                            y[:, place] = x[sequence, head]
                        else:
                            arriving += [messages.receive(other, row[place], _THERE) for row in y]
            return whole, arriving

        for rank, sequence, head in (unit for units in rounds for unit in units if unit[0] != me):
            for row in (row for x in home.values() for row in x[sequence, head]):
                messages.receive(rank, row, _BACK)
        ahead = gather(rounds[0]) if rounds else ({}, [])
        for n, units in enumerate(rounds):
            whole, arriving = ahead
            messages.wait(arriving)
            if n:
                messages.wait(sent[n - 1])
                sent[n - 1].clear()
            ahead = gather(rounds[n + 1]) if n + 1 < len(rounds) else ({}, [])
            for _, sequence, head in (unit for unit in units if unit[0] == me):
                of_key = slice(head * call.heads_per_key_head, (head + 1) * call.heads_per_key_head)
                results = {name: torch.empty_like(whole[name]) for name in home}
                batched, filled = ({name: x[None] for name, x in by_name.items()} for by_name in (whole, results))
                yield sequence, of_key, batched, filled
                for name, x in results.items():
                    for other, place in enumerate(places[name]):
                        if other == me:
                            home[name][sequence, head] = x[:, place]
                        else:
                            send(other, x[:, place], _BACK)
