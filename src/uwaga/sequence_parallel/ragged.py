"""Attention over Ragged batches whose tokens lie with several processes: each has consecutive tokens, with rows that end anywhere.

Rows that lie with one process are computed there. Each row that lies with several goes by the ring, one after another, as a sequence of its
own. A row has the same bits in any batch, so all are those of one process.

Letters as in sequence.py; R rows of the whole batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from uwaga.ops import mask_program
from uwaga.ops.attention.api import AttendedLse
from uwaga.ops.attention.arguments import AttentionOptions, unflatten_lse, unflatten_output
from uwaga.ops.attention.autograd import run
from uwaga.ops.attention.call import Call
from uwaga.ops.mask_program import CallPart, Interval, SameDocument
from uwaga.ops.ragged import Operand, Ragged
from uwaga.sequence_parallel.division import (
    SIZES,
    Division,
    agree_on_options,
    agree_on_sizes,
    call_of_part,
    sizes_of,
)
from uwaga.sequence_parallel.exchange import Group, known_to_all

# (how a row is divided, this process's part of it, whether gradients are recorded) -> its output and lse
AttendDivided = Callable[[Division, Call, bool], tuple[Tensor, Tensor]]


def attend(
    group: Group,
    query: Operand,
    key: Operand,
    value: Operand,
    options: AttentionOptions,
    impl: str | None,
    attend_divided: AttendDivided,
) -> AttendedLse:
    """Output and lse of this process's tokens. All processes of the group call this together; errors as in `attention`."""
    number, failure = group.next_call(), None
    header = [0] * (len(SIZES) + 2 + 3)  # as sizes_of and _rows_of
    try:
        call = call_of_part(query, key, value, options, impl)
        header = [*sizes_of(call), *_rows_of(query, key, value)]
    except (ValueError, NotImplementedError) as error:
        failure = error
    rows = _Rows.of(group, number, query, key, agree_on_sizes(group, number, header, failure))
    call, records = agree_on_options(group, number, (query, key, value), options, rows.score_shape())
    assert call.query_offsets is not None
    assert call.key_offsets is not None
    begin, count = rows.begins[group.rank], len(query)
    # Of this process's rows only the first and the last may have parts in other processes.
    first = int(count > 0 and begin in rows.divided)
    last = count - int(count > first and begin + count - 1 in rows.divided)

    before: list[tuple[Tensor, Tensor]] = []
    behind: list[tuple[Tensor, Tensor]] = []
    for r in rows.divided:
        at = min(max(r - begin, 0), count)
        tokens = [
            slice(int(x[at]), int(x[min(at + (r >= begin), count)])) for x in (call.query_offsets, call.key_offsets)
        ]
        part = _part_of_row(call, rows, r, *tokens)
        query_starts, key_starts = ([0, *accumulate(counts)] for counts in rows.parts_of(r))
        division = Division(group, group.next_call(), query_starts, key_starts, part.options)
        # A row that lies elsewhere has no tokens here, and all the same a backward pass, which all processes run.
        (before if r <= begin else behind).append(attend_divided(division, part, records))
    pieces = [*before, _attend_whole_rows(call, rows, begin, first, last), *behind]
    output, lse = (
        torch.cat([x.transpose(1, 2) for x in each], 1).transpose(1, 2) for each in zip(*pieces, strict=True)
    )
    return AttendedLse(unflatten_output(query, output), unflatten_lse(query, lse))


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
class _Rows:
    """How the rows of the whole batch lie with the processes, of which each has pieces of rows, in order."""

    held: list[Interval]  # the pieces of each process
    row: Tensor  # (pieces,) the row of each piece
    lengths: Tensor  # (pieces, 2) its queries and keys
    offsets: Tensor  # (R+1, 2) those of the rows
    begins: list[int]  # the row of the first piece of each process, or of the next one
    divided: list[int]  # rows that lie with several processes

    @classmethod
    def of(cls, group: Group, number: int, query: Operand, key: Operand, headers: Sequence[Sequence[int]]) -> "_Rows":
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
        return cls(held, row, lengths, sums.cumsum(0), begins, row[~is_new].unique().tolist())

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

    def parts_of(self, row: int) -> list[list[int]]:
        """The queries, and the keys, of a row that each process has."""
        is_of_row = self.row == row
        counts = [self.lengths[first:last][is_of_row[first:last]].sum(0) for first, last in self.held]
        return torch.stack(counts, 1).tolist()

    def tokens_of(self, rows: slice, side: int) -> slice:
        """Those of some rows among the queries (0) or the keys (1) of the whole batch."""
        return slice(int(self.offsets[rows.start, side]), int(self.offsets[rows.stop, side]))


def _part_of_row(call: Call, rows: _Rows, row: int, queries: slice, keys: slice) -> Call:
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


def _attend_whole_rows(call: Call, all_rows: "_Rows", begin: int, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Rows first..last-1 of this process, all of whose tokens it has; `begin`: which row of the whole batch its first one is."""
    offsets = [x[first : last + 1] for x in (call.query_offsets, call.key_offsets) if x is not None]
    queries, keys = (slice(int(x[0]), int(x[-1])) for x in offsets)
    rows = slice(begin + first, begin + last)
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
    own = replace(
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
    output, lse = run(own, "cpu")
    return output, output.new_zeros(output.shape[:3], dtype=torch.float32) if lse is None else lse


def _seed_from(call: Call, row: int) -> Tensor | None:
    """Dropout's seed of a call that begins with this row: the kernels add the number of row and head to it."""
    return None if call.seed is None else call.seed + row * call.query.shape[1]
