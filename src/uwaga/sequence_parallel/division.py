"""How one call of attention is divided over several processes: one sequence, of which each has a part; or the rows of a Ragged batch, of which
each has consecutive tokens, with rows that end anywhere.

Rows that lie with one process are computed there. Each row that lies with several goes by the ring, one after another, as a sequence of its
own. A row has the same bits in any batch, so all are those of one process.

Letters as in sequence.py; R rows of the whole batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.ops import mask_program
from uwaga.ops.attention.call import Call, Options
from uwaga.ops.attention.sequences import part_of
from uwaga.ops.mask_program import START_LAST, START_PER_ROW, START_VALUE, CallPart, Interval, SameDocument
from uwaga.ops.ragged import Operand, Ragged
from uwaga.sequence_parallel.exchange import Group, known_to_all


def rectangle_of(bias_BHQK: Tensor, rows: Interval, columns: Interval) -> Tensor:
    """Return some rows and columns of a tensor that broadcasts to the scores."""
    for dimension, interval in ((2, rows), (3, columns)):
        if bias_BHQK.shape[dimension] > 1:
            bias_BHQK = bias_BHQK.narrow(dimension, interval[0], interval[1] - interval[0])
    return bias_BHQK


@dataclass(frozen=True, slots=True)
class Division:
    """How one call is divided over the processes; `options` are those of the whole sequence."""

    group: Group
    number: int
    query_starts: list[int]
    key_starts: list[int]
    options: Options

    @property
    def sizes(self) -> tuple[int, int]:
        """Return how many queries and keys the whole has."""
        return self.query_starts[-1], self.key_starts[-1]

    def own_interval(self, starts: Sequence[int]) -> Interval:
        return starts[self.group.rank], starts[self.group.rank + 1]

    def part(self, call: Call, query: Tensor, key: Tensor, value: Tensor, rows: Interval, columns: Interval) -> Call:
        """Return the call of queries `rows` and keys `columns` of the whole sequence, as a dense call of their own."""
        sizes, moved = self.sizes, rows[0] - columns[0]
        program, tensors = mask_program.rectangle(call.options.mask_program, call.mask_tensors, sizes, rows, columns)
        options = replace(
            call.options,
            mask_program=program,
            max_queries=query.shape[2],
            max_keys=key.shape[2],
            dropout_origin=(rows[0], columns[0]),
        )
        starts = call.relative_starts
        if options.relative_start_mode != START_PER_ROW:
            start = sizes[1] - sizes[0] if options.relative_start_mode == START_LAST else options.relative_start
            options = replace(options, relative_start_mode=START_VALUE, relative_start=start + moved)
        return replace(
            call,
            query=query,
            key=key,
            value=value,
            bias=None if call.bias is None else rectangle_of(call.bias, rows, columns),
            relative_starts=None if starts is None else starts + moved,
            mask_tensors=tensors,
            options=options,
        )


def joined(pieces: Iterable[Tensor]) -> Tensor:
    """Return (1, H, N, ...), of tokens that follow one another; laid out as packed tokens are."""
    return torch.cat([x.transpose(1, 2) for x in pieces], 1).transpose(1, 2)


class RowPart(NamedTuple):
    """A row that lies with several processes, as a dense call that all make together; or, without a division, the rows that lie with this one
    alone, as a call of their own."""

    division: Division | None
    call: Call
    rows: slice  # of the whole batch


@dataclass(frozen=True, slots=True)
class Rows:
    """How the rows of the whole batch lie with the processes, of which each has pieces of rows, in order."""

    group: Group
    number: int  # of their call
    held: list[Interval]  # the pieces of each process
    row: Tensor  # (pieces,) the row of each piece
    lengths: Tensor  # (pieces, 2) its queries and keys
    offsets: Tensor  # (R+1, 2) those of the rows
    begins: list[int]  # the row of the first piece of each process, or of the next one
    divided: list[int]  # rows that lie with several processes

    @classmethod
    def of(cls, group: Group, number: int, query: Operand, key: Operand, headers: Sequence[Sequence[int]]) -> "Rows":
        """Return the rows that the headers of all processes describe. Raises ValueError, in all processes, if parts do not follow one another."""
        assert isinstance(query, Ragged)
        assert isinstance(key, Ragged)
        counts = [x[2] for x in headers]
        held = list(pairwise([0, *accumulate(counts)]))
        lengths_here = torch.stack([query.lengths, key.lengths], 1)
        (lengths,) = group.rows(
            f"call {number}, lengths of rows", [lengths_here], [[x] for x in held], [[(0, sum(counts))]] * group.size
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
        return cls(group, number, held, row, lengths, sums.cumsum(0), begins, row[~is_new].unique().tolist())

    def score_shape(self) -> dict[str, object]:
        """Return the fields of the whole batch's ScoreShape."""
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

    def parts_of_call(self, call: Call) -> list[RowPart]:
        """Return the parts of a call of this process's tokens whose mask is that of the whole, in the order of the tokens. A row that lies elsewhere is
        among them, without tokens."""
        assert call.query_offsets is not None
        assert call.key_offsets is not None
        begin, count = self.begins[self.group.rank], len(call.query_offsets) - 1
        # Only the first and the last of this process's rows may have parts in other processes.
        first = int(count > 0 and begin in self.divided)
        last = count - int(count > first and begin + count - 1 in self.divided)
        before: list[RowPart] = []
        behind: list[RowPart] = []
        for r in self.divided:
            at = min(max(r - begin, 0), count)
            queries, keys = (
                slice(int(x[at]), int(x[min(at + (r >= begin), count)])) for x in (call.query_offsets, call.key_offsets)
            )
            of_row = CallPart(row := slice(r, r + 1), None, self.tokens_of(row, 0), self.tokens_of(row, 1))
            part = part_of(call, of_row, call.query[:, :, queries], call.key[:, :, keys], call.value[:, :, keys])
            query_starts, key_starts = ([0, *accumulate(counts)] for counts in self.parts_of(r))
            division = Division(self.group, self.group.next_call(), query_starts, key_starts, part.options)
            (before if r <= begin else behind).append(RowPart(division, part, row))
        rows = slice(begin + first, begin + last)
        return [*before, RowPart(None, _whole_rows(call, self, rows, first), rows), *behind]

    def following(self) -> Tensor:
        """Return (n,): for each of this process's queries, how many queries of its row are in later processes."""
        first, last = self.held[self.group.rank]
        counts = self.lengths[first:last, 0]
        later = torch.zeros_like(counts)
        if len(counts):
            is_later = self.row[last:] == self.row[last - 1]
            later[-1] = self.lengths[last:, 0][is_later].sum()
        return later.repeat_interleave(counts)

    def parts_of(self, row: int) -> list[list[int]]:
        """Return the queries, and the keys, of a row that each process has."""
        is_of_row = self.row == row
        counts = [self.lengths[first:last][is_of_row[first:last]].sum(0) for first, last in self.held]
        return torch.stack(counts, 1).tolist()

    def tokens_of(self, rows: slice, side: int) -> slice:
        """Return the tokens of some rows among the queries (0) or the keys (1) of the whole batch."""
        return slice(int(self.offsets[rows.start, side]), int(self.offsets[rows.stop, side]))


def _whole_rows(call: Call, all_rows: Rows, rows: slice, first: int) -> Call:
    """Return some rows of the batch, all of whose tokens this process has; `first`: which of its rows the first one is."""
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
        seed=None if call.seed is None else call.seed + rows.start * call.query.shape[1],  # as in part_of
        mask_tensors=tuple(tensors),
        options=replace(call.options, max_queries=longest[0], max_keys=longest[1]),
    )
