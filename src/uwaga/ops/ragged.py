"""A batch of sequences of different lengths, packed one after the other: no padding is stored or computed.

Letters: N packed tokens, R ragged rows (sequences), T the longest of them.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nested._internal.nested_tensor import NestedTensor

from uwaga._base.shapes import NamedShape, shape_error
from uwaga._base.tracing import check_in_graph, is_readable
from uwaga.ops.validation import check_tensor, invalid, is_integer

# What a compiled program says, which cannot say the numbers.
_RULE = "Ragged: offsets must start at 0, must not fall, and must end at the number of packed tokens N; no row may be longer than max_length"


class Cut(NamedTuple):
    """A place to cut a batch: before a row, or within the row after `position` of its tokens."""

    row: int
    position: int | None = None


@final
class Ragged:
    """Store R sequences in one tensor without padding: sequence r is values[offsets[r]:offsets[r + 1]].

    Args:
        values: (N, ...), all tokens; (N, H, D) as an operand of attention, or (N, D) for one head.
        offsets: (R+1,) int64 on the device of values: starts at 0, never falls, ends at N.
        max_length: the length of the longest sequence, or an upper bound of it; None: it is read from the offsets (inside
            torch.compile, where they cannot be read, N is used).
        first: if the first row began in an earlier part of a batch (docs/guides/several-processes.md), the number of its tokens before
            these. None: the first row begins here.

    Raises:
        ShapeError: offsets that do not fit the values. Their numbers are checked on the CPU; a program of torch.compile checks them
            when it runs, and raises RuntimeError.
        ValueError: an argument of another type, offsets that are not int64 or not on the device of values, a `first` below 0 or
            without a row.

    >>> batch = Ragged(torch.arange(5.0), torch.tensor([0, 2, 2, 5]))
    >>> batch
    Ragged(values (5,) float32, lengths [2, 0, 3])
    >>> [row.tolist() for row in batch.to_list()]
    [[0.0, 1.0], [], [2.0, 3.0, 4.0]]
    """

    __slots__ = ("first", "max_length", "offsets", "values")

    def __init__(
        self, values: Tensor, offsets: Tensor, *, max_length: int | None = None, first: int | None = None
    ) -> None:
        _check(values, offsets, max_length)
        if first is not None and not (is_integer(first) and first >= 0 and offsets.shape[0] > 1):
            raise invalid("Ragged", "first", "None, or an integer of at least 0 where there is a row", repr(first))
        self._set(values, offsets.contiguous(), _longest(values, offsets) if max_length is None else max_length, first)

    def _set(self, values: Tensor, offsets: Tensor, max_length: int, first: int | None = None) -> None:
        self.values, self.offsets, self.max_length, self.first = values, offsets, max_length, first

    @staticmethod
    def from_padded(padded: Tensor, lengths: Tensor) -> "Ragged":
        """Pack (R, T, ...) with integer lengths (R,): the tokens after each length are dropped.

        Raises:
            ShapeError: not one length per row.
            ValueError: a length outside 0..T, checked on the CPU; in a program of torch.compile it is Ragged's RuntimeError.
        """
        check_tensor("Ragged.from_padded", "lengths", lengths)
        if lengths.shape != padded.shape[:1]:
            tensors = (_named("padded", padded, "R", "T"), _named("lengths", lengths, "R"))
            raise shape_error(
                "Ragged.from_padded", "there must be one length per row", tensors, "lengths", "is not (R,)"
            )
        if (
            is_readable(lengths)
            and lengths.numel()
            and not 0 <= int(lengths.min()) <= int(lengths.max()) <= padded.shape[1]
        ):
            raise ValueError(
                f"Ragged.from_padded: lengths must lie between 0 and {padded.shape[1]}, not {lengths.tolist()}"
            )
        inside_RT = torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
        longest = padded.shape[1] if torch.compiler.is_compiling() else None
        return Ragged(padded[inside_RT], _offsets(lengths), max_length=longest)

    @staticmethod
    def from_list(rows: Sequence[Tensor]) -> "Ragged":
        """Pack sequences (T_r, ...). Raises ValueError for an empty list, which has neither shape nor dtype."""
        if not rows:
            raise ValueError("Ragged.from_list: needs at least one sequence")
        lengths = torch.tensor([row.shape[0] for row in rows], device=rows[0].device)
        return Ragged(torch.cat(list(rows)), _offsets(lengths))

    @staticmethod
    def from_nested(nested: Tensor) -> "Ragged":
        """Convert a nested tensor of PyTorch with jagged layout, (R, ragged, ...). The result shares its memory.

        Raises:
            ValueError: another kind of tensor, another ragged dimension, or one with holes (with `lengths`).
        """
        if not isinstance(nested, NestedTensor):
            raise ValueError("Ragged.from_nested: needs a nested tensor of layout torch.jagged")
        if nested._ragged_idx != 1 or nested.lengths() is not None:
            raise ValueError(
                "Ragged.from_nested: the ragged dimension must be the second, without holes: (R, ragged, ...)"
            )
        return Ragged(nested.values(), nested.offsets())

    @property
    def lengths(self) -> Tensor:
        """Return the number of tokens of each sequence, (R,) int64."""
        return self.offsets.diff()

    def with_values(self, values: Tensor) -> "Ragged":
        """Return these sequences with other values (N, ...), such as the output of a layer. Raises ShapeError for another N."""
        if values.shape[:1] != self.values.shape[:1]:
            rule = "new values must have as many tokens as the old ones"
            raise _misfit(values, self.offsets, rule, f"end at {self.values.shape[0]}")
        same = Ragged.__new__(Ragged)
        same._set(values, self.offsets, self.max_length, self.first)
        return same

    def part(self, start: Cut, stop: Cut) -> "Ragged":
        """Return the rows, and parts of rows, between two cuts, as views.

        >>> batch = Ragged(torch.arange(5.0), torch.tensor([0, 2, 2, 5]))
        >>> part = batch.part(Cut(2, 1), Cut(3))
        >>> part.values.tolist(), part.first
        ([3.0, 4.0], 1)
        """
        inner = self.offsets[start.row + 1 : stop.row + 1]
        first, last = (int(self.offsets[cut.row]) + (cut.position or 0) for cut in (start, stop))
        ends = [inner, inner.new_tensor([last])] if stop.position is not None else [inner]
        offsets = torch.cat([inner.new_tensor([first]), *ends]) - first
        return Ragged(self.values[first:last], offsets, first=start.position)

    def to_padded(self, *, fill: float = 0.0, length: int | None = None) -> Tensor:
        """Return a padded tensor (R, length, ...), with `fill` after the end of each sequence.

        Args:
            fill: the number after the end of a sequence.
            length: at least max_length, which is the default.

        Raises:
            ValueError: a length below max_length.
        """
        length = self.max_length if length is None else length
        if length < self.max_length:
            raise ValueError(f"Ragged.to_padded: length {length} is less than the longest sequence, {self.max_length}")
        rows = self.offsets.shape[0] - 1
        row_N = torch.repeat_interleave(torch.arange(rows, device=self.values.device), self.lengths)
        target_N = torch.arange(self.values.shape[0], device=self.values.device) - self.offsets[row_N] + row_N * length
        padded = self.values.new_full((rows * length, *self.values.shape[1:]), fill)
        return padded.index_copy(0, target_N, self.values).unflatten(0, (rows, length))

    def to_list(self) -> list[Tensor]:
        """Return views of the sequences, (T_r, ...) each."""
        return list(self.values.split(self.lengths.tolist()))

    def to_nested(self) -> Tensor:
        """Return a nested tensor of PyTorch with jagged layout, (R, ragged, ...). It shares the memory."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    def __repr__(self) -> str:
        kind = str(self.values.dtype).removeprefix("torch.")
        lengths = self.lengths.tolist() if len(self) <= 8 else f"{len(self)} rows up to {self.max_length}"
        first = "" if self.first is None else f", first {self.first}"
        return f"Ragged(values {tuple(self.values.shape)} {kind}, lengths {lengths}{first})"


# What attention takes as query, key or value: a dense tensor, or sequences packed one after the other.
Operand = Tensor | Ragged


class PartOfBatch(NamedTuple):
    """A part of a batch, and which token of the batch its first one is."""

    rows: Ragged
    first_token: int


def part_of(batch: Ragged, number: int, count: int, *, like: Ragged | None = None) -> PartOfBatch:
    """Return one of `count` parts of a batch, each of about as many consecutive tokens. Rows are cut anywhere.

    like: a batch with as many rows; rows are then cut where those of `like` would be, in proportion. Raises ValueError for another number.

    >>> part_of(Ragged(torch.arange(5), torch.tensor([0, 2, 2, 5])), 1, 2)
    PartOfBatch(rows=Ragged(values (3,) int64, lengths [0, 3]), first_token=2)
    """
    if like is not None and len(like) != len(batch):
        raise ValueError(
            f"Ragged: a batch that is cut like another must have as many rows, {len(like)}, not {len(batch)}"
        )
    start, stop = (_cut(batch if like is None else like, n, count) for n in (number, number + 1))
    if like is not None:
        start, stop = (_cut_like(cut, like, batch) for cut in (start, stop))
    return PartOfBatch(batch.part(start, stop), int(batch.offsets[start.row]) + (start.position or 0))


def _cut(batch: Ragged, number: int, count: int) -> Cut:
    """Return where part `number` begins."""
    token = batch.values.shape[0] * number // count
    if number in (0, count):
        return Cut(0 if number == 0 else len(batch))
    row = int(torch.searchsorted(batch.offsets, token))
    if int(batch.offsets[row]) == token:
        return Cut(row)
    return Cut(row - 1, token - int(batch.offsets[row - 1]))


def _cut_like(cut: Cut, rows: Ragged, others: Ragged) -> Cut:
    """Return the cut of other rows at the same row, and the same share of it."""
    if cut.position is None:
        return cut
    length, other = (int(x.offsets[cut.row + 1] - x.offsets[cut.row]) for x in (rows, others))
    return Cut(cut.row, cut.position * other // length)


def _offsets(lengths: Tensor) -> Tensor:
    return torch.cat((lengths.new_zeros(1, dtype=torch.int64), lengths.cumsum(0)))


def _longest(values: Tensor, offsets: Tensor) -> int:
    if torch.compiler.is_compiling():
        return values.shape[0]
    return int(offsets.diff().max()) if offsets.shape[0] > 1 else 0


def _check(values: Tensor, offsets: Tensor, max_length: int | None) -> None:
    check_tensor("Ragged", "values", values)
    check_tensor("Ragged", "offsets", offsets)
    if max_length is not None and not is_integer(max_length):
        raise invalid("Ragged", "max_length", "an integer or None", repr(max_length))
    if values.dim() < 1 or offsets.dim() != 1 or offsets.shape[0] < 1:
        raise _misfit(values, offsets, "values must be (N, ...) and offsets (R+1,)", "needs one dimension")
    if offsets.dtype != torch.int64:
        raise invalid("Ragged", "offsets", "int64", offsets.dtype)
    if offsets.device != values.device:
        raise ValueError(f"Ragged: offsets are on {offsets.device}, values on {values.device}")
    if is_readable(offsets):
        _check_rising(values, offsets, max_length)
    else:
        check_in_graph(offsets, lambda: _is_rising(values, offsets, max_length), _RULE)


def _is_rising(values: Tensor, offsets: Tensor, max_length: int | None) -> Tensor:
    lengths = offsets.diff()
    holds = (offsets[0] == 0) & (lengths >= 0).all() & (offsets[-1] == values.shape[0])
    return holds if max_length is None else holds & (lengths <= max_length).all()


def _check_rising(values: Tensor, offsets: Tensor, max_length: int | None) -> None:
    numbers = offsets.tolist()
    if numbers[0] != 0:
        raise _misfit(values, offsets, "offsets must start at 0", f"offsets[0] is {numbers[0]}")
    for row in range(len(numbers) - 1):
        if numbers[row + 1] < numbers[row]:
            note = f"offsets[{row + 1}] is {numbers[row + 1]} after {numbers[row]}"
            raise _misfit(values, offsets, "offsets must not fall", note)
        if max_length is not None and numbers[row + 1] - numbers[row] > max_length:
            note = f"row {row} has {numbers[row + 1] - numbers[row]} tokens"
            raise _misfit(values, offsets, f"no row may be longer than max_length {max_length}", note)
    if numbers[-1] != values.shape[0]:
        note = f"offsets[{len(numbers) - 1}] is {numbers[-1]}, N is {values.shape[0]}"
        raise _misfit(values, offsets, "offsets must end at the number of packed tokens N", note)


def _misfit(values: Tensor, offsets: Tensor, rule: str, note: str) -> ValueError:
    return shape_error(
        "Ragged", rule, (_named("values", values, "N"), _named("offsets", offsets, "R+1")), "offsets", note
    )


def _named(name: str, tensor: Tensor, *letters: str) -> NamedShape:
    padded = (*letters, *("",) * (tensor.dim() - len(letters)))
    return NamedShape(name=name, shape=tuple(tensor.shape), letters=padded[: max(tensor.dim(), 0)])
