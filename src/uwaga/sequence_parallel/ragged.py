"""Attention over Ragged batches whose tokens lie with several processes: each has consecutive tokens, with rows that end anywhere.

Rows that lie with one process are computed there. Each row that lies with several goes by the ring, one after another, as a sequence of its
own. A row has the same bits in any batch, so all are those of one process.

Letters as in sequence.py; R rows of the whole batch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.maps.spec import RowStatisticsRequest
from uwaga.ops import mask_program
from uwaga.ops.attention.arguments import AttentionOptions
from uwaga.ops.attention.autograd import run
from uwaga.ops.attention.call import Call
from uwaga.ops.mask_program import CallPart, Interval, SameDocument
from uwaga.ops.ragged import Operand, Ragged
from uwaga.sequence_parallel.division import (
    SIZES,
    Division,
    Refusal,
    agree_on_options,
    agree_on_sizes,
    call_of_part,
    sizes_of,
)
from uwaga.sequence_parallel.exchange import Group, known_to_all

# (how a row is divided, this process's part of it, whether gradients are recorded) -> its output and lse
AttendDivided = Callable[[Division, Call, bool], tuple[Tensor, Tensor]]


def attend(
    group: Group, rows: "Rows", call: Call, records: bool, attend_divided: AttendDivided
) -> tuple[Tensor, Tensor]:
    """Output (1, H, n, E) and lse (1, H, n) of this process's tokens, of what `divide_rows` returned."""
    # A row that lies elsewhere has no tokens here, and all the same a backward pass, which all processes run.
    pieces = [
        _attend_whole(part) if division is None else attend_divided(division, part, records)
        for division, part, _ in rows.parts_of_call(group, call)
    ]
    output, lse = map(joined, zip(*pieces, strict=True))
    return output, lse


def _attend_whole(call: Call) -> tuple[Tensor, Tensor]:
    output, lse = run(call, "cpu")
    return output, output.new_zeros(output.shape[:3], dtype=torch.float32) if lse is None else lse


def divide_rows(
    group: Group,
    query: Operand,
    key: Operand,
    value: Operand | None,
    options: AttentionOptions,
    impl: str | None,
    request: RowStatisticsRequest | None = None,
    refusal: Refusal | None = None,
) -> "tuple[Rows, Call, bool]":
    """How the rows of the whole batch lie with the processes, the validated call of this process's tokens with the mask of the whole, and whether
    gradients are recorded. Arguments and errors as of `divide`."""
    number, refusal = group.next_call(), refusal or Refusal()
    header = [0] * (len(SIZES) + 2 + 3)  # as sizes_of and _rows_of
    with refusal:
        call = call_of_part(query, key, value, options, impl)
        header = [*sizes_of(call), *_rows_of(query, key, key if value is None else value)]
    rows = Rows.of(group, number, query, key, agree_on_sizes(group, number, header, refusal))
    call, records = agree_on_options(group, number, (query, key, value), options, rows.score_shape(), request)
    return rows, call, records


def joined(pieces: Iterable[Tensor]) -> Tensor:
    """(1, H, N, ...), of tokens that follow one another; laid out as packed tokens are."""
    return torch.cat([x.transpose(1, 2) for x in pieces], 1).transpose(1, 2)


class RowPart(NamedTuple):
    """A row that lies with several processes, as a dense call that all make together; or, without a division, the rows that lie with this one
    alone, as a call of their own."""

    division: Division | None
    call: Call
    rows: slice  # of the whole batch


def _rows_of(query: Operand, key: Operand, value: Operand) -> list[int]:
    """Of a process's header: its rows, and 1 + where the first one of query and key goes on, 0 where it begins."""
    assert isinstance(query, Ragged)
    assert isinstance(key, Ragged)
    assert isinstance(value, Ragged)
    if key.first != value.first or (query.first is None) != (key.first is None):
        raise ValueError(
            "uwaga.sequence_parallel: query, key and value must be parts of the same rows: their first rows begin here, or in another "
            f"process, but first is {query.first}, {key.first} and {value.first}"
        )
    return [len(query), *(0 if x.first is None else 1 + x.first for x in (query, key))]


@dataclass(frozen=True, slots=True)
class Rows:
    """How the rows of the whole batch lie with the processes, of which each has pieces of rows, in order."""

    rank: int
    number: int  # of their call
    held: list[Interval]  # the pieces of each process
    row: Tensor  # (pieces,) the row of each piece
    lengths: Tensor  # (pieces, 2) its queries and keys
    offsets: Tensor  # (R+1, 2) those of the rows
    begins: list[int]  # the row of the first piece of each process, or of the next one
    divided: list[int]  # rows that lie with several processes

    @classmethod
    def of(cls, group: Group, number: int, query: Operand, key: Operand, headers: Sequence[Sequence[int]]) -> "Rows":
        """From what all processes have. Raises ValueError, in all of them: parts that do not follow one another."""
        assert isinstance(query, Ragged)
        assert isinstance(key, Ragged)
        counts = [x[2] for x in headers]
        held = list(pairwise([0, *accumulate(counts)]))
        own = torch.stack([query.lengths, key.lengths], 1)
        (lengths,) = group.rows(
            f"call {number}, lengths of rows", [own], [[x] for x in held], [[(0, sum(counts))]] * group.size
        )
        is_new = torch.ones(len(lengths), dtype=torch.bool)
        for (first, _), (*_, of_query, _) in zip(held, headers, strict=True):
            if of_query:
                is_new[first] = False
        row = is_new.cumsum(0) - 1
        for rank, ((first, _), (*_, of_query, of_key)) in enumerate(zip(held, headers, strict=True)):
            if of_query:
                before = lengths[:first][row[:first] == row[first]].sum(0).tolist()
                if int(row[first]) < 0 or before != [of_query - 1, of_key - 1]:
                    raise known_to_all(
                        ValueError(
                            f"uwaga.sequence_parallel: the first row of rank {rank} goes on after {of_query - 1} queries and {of_key - 1} keys, "
                            f"and the processes before it have {before[0]} and {before[1]} of it"
                        )
                    )
        rows = int(row[-1]) + 1 if len(row) else 0
        sums = torch.zeros(rows + 1, 2, dtype=torch.int64).index_add_(0, row + 1, lengths)
        begins = [int(row[first]) if first < len(row) else rows for first, _ in held]
        return cls(group.rank, number, held, row, lengths, sums.cumsum(0), begins, row[~is_new].unique().tolist())

    def score_shape(self) -> dict[str, object]:
        """The fields of the whole batch's ScoreShape."""
        longest = self.offsets.diff(dim=0).amax(0).tolist() if len(self.offsets) > 1 else [0, 0]
        query_offsets, key_offsets = (x.contiguous() for x in self.offsets.unbind(1))
        return {
            "batch": (len(self.offsets) - 1,),
            "queries": longest[0],
            "keys": longest[1],
            "query_offsets": query_offsets,
            "key_offsets": key_offsets,
            "query_tokens": int(query_offsets[-1]),
            "key_tokens": int(key_offsets[-1]),
        }

    def parts_of_call(self, group: Group, call: Call) -> list[RowPart]:
        """The parts of a call of this process's tokens whose mask is that of the whole, in the order of the tokens. A row that lies elsewhere is
        among them, without tokens."""
        assert call.query_offsets is not None
        assert call.key_offsets is not None
        begin, count = self.begins[self.rank], len(call.query_offsets) - 1
        # Of this process's rows only the first and the last may have parts in other processes.
        first = int(count > 0 and begin in self.divided)
        last = count - int(count > first and begin + count - 1 in self.divided)
        before: list[RowPart] = []
        behind: list[RowPart] = []
        for r in self.divided:
            at = min(max(r - begin, 0), count)
            tokens = [
                slice(int(x[at]), int(x[min(at + (r >= begin), count)])) for x in (call.query_offsets, call.key_offsets)
            ]
            part = _part_of_row(call, self, r, *tokens)
            query_starts, key_starts = ([0, *accumulate(counts)] for counts in self.parts_of(r))
            division = Division(group, group.next_call(), query_starts, key_starts, part.options)
            (before if r <= begin else behind).append(RowPart(division, part, slice(r, r + 1)))
        rows = slice(begin + first, begin + last)
        return [*before, RowPart(None, _whole_rows(call, self, rows, first), rows), *behind]

    def following(self) -> Tensor:
        """(n,) of each of this process's queries how many of its row are in later processes."""
        first, last = self.held[self.rank]
        own = self.lengths[first:last, 0]
        later = torch.zeros_like(own)
        if len(own):
            is_later = self.row[last:] == self.row[last - 1]
            later[-1] = self.lengths[last:, 0][is_later].sum()
        return later.repeat_interleave(own)

    def parts_of(self, row: int) -> list[list[int]]:
        """The queries, and the keys, of a row that each process has."""
        is_of_row = self.row == row
        counts = [self.lengths[first:last][is_of_row[first:last]].sum(0) for first, last in self.held]
        return torch.stack(counts, 1).tolist()

    def tokens_of(self, rows: slice, side: int) -> slice:
        """Those of some rows among the queries (0) or the keys (1) of the whole batch."""
        return slice(int(self.offsets[rows.start, side]), int(self.offsets[rows.stop, side]))


def _part_of_row(call: Call, rows: Rows, row: int, queries: slice, keys: slice) -> Call:
    """This process's tokens of one row, with the mask and biases of the whole row, as a dense call."""
    own = slice(row, row + 1)
    part = CallPart(own, None, rows.tokens_of(own, 0), rows.tokens_of(own, 1))
    starts, bias = call.relative_starts, call.bias
    return replace(
        call,
        query=call.query[:, :, queries],
        key=call.key[:, :, keys],
        value=call.value[:, :, keys],
        query_offsets=None,
        key_offsets=None,
        bias=None if bias is None else part.of_scores(bias),
        relative_starts=None if starts is None else starts[own],
        seed=_seed_from(call, row),
        mask_tensors=mask_program.select(call.options.mask_program, call.mask_tensors, part),
    )


def _whole_rows(call: Call, all_rows: Rows, rows: slice, first: int) -> Call:
    """Some rows of the batch, all of whose tokens this process has; `first`: which of its rows the first one is."""
    last = first + rows.stop - rows.start
    offsets = [x[first : last + 1] for x in (call.query_offsets, call.key_offsets) if x is not None]
    queries, keys = (slice(int(x[0]), int(x[-1])) for x in offsets)
    program, part = call.options.mask_program, CallPart(rows)
    tensors = list(mask_program.select(program, call.mask_tensors, part))
    for operation in program:
        if isinstance(operation, SameDocument):  # its ids are of packed tokens
            for index, side in ((operation.query_ids, 0), (operation.ids, 1)):
                if index is not None:
                    tensors[index] = call.mask_tensors[index][all_rows.tokens_of(rows, side)]
    offsets = [x - x[0] for x in offsets]
    starts, bias = call.relative_starts, call.bias
    longest = [int(x.diff().max()) if len(x) > 1 else 0 for x in offsets]
    scores = CallPart(rows, None, slice(0, longest[0]), slice(0, longest[1]))
    return replace(
        call,
        query=call.query[:, :, queries],
        key=call.key[:, :, keys],
        value=call.value[:, :, keys],
        query_offsets=offsets[0],
        key_offsets=offsets[1],
        bias=None if bias is None else scores.of_scores(bias),
        relative_starts=None if starts is None else starts[rows],
        seed=_seed_from(call, rows.start),
        mask_tensors=tuple(tensors),
        options=replace(call.options, max_queries=longest[0], max_keys=longest[1]),
    )


def _seed_from(call: Call, row: int) -> Tensor | None:
    """Dropout's seed of a call that begins with this row: the kernels add the number of row and head to it."""
    return None if call.seed is None else call.seed + row * call.query.shape[1]
