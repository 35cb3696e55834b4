"""A mask as a small postfix program over four atoms: the one form that every engine reads.

A record is six ints, (operation, start mode, start, low, high, tensor); the numbers are those of
native/include/uwaga/c_api.h. Query i of a sequence stands at position p = i + start among its keys.

    BAND       key j is visible iff low <= j - p <= high
    LENGTHS    iff j < tensor[b]
    DOCUMENTS  iff tensor[b, j] equals the id of query i, which is at i + K - Q of the same tensor,
               or, where `start` is not -1, at i of tensor number `start`
    DENSE      iff tensor[b, h, i, j]
    AND, OR    of the two results before

An empty program sees every key. Letters: B sequences, H query heads, Q queries, K keys, N packed tokens.
"""

from collections.abc import Callable
from enum import IntEnum

import torch
from torch import Tensor

from uwaga._base.tracing import is_readable
from uwaga.ops.attention.call import START_LAST, START_PER_ROW, START_VALUE
from uwaga.ops.score_shape import ScoreShape
from uwaga.ops.validation import MAX_DISTANCE, plain_integer

BAND, LENGTHS, DOCUMENTS, DENSE, AND, OR = 0, 1, 2, 3, 10, 11
UNBOUNDED = 1 << 62  # as high, or negated as low, of a band
RECORD = 6

# Where query 0 stands: None (lower right: the last query meets the last key), a number, or one per sequence.
Start = int | Tensor | None


class Block(IntEnum):
    """What a mask makes of a block of queries and keys. AND is the minimum of two, OR the maximum."""

    EMPTY = 0
    PARTIAL = 1
    FULL = 2


class MaskProgram:
    """The program under construction; masks append themselves to it."""

    def __init__(self, sizes: ScoreShape) -> None:
        self.sizes = sizes
        self.records: list[int] = []
        self.tensors: list[Tensor] = []

    def band(self, low: int | None, high: int | None, start: Start) -> None:
        """Keys at low <= j - p <= high; None is unbounded."""
        low = -UNBOUNDED if low is None else low
        high = UNBOUNDED if high is None else high
        mode, value, starts = lower_start(self.sizes, start)
        self.records += (BAND, mode, value, low, high, -1 if starts is None else self._add(starts))

    def lengths(self, lengths: Tensor) -> None:
        """Keys j < lengths[b]. Lengths outside 0..K are an error where reading them is free."""
        per_sequence = self.sizes.per_sequence("KeyLengths", lengths)
        if is_readable(per_sequence) and per_sequence.numel():
            check_lengths(per_sequence, self.sizes.keys)
        self.records += (LENGTHS, START_LAST, 0, 0, 0, self._add(per_sequence))

    def documents(self, ids: Tensor, query_ids: Tensor | None) -> None:
        """Keys whose id is the query's."""
        sizes = self.sizes
        keys = self._ids("Documents ids", ids, sizes.keys, sizes.key_tokens)
        if query_ids is None:
            self._check_last_queries()
            query_index = -1
        else:
            query_index = self._add(self._ids("Documents query_ids", query_ids, sizes.queries, sizes.query_tokens))
        self.records += (DOCUMENTS, START_VALUE, query_index, 0, 0, self._add(keys))

    def dense(self, bits: Tensor) -> None:
        """Keys where a bool tensor that broadcasts to the scores is true."""
        self.records += (DENSE, START_LAST, 0, 0, 0, self._add(self.sizes.per_score("mask", bits)))

    def combine(self, operation: int) -> None:
        """AND or OR of the last two results."""
        self.records += (operation, 0, 0, 0, 0, -1)

    def _add(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _ids(self, name: str, ids: Tensor, length: int, tokens: int) -> Tensor:
        sizes = self.sizes
        sizes.need_integers(name, ids)
        whole = (tokens,) if sizes.is_ragged else (*sizes.batch, length)
        if ids.shape == whole[-1:]:
            return ids.long().contiguous() if sizes.is_ragged else ids.long().contiguous()[None]
        if sizes.is_ragged or ids.shape != whole:
            raise sizes.misfit(name, ids, f"{name} must have the shape {whole[-1:]} or {whole}", "has neither")
        return ids.reshape(sizes.sequences, length).long().contiguous()

    def _check_last_queries(self) -> None:
        sizes = self.sizes
        rule = "attention: Documents needs query_ids where a sequence has more queries than keys"
        if not sizes.is_ragged and sizes.queries > sizes.keys:
            raise ValueError(rule)
        other_lengths = sizes.is_ragged and sizes.query_offsets is not sizes.key_offsets
        if other_lengths and is_readable(sizes.query_offsets) and _any_more(sizes.query_offsets, sizes.key_offsets):
            raise ValueError(rule)


def check_lengths(lengths: Tensor, keys: int) -> None:
    """ValueError unless all of them, one at least, lie in 0..keys."""
    numbers = lengths.tolist()
    low, high = min(numbers), max(numbers)
    if low < 0 or high > keys:
        rule = f"KeyLengths must lie between 0 and the {keys} keys, but they reach from {low} to {high}"
        raise ValueError(f"attention: {rule}")


def check_starts(starts: Tensor) -> None:
    """ValueError unless all of them lie within MAX_DISTANCE."""
    numbers = starts.tolist()
    if numbers and max(map(abs, numbers)) > MAX_DISTANCE:
        where = f"start reaches from {min(numbers)} to {max(numbers)}"
        raise ValueError(f"attention: {where}, further away than any sequence is long")


def _any_more(query_offsets: Tensor, key_offsets: Tensor) -> bool:
    return bool((query_offsets.diff() > key_offsets.diff()).any())


def lower_start(sizes: ScoreShape, start: Start) -> tuple[int, int, Tensor | None]:
    """The mode, the value where it is a number, and the (B,) starts where there is one per sequence."""
    if start is None:
        return START_LAST, 0, None
    if isinstance(start, Tensor):
        return START_PER_ROW, 0, _bounded(sizes.per_sequence("start", start))
    return START_VALUE, plain_integer(start), None


def _bounded(starts: Tensor) -> Tensor:
    """Starts within MAX_DISTANCE. One beyond is an error where reading is free; elsewhere it is moved to there, which
    means the same for a mask: no key is as far away."""
    if not is_readable(starts):
        return starts.clamp(-MAX_DISTANCE, MAX_DISTANCE)
    check_starts(starts)
    return starts


def evaluate(program: tuple[int, ...], atom: Callable, both: Callable, either: Callable):
    """Run a postfix program: `atom(record)` gives the value of an atom, `both` and `either` combine two."""
    stack = []
    for at in range(0, len(program), RECORD):
        record = program[at : at + RECORD]
        if record[0] in (AND, OR):
            right, left = stack.pop(), stack.pop()
            stack.append(both(left, right) if record[0] == AND else either(left, right))
        else:
            stack.append(atom(record))
    (result,) = stack
    return result


def visible(
    program: tuple[int, ...],
    tensors: tuple[Tensor, ...],
    queries: int,
    keys: int,
    device,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
) -> Tensor:
    """The dense form of a dense call's program: bool, four dimensions that broadcast to (B, H, Q, K).

    Of all queries and keys, or of those whose positions `rows` and `columns` (int64) list.
    """
    i_Q = torch.arange(queries, device=device) if rows is None else rows
    j_K = torch.arange(keys, device=device) if columns is None else columns
    if not program:
        return torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device).expand(1, 1, len(i_Q), len(j_K))

    def atom(record: tuple[int, ...]) -> Tensor:
        operation, mode, value, low, high, index = record
        if operation == BAND:
            start = {START_LAST: keys - queries, START_VALUE: value}.get(mode)
            distance_QK = j_K - i_Q[:, None]
            if start is None:
                distance_BHQK = distance_QK - tensors[index][:, None, None, None]
            else:
                distance_BHQK = (distance_QK - start)[None, None]
            return (distance_BHQK >= low) & (distance_BHQK <= high)
        if operation == LENGTHS:
            return (j_K < tensors[index][:, None])[:, None, None, :]
        if operation == DOCUMENTS:
            ids_BK = tensors[index]
            ids_BQ = ids_BK[:, keys - queries :] if value == -1 else tensors[value]
            ids_BQ, ids_BK = listed(ids_BQ, 1, rows), listed(ids_BK, 1, columns)
            return (ids_BQ[:, :, None] == ids_BK[:, None, :])[:, None]
        assert operation == DENSE, record
        return listed(listed(tensors[index], 2, rows), 3, columns)

    return evaluate(program, atom, torch.logical_and, torch.logical_or)


def listed(tensor: Tensor, dimension: int, positions: Tensor | None) -> Tensor:
    """The listed positions of a dimension, all of them for None; a dimension of one broadcasts and stays."""
    if positions is None or tensor.shape[dimension] == 1:
        return tensor
    return tensor.index_select(dimension, positions)
