"""A mask as a small postfix program of records: the one form that every engine reads.

Band, Lengths, SameDocument and Dense say which keys each query sees; And and Or combine the two results before them. An
empty program makes every key visible. A record holds numbers and the positions of its tensors in a separate list, so that
a program can be hashed and compared. Query i of a sequence stands at position p = i + start among its keys.

Letters: B sequences, H query heads, Q queries, K keys, N packed tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from uwaga._base.tracing import is_readable
from uwaga.ops.score_shape import ScoreShape
from uwaga.ops.validation import MAX_DISTANCE, check_integers, check_same_device, plain_integer

# Where query 0 stands among the keys, and how masks are combined: numbers of native/include/uwaga/c_api.h.
START_LAST, START_VALUE, START_PER_ROW = 0, 1, 2
UNBOUNDED = 1 << 62  # as high, or negated as low, of a band

# Where query 0 stands: None (lower right: the last query meets the last key), a number, or one per sequence.
Start = int | Tensor | None
Interval = tuple[int, int]  # first, past the last
Sizes = tuple[int, int]  # Q and K of a dense call
_Value = TypeVar("_Value")


Memo = dict[object, Any]  # what is computed of tensors once, by name


class CallPart(NamedTuple):
    """Which part of a call's tensors a smaller call reads: some sequences, some heads, and some tokens of packed ones."""

    sequences: Tensor | slice  # of B
    heads: Tensor | None = None  # of H; None: all
    # Of N packed queries, and of N packed keys, where one sequence of a ragged call is meant.
    queries: slice | None = None
    keys: slice | None = None

    def of_scores(self, tensor: Tensor) -> Tensor:
        """Return the part of a tensor of four dimensions that broadcasts to the scores, (B, H, Q, K)."""
        tensor = _select(_select(tensor, 0, self.sequences), 1, self.heads)
        return _select(_select(tensor, 2, _from_zero(self.queries)), 3, _from_zero(self.keys))


class MaskOperation:
    """A record of a program. `code` is its number in native/include/uwaga/c_api.h."""

    __slots__ = ()
    code: ClassVar[int]


class Atom(MaskOperation, ABC):
    """A record that says which keys are visible by itself."""

    __slots__ = ()

    @abstractmethod
    def visible(self, tensors: Sequence[Tensor], positions: "_Positions") -> Tensor:
        """Return a bool tensor of four dimensions that broadcast to (B, H, Q, K)."""

    @abstractmethod
    def select(self, tensors: list[Tensor], part: CallPart) -> None:
        """Replace its tensors by those of a part of the call."""

    @abstractmethod
    def keys_seen(self, tensors: Sequence[Tensor], sizes: Sizes, rows: Interval, memory: Memo) -> Interval:
        """Return an interval of keys outside which none of these queries of a dense call sees any; it need not be within 0..K."""

    @abstractmethod
    def queries_that_see(self, tensors: Sequence[Tensor], sizes: Sizes, columns: Interval, memory: Memo) -> Interval:
        """Return an interval of queries outside which none sees any of these keys; it need not be within 0..Q."""

    @abstractmethod
    def rectangle(self, tensors: list[Tensor], sizes: Sizes, rows: Interval, columns: Interval) -> "Atom":
        """Return the record for some queries and keys of a dense call, with its tensors replaced, or appended, by those of the rectangle."""


class _Positions(NamedTuple):
    """The queries and keys of a mask's dense form."""

    queries: int  # Q and K of the whole call
    keys: int
    i_Q: Tensor  # the positions of the queries in the dense form
    j_K: Tensor
    rows: Tensor | None  # the positions again if they are a part of the call; None: all
    columns: Tensor | None


@dataclass(frozen=True, slots=True)
class Band(Atom):
    """Key j is visible iff low <= j - p <= high."""

    code: ClassVar[int] = 0
    low: int
    high: int
    start_mode: int = START_LAST
    start: int = 0  # where the mode is START_VALUE
    starts: int | None = None  # the (B,) tensor of starts, where it is START_PER_ROW

    def visible(self, tensors: Sequence[Tensor], positions: _Positions) -> Tensor:
        distance_QK = positions.j_K - positions.i_Q[:, None]
        if self.starts is not None:
            distance_BHQK = distance_QK - tensors[self.starts][:, None, None, None]
        else:
            distance_BHQK = (distance_QK - self._one_start(positions.queries, positions.keys))[None, None]
        return (distance_BHQK >= self.low) & (distance_BHQK <= self.high)

    def select(self, tensors: list[Tensor], part: CallPart) -> None:
        if self.starts is not None:
            tensors[self.starts] = tensors[self.starts][part.sequences]

    def keys_seen(self, tensors: Sequence[Tensor], sizes: Sizes, rows: Interval, memory: Memo) -> Interval:
        least, most = self._bounds(tensors, sizes)
        first = 0 if self.low <= -UNBOUNDED else rows[0] + least + self.low
        return first, sizes[1] if self.high >= UNBOUNDED else rows[1] + most + self.high

    def queries_that_see(self, tensors: Sequence[Tensor], sizes: Sizes, columns: Interval, memory: Memo) -> Interval:
        least, most = self._bounds(tensors, sizes)
        first = 0 if self.high >= UNBOUNDED else columns[0] - most - self.high
        return first, sizes[0] if self.low <= -UNBOUNDED else columns[1] - least - self.low

    def rectangle(self, tensors: list[Tensor], sizes: Sizes, rows: Interval, columns: Interval) -> Atom:
        moved = rows[0] - columns[0]
        if self.starts is not None:
            tensors[self.starts] = tensors[self.starts] + moved
            return self
        return replace(self, start_mode=START_VALUE, start=self._one_start(*sizes) + moved)

    def _bounds(self, tensors: Sequence[Tensor], sizes: Sizes) -> tuple[int, int]:
        """Return the smallest and the largest start of a sequence."""
        if self.starts is None:
            start = self._one_start(*sizes)
            return start, start
        starts = tensors[self.starts]
        return (int(starts.min()), int(starts.max())) if starts.numel() else (0, 0)

    def _one_start(self, queries: int, keys: int) -> int:
        return keys - queries if self.start_mode == START_LAST else self.start


@dataclass(frozen=True, slots=True)
class Lengths(Atom):
    """Key j of sequence b is visible iff j < lengths[b]."""

    code: ClassVar[int] = 1
    lengths: int  # the (B,) tensor

    def visible(self, tensors: Sequence[Tensor], positions: _Positions) -> Tensor:
        return (positions.j_K < tensors[self.lengths][:, None])[:, None, None, :]

    def select(self, tensors: list[Tensor], part: CallPart) -> None:
        tensors[self.lengths] = tensors[self.lengths][part.sequences]

    def keys_seen(self, tensors: Sequence[Tensor], sizes: Sizes, rows: Interval, memory: Memo) -> Interval:
        return 0, self._longest(tensors)

    def queries_that_see(self, tensors: Sequence[Tensor], sizes: Sizes, columns: Interval, memory: Memo) -> Interval:
        return 0, sizes[0] if columns[0] < self._longest(tensors) else 0

    def rectangle(self, tensors: list[Tensor], sizes: Sizes, rows: Interval, columns: Interval) -> Atom:
        tensors[self.lengths] = (tensors[self.lengths] - columns[0]).clamp(0, columns[1] - columns[0])
        return self

    def _longest(self, tensors: Sequence[Tensor]) -> int:
        lengths = tensors[self.lengths]
        return int(lengths.max()) if lengths.numel() else 0


@dataclass(frozen=True, slots=True)
class SameDocument(Atom):
    """Key j is visible iff ids[b, j] equals the id of the query: query_ids[b, i], or, without those, ids[b, i + K - Q]."""

    code: ClassVar[int] = 2
    ids: int  # the tensor (B or 1, K); (N,) of packed keys
    query_ids: int | None = None  # the tensor (B or 1, Q); (N,) of packed queries

    def visible(self, tensors: Sequence[Tensor], positions: _Positions) -> Tensor:
        ids_BK = tensors[self.ids]
        if self.query_ids is None:
            ids_BQ = ids_BK[:, positions.keys - positions.queries :]
        else:
            ids_BQ = tensors[self.query_ids]
        ids_BQ, ids_BK = selected(ids_BQ, 1, positions.rows), selected(ids_BK, 1, positions.columns)
        return (ids_BQ[:, :, None] == ids_BK[:, None, :])[:, None]

    def select(self, tensors: list[Tensor], part: CallPart) -> None:
        for index, tokens in ((self.ids, part.keys), (self.query_ids, part.queries)):
            if index is not None:
                ids = tensors[index]
                tensors[index] = _select(ids, 0, part.sequences) if tokens is None else ids[None, tokens]

    def keys_seen(self, tensors: Sequence[Tensor], sizes: Sizes, rows: Interval, memory: Memo) -> Interval:
        places = _places_of_ids((self, "keys"), tensors[self.ids], memory)
        return _hull_of_ids(places, self._of_queries(tensors, sizes)[:, slice(*rows)])

    def queries_that_see(self, tensors: Sequence[Tensor], sizes: Sizes, columns: Interval, memory: Memo) -> Interval:
        places = _places_of_ids((self, "queries"), self._of_queries(tensors, sizes), memory)
        return _hull_of_ids(places, tensors[self.ids][:, slice(*columns)])

    def rectangle(self, tensors: list[Tensor], sizes: Sizes, rows: Interval, columns: Interval) -> Atom:
        of_queries = self._of_queries(tensors, sizes)[:, slice(*rows)].contiguous()
        tensors[self.ids] = tensors[self.ids][:, slice(*columns)].contiguous()
        if self.query_ids is not None:
            tensors[self.query_ids] = of_queries
            return self
        tensors.append(of_queries)
        return replace(self, query_ids=len(tensors) - 1)

    def _of_queries(self, tensors: Sequence[Tensor], sizes: Sizes) -> Tensor:
        """Return the ids (B or 1, Q) of the queries."""
        return tensors[self.ids][:, sizes[1] - sizes[0] :] if self.query_ids is None else tensors[self.query_ids]


@dataclass(frozen=True, slots=True)
class Dense(Atom):
    """Key j is visible iff bits[b, h, i, j]."""

    code: ClassVar[int] = 3
    bits: int  # the tensor, which broadcasts to (B, H, Q, K)

    def visible(self, tensors: Sequence[Tensor], positions: _Positions) -> Tensor:
        return selected(selected(tensors[self.bits], 2, positions.rows), 3, positions.columns)

    def select(self, tensors: list[Tensor], part: CallPart) -> None:
        tensors[self.bits] = part.of_scores(tensors[self.bits])

    def keys_seen(self, tensors: Sequence[Tensor], sizes: Sizes, rows: Interval, memory: Memo) -> Interval:
        return 0, sizes[1]  # the exact answer would read the bits of all pairs

    def queries_that_see(self, tensors: Sequence[Tensor], sizes: Sizes, columns: Interval, memory: Memo) -> Interval:
        return 0, sizes[0]

    def rectangle(self, tensors: list[Tensor], sizes: Sizes, rows: Interval, columns: Interval) -> Atom:
        tensors[self.bits] = _select(_select(tensors[self.bits], 2, slice(*rows)), 3, slice(*columns))
        return self


@dataclass(frozen=True, slots=True)
class And(MaskOperation):
    """Keys that are visible in both of the two results before."""

    code: ClassVar[int] = 10


@dataclass(frozen=True, slots=True)
class Or(MaskOperation):
    """Keys that are visible in at least one of the two results before."""

    code: ClassVar[int] = 11


MaskProgram = tuple[MaskOperation, ...]


@dataclass
class MaskProgramBuilder:
    """A program under construction over scores of one shape; masks append themselves to it."""

    shape: ScoreShape
    tensors: list[Tensor] = field(default_factory=list)
    operations: list[MaskOperation] = field(default_factory=list)

    @property
    def program(self) -> MaskProgram:
        return tuple(self.operations)

    def built(self, name: str, query: Tensor) -> tuple[MaskProgram, tuple[Tensor, ...]]:
        """Return the program and its tensors. Raises ValueError, about an argument of this name: they are not on the query's device."""
        for tensor in self.tensors:
            check_same_device(name, tensor, query)
        return self.program, tuple(self.tensors)

    def band(self, low: int | None, high: int | None, start: Start) -> None:
        """Append the rule low <= j - p <= high; None is unbounded."""
        low = -UNBOUNDED if low is None else low
        high = UNBOUNDED if high is None else high
        mode, value, starts = resolve_start(self.shape, start)
        self.operations.append(Band(low, high, mode, value, None if starts is None else self._add(starts)))

    def lengths(self, lengths: Tensor) -> None:
        """Append the rule j < lengths[b]. Lengths outside 0..K are an error where they can be read at no cost (on the CPU, outside torch.compile)."""
        per_sequence = self.shape.per_sequence("KeyLengths", lengths)
        if is_readable(per_sequence) and per_sequence.numel():
            check_lengths(per_sequence, self.shape.keys)
        self.operations.append(Lengths(self._add(per_sequence)))

    def documents(self, ids: Tensor, query_ids: Tensor | None) -> None:
        """Append the rule that the key has the id of the query."""
        shape = self.shape
        keys = self._ids("Documents ids", ids, shape.keys, shape.key_tokens)
        queries = None
        if query_ids is None:
            self._check_last_queries()
        else:
            queries = self._add(self._ids("Documents query_ids", query_ids, shape.queries, shape.query_tokens))
        self.operations.append(SameDocument(self._add(keys), queries))

    def dense(self, bits: Tensor) -> None:
        """Append a bool tensor that broadcasts to the scores, and is true for visible keys."""
        self.operations.append(Dense(self._add(self.shape.per_score("mask", bits))))

    def _add(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _ids(self, name: str, ids: Tensor, length: int, tokens: int) -> Tensor:
        shape = self.shape
        check_integers("attention", name, ids)
        whole = (tokens,) if shape.is_ragged else (*shape.batch, length)
        if ids.shape == whole[-1:]:
            return ids.long().contiguous() if shape.is_ragged else ids.long().contiguous()[None]
        if shape.is_ragged or ids.shape != whole:
            raise shape.misfit(name, ids, f"{name} must have the shape {whole[-1:]} or {whole}", "has neither")
        return ids.reshape(shape.sequences, length).long().contiguous()

    def _check_last_queries(self) -> None:
        queries, keys = self.shape.query_offsets, self.shape.key_offsets
        if queries is None or keys is None:
            has_more = self.shape.queries > self.shape.keys
        else:
            has_more = queries is not keys and is_readable(queries) and bool((queries.diff() > keys.diff()).any())
        if has_more:
            raise ValueError("attention: Documents needs query_ids if a sequence has more queries than keys")


def check_lengths(lengths: Tensor, keys: int) -> None:
    """Raise ValueError unless all of them, one at least, lie in 0..keys."""
    numbers = lengths.tolist()
    low, high = min(numbers), max(numbers)
    if low < 0 or high > keys:
        rule = f"KeyLengths must lie between 0 and the {keys} keys, but they reach from {low} to {high}"
        raise ValueError(f"attention: {rule}")


def check_starts(starts: Tensor) -> None:
    """Raise ValueError unless all of them lie within MAX_DISTANCE."""
    numbers = starts.tolist()
    if numbers and max(map(abs, numbers)) > MAX_DISTANCE:
        where = f"but reaches from {min(numbers)} to {max(numbers)}"
        raise ValueError(f"attention: start must lie between -2**59 and 2**59, {where}")


class ResolvedStart(NamedTuple):
    """Where query 0 stands among the keys, as programs and the native library encode it."""

    mode: int  # START_LAST, START_VALUE or START_PER_ROW
    value: int  # where the mode is START_VALUE
    starts: Tensor | None  # (B,) int64 where it is START_PER_ROW


def resolve_start(shape: ScoreShape, start: Start) -> ResolvedStart:
    """Return the encoded start of a mask or bias over scores of this shape."""
    if start is None:
        return ResolvedStart(START_LAST, 0, None)
    if isinstance(start, Tensor):
        return ResolvedStart(START_PER_ROW, 0, _bounded(shape.per_sequence("start", start)))
    return ResolvedStart(START_VALUE, plain_integer(start), None)


def _bounded(starts: Tensor) -> Tensor:
    """Return starts within MAX_DISTANCE. One beyond is an error where it can be read at no cost; elsewhere it is clamped,
    which is the same to a mask: no key is that far away."""
    if not is_readable(starts):
        return starts.clamp(-MAX_DISTANCE, MAX_DISTANCE)
    check_starts(starts)
    return starts


def _evaluate(
    program: MaskProgram,
    atom: Callable[[Atom], _Value],
    both: Callable[[_Value, _Value], _Value],
    either: Callable[[_Value, _Value], _Value],
) -> _Value:
    """Run a program that is not empty: `atom` gives the value of a record, `both` and `either` combine two."""
    stack: list[_Value] = []
    for operation in program:
        if isinstance(operation, Atom):
            stack.append(atom(operation))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(both(left, right) if isinstance(operation, And) else either(left, right))
    (result,) = stack
    return result


def visible(
    program: MaskProgram,
    tensors: Sequence[Tensor],
    queries: int,
    keys: int,
    device: torch.device | str,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
) -> Tensor:
    """Return the dense form of a dense call's program: bool, four dimensions that broadcast to (B, H, Q, K).

    Of all queries and keys, or of those whose positions `rows` and `columns` (int64) list.
    """
    i_Q = torch.arange(queries, device=device) if rows is None else rows
    j_K = torch.arange(keys, device=device) if columns is None else columns
    if not program:
        return torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device).expand(1, 1, len(i_Q), len(j_K))
    positions = _Positions(queries, keys, i_Q, j_K, rows, columns)
    return _evaluate(program, lambda atom: atom.visible(tensors, positions), torch.logical_and, torch.logical_or)


def select(program: MaskProgram, tensors: Sequence[Tensor], part: CallPart) -> tuple[Tensor, ...]:
    """Return the tensors with which the same program masks a part of the call."""
    selected = list(tensors)
    for operation in program:
        if isinstance(operation, Atom):
            operation.select(selected, part)
    return tuple(selected)


def keys_seen(
    program: MaskProgram, tensors: Sequence[Tensor], sizes: Sizes, rows: Interval, memory: Memo | None = None
) -> Interval:
    """Return an interval of keys, within 0..K, outside which queries `rows` of a dense call see none; (0, 0) where they see none at all.

    It is exact for one band or length, and may hold keys between those that are seen for documents and combinations.

    memory: what was found of these tensors before, for other rows, and is kept for the next ones.
    """
    memory = {} if memory is None else memory
    return _interval(program, lambda atom: atom.keys_seen(tensors, sizes, rows, memory), rows, sizes[1])


def queries_that_see(
    program: MaskProgram, tensors: Sequence[Tensor], sizes: Sizes, columns: Interval, memory: Memo | None = None
) -> Interval:
    """Return an interval of queries, within 0..Q, outside which none sees any of the keys `columns`; (0, 0) where none does. memory: as above."""
    memory = {} if memory is None else memory
    return _interval(program, lambda atom: atom.queries_that_see(tensors, sizes, columns, memory), columns, sizes[0])


def rectangle(
    program: MaskProgram, tensors: Sequence[Tensor], sizes: Sizes, rows: Interval, columns: Interval
) -> tuple[MaskProgram, tuple[Tensor, ...]]:
    """Return the program, and its tensors, that mask queries `rows` and keys `columns` of a dense call as a dense call of their own."""
    of_part = list(tensors)
    made = [x.rectangle(of_part, sizes, rows, columns) if isinstance(x, Atom) else x for x in program]
    return tuple(made), tuple(of_part)


def _interval(program: MaskProgram, atom: Callable[[Atom], Interval], others: Interval, size: int) -> Interval:
    """Return what a program makes of the intervals of its records, within 0..size; (0, 0) where the interval of the other axis is empty."""
    if others[0] >= others[1]:
        return 0, 0

    def clamped(interval: Interval) -> Interval:
        first, last = max(interval[0], 0), min(interval[1], size)
        return (first, last) if first < last else (0, 0)

    def either(a: Interval, b: Interval) -> Interval:
        if a[0] >= a[1] or b[0] >= b[1]:
            return b if a[0] >= a[1] else a
        return min(a[0], b[0]), max(a[1], b[1])

    if not program:
        return 0, size
    return _evaluate(
        program, lambda x: clamped(atom(x)), lambda a, b: clamped((max(a[0], b[0]), min(a[1], b[1]))), either
    )


class _Places(NamedTuple):
    """Where each id of a sequence is first and last."""

    ids: Tensor  # (U,) ascending
    first: Tensor
    last: Tensor

    @staticmethod
    def of(ids_N: Tensor) -> "_Places":
        ids, of_place = ids_N.unique(return_inverse=True)
        at = torch.arange(len(ids_N), device=ids_N.device)
        first, last = torch.full_like(ids, len(ids_N)), torch.zeros_like(ids)
        return _Places(ids, first.scatter_reduce(0, of_place, at, "amin"), last.scatter_reduce(0, of_place, at, "amax"))


def _places_of_ids(name: object, ids_BN: Tensor, memory: Memo) -> list[_Places]:
    """Return where the ids of each sequence are; found once for each name."""
    if name not in memory:
        memory[name] = [_Places.of(ids_N) for ids_N in ids_BN]
    places: list[_Places] = memory[name]
    return places


def _hull_of_ids(places: Sequence[_Places], ids_BN: Tensor) -> Interval:
    """Return the interval of those positions, of any sequence, whose id is one of the `ids_BN` of that sequence."""
    begin, end = 1 << 62, 0
    for n in range(max(len(places), len(ids_BN))):
        ids, first, last = places[n if len(places) > 1 else 0]
        sought = ids_BN[n if len(ids_BN) > 1 else 0].unique()
        if not len(ids):
            continue
        at = torch.searchsorted(ids, sought).clamp(max=len(ids) - 1)
        at = at[ids[at] == sought]
        if len(at):
            begin, end = min(begin, int(first[at].min())), max(end, int(last[at].max()) + 1)
    return begin, end


def selected(tensor: Tensor, dimension: int, positions: Tensor | None) -> Tensor:
    """Return the selected positions of a dimension, all of them for None; a dimension of one broadcasts and stays."""
    if positions is None or tensor.shape[dimension] == 1:
        return tensor
    return tensor.index_select(dimension, positions)


def _select(tensor: Tensor, dimension: int, part: Tensor | slice | None) -> Tensor:
    """Return a part of a dimension, by a tensor of positions or a slice."""
    if not isinstance(part, slice):
        return selected(tensor, dimension, part)
    if tensor.shape[dimension] == 1:
        return tensor
    return tensor[(*(slice(None),) * dimension, part)]


def _from_zero(tokens: slice | None) -> slice | None:
    """Return a slice of as many queries or keys, from the first one of the sequence on."""
    return None if tokens is None else slice(tokens.stop - tokens.start)


# A registered operator accepts no records as arguments: there a program is a list of integers, six to a record: its code and its fields,
# of which the last one may be None, as -1; then zeros.

_PACKED = 6
_TYPES: dict[int, Any] = {record.code: record for record in (Band, Lengths, SameDocument, Dense, And, Or)}


def pack(program: MaskProgram) -> list[int]:
    """Return the integers of a program."""
    numbers: list[int] = []
    for operation in program:
        fields = [getattr(operation, name) for name in _TYPES[operation.code].__match_args__]
        numbers += [operation.code, *(-1 if x is None else x for x in fields)]
        numbers += [0] * (-len(numbers) % _PACKED)
    return numbers


def unpack(numbers: Sequence[int]) -> MaskProgram:
    """Return the program of these integers."""
    program = []
    for at in range(0, len(numbers), _PACKED):
        record = _TYPES[int(numbers[at])]
        fields: list[int | None] = list(numbers[at + 1 : at + 1 + len(record.__match_args__)])
        if fields and fields[-1] == -1:
            fields[-1] = None
        program.append(record(*fields))
    return tuple(program)
