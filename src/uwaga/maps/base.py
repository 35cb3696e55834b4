"""What every map of weights can do: it is an array that computes the entries that are read.

A subclass says how large it is (`shape`) and how a rectangle of it is computed (`read`); everything here derives from that.

Letters: H query heads, Q queries, K keys, R ragged rows.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from uwaga.maps.indexing import Positions, expand, integer, is_int, per_sequence, start_of
from uwaga.maps.spec import Selection
from uwaga.ops.ragged import Ragged

# What to_dense and a single index make without being told to: the matrix of 12 heads over 4729 tokens in float32.
MAX_BYTES = 2**30
Shape = tuple[Any, ...]  # ints; None where the sequences of a ragged batch differ
_HOW_TO_READ = "read parts of it by m[..., i, j], or all of it by to_dense(max_bytes=...)"
_DIAGONAL_BLOCK = 64  # rows of the blocks that a diagonal is read in


class WeightMap(ABC):
    """Weights (..., H, Q, K), or (Q, K); over a ragged batch one such matrix per sequence. Computed when read."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """(..., H, Q, K) or (Q, K). Of a ragged map (R, H, None, None) or (R, None, None): see `shapes`."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """float32, or float64 for float64."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where results are."""

    @abstractmethod
    def describe(self) -> str:
        """What `repr` says between shape and dtype, such as "mask=None"."""

    @abstractmethod
    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        """(sequences, heads, queries, keys) of a dense map; all dimensions before H count as one, sequences.

        Everything listed is rising and unique, and on the map's device; a weight has the same bits however it is read.
        """

    @abstractmethod
    def parts(self) -> "Sequence[WeightMap] | None":
        """The dense maps (H, Q, K) or (Q, K) of the sequences of a ragged batch; None of a dense map."""

    @property
    def shapes(self) -> list[Shape]:
        """The shape of the map of each sequence of a ragged batch; of a dense map its own alone."""
        parts = self.parts()
        return [self.shape] if parts is None else [part.shape for part in parts]

    @property
    def nbytes(self) -> int:
        """What the dense matrix would take."""
        return sum(math.prod(shape) for shape in self.shapes) * self.dtype.itemsize

    def __getitem__(self, index: object) -> "Tensor | WeightMap":
        """Exact weights at ints, slices, lists and 1-D tensors (as an outer product), as a plain tensor.

        Of a ragged map, m[r] is the map of sequence r, and m[r, h, i, j] is m[r][h, i, j].
        """
        parts = self.parts()
        if parts is None:
            return _rectangle(self, index, MAX_BYTES)
        first, *rest = index if isinstance(index, tuple) else (index,)
        if not is_int(first):
            raise TypeError(
                f"{self.kind}: the first index of a ragged map is the int of a sequence: m[r] or m[r, h, i, j]"
            )
        if not -len(parts) <= int(first) < len(parts):
            raise IndexError(f"{self.kind}: index {int(first)} is out of range for {len(parts)} sequences")
        part = parts[int(first)]
        return part[tuple(rest)] if rest else part

    def row(self, i: int) -> Tensor:
        """(..., H, K): the weights of query i, negative counted from the last."""
        self._need_dense("row")
        return _rectangle(self, (..., i, slice(None)), MAX_BYTES)

    def column(self, j: int) -> Tensor:
        """(..., H, Q): the weights on key j, negative counted from the last."""
        self._need_dense("column")
        return _rectangle(self, (..., j), MAX_BYTES)

    def diagonal(self, offset: int = 0, start: int | Tensor | None = None) -> Tensor | Ragged:
        """(..., H, Q), or Ragged (N, H): for every query i the weight on key i + start + offset, 0 where there is none.

        Args:
            offset: -1 for the previous token.
            start: where query 0 stands among the keys, a number or one per sequence; None: the last query meets the
                last key.

        Raises:
            ValueError: what is no integer, or not one start per sequence.
        """
        offset = integer(offset, f"{self.kind}.diagonal: offset")
        start = start_of(start, f"{self.kind}.diagonal: start")
        parts = self.parts()
        if parts is None:
            return _diagonal(self, offset, start)
        starts = per_sequence(start, (len(parts),), f"{self.kind}.diagonal: start")
        found = [_diagonal(part, offset, one) for part, one in zip(parts, starts, strict=True)]
        none = torch.zeros((0, *self.shape[1:-2]), dtype=self.dtype, device=self.device)
        lengths = torch.tensor([0, *(x.shape[-1] for x in found)], device=self.device)
        return Ragged(torch.cat([none, *(x.movedim(-1, 0) for x in found)]), lengths.cumsum(0))

    def to_dense(self, max_bytes: int = MAX_BYTES) -> Tensor | list[Tensor]:
        """All weights as a tensor, of a ragged map a list of tensors, where they take no more than max_bytes.

        Raises:
            ValueError: they take more.
        """
        if self.nbytes > max_bytes:
            raise ValueError(
                f"{self.kind}.to_dense: the dense matrix {self.shape} takes {self.nbytes} bytes "
                f"({format_bytes(self.nbytes)}), more than max_bytes={max_bytes}"
            )
        parts = self.parts()
        if parts is None:
            return _rectangle(self, (), max_bytes)
        return [_rectangle(part, (), max_bytes) for part in parts]

    def __len__(self) -> int:
        parts = self.parts()
        if parts is None:
            raise TypeError(f"{self.kind}: a dense map has no length; {_HOW_TO_READ}")
        return len(parts)

    def __iter__(self) -> "Iterator[WeightMap]":
        parts = self.parts()
        if parts is None:
            raise TypeError(f"{self.kind}: a dense map cannot be iterated; {_HOW_TO_READ}")
        return iter(parts)

    def __bool__(self) -> bool:
        return True

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        raise TypeError(f"{self.kind}: a map does not turn into an array by itself; {_HOW_TO_READ}")

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        shape = f"({', '.join('?' if size is None else str(size) for size in self.shape)})"
        size = f"{format_bytes(self.nbytes)} as a dense matrix"
        return f"{self.kind}(shape={shape}, {self.describe()}, {kind}, {size})"

    @property
    def kind(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    def _need_dense(self, name: str) -> None:
        if self.parts() is not None:
            raise TypeError(f"{self.kind}.{name}: the sequences of a ragged map have each their own; m[r].{name}(...)")


def _rectangle(m: WeightMap, index: object, max_bytes: int) -> Tensor:
    """The weights at an index; ints drop their dimension."""
    names = [*(f"batch {at}" for at in range(len(m.shape) - 3)), "heads", "queries", "keys"][-len(m.shape) :]
    found = expand(index, m.shape, names, m.kind)
    counts = tuple(positions.length for positions in found)
    takes = math.prod(counts) * m.dtype.itemsize
    if takes > max_bytes:
        raise ValueError(
            f"{m.kind}: reading {counts} weights at once takes {takes} bytes ({format_bytes(takes)}); "
            "read fewer, or all of them by to_dense(max_bytes=...)"
        )
    return _gather(m, found).reshape([positions.length for positions in found if not positions.is_dropped])


def _diagonal(m: WeightMap, offset: int, start: int | Tensor | None) -> Tensor:
    """(..., H, Q): for every query i the weight on key i + start + offset, 0 where there is none."""
    *leading, queries, keys = m.shape
    batch = leading[:-1]
    if not isinstance(start, Tensor):
        first = keys - queries if start is None else start
        return _band(m, range(math.prod(batch)), first + offset).reshape((*leading, queries))
    firsts = per_sequence(start, tuple(batch), f"{m.kind}.diagonal: start")
    found = [_band(m, range(b, b + 1), first + offset) for b, first in enumerate(firsts)]
    return torch.cat(found).reshape((*leading, queries)) if found else _band(m, range(0), 0).reshape(*leading, queries)


def _gather(m: WeightMap, found: list[Positions]) -> Tensor:
    """The unique positions read once, then put in the order of the index: as many dimensions as the map."""
    *leading, queries, keys = [positions.unique for positions in found]
    heads = leading.pop().tolist() if leading else [0]
    flat = torch.zeros(1, dtype=torch.int64, device="cpu")
    for size, listed in zip(m.shape, leading, strict=False):
        flat = (flat[:, None] * size + listed).flatten()
    sizes = [len(positions.unique) for positions in found]
    if all(sizes):
        selection = Selection(tuple(flat.tolist()), tuple(heads), queries.to(m.device))
        weights = m.read(selection, keys.to(m.device)).reshape(sizes)
    else:
        weights = torch.zeros(sizes, dtype=m.dtype, device=m.device)
    for dimension, positions in enumerate(found):
        if positions.order is not None:
            weights = weights.index_select(dimension, positions.order.to(m.device))
    return weights


def _band(m: WeightMap, sequences: range, shift: int) -> Tensor:
    """(sequences, H, Q): the weight of every query i on key i + shift, read in square blocks."""
    *leading, queries, keys = m.shape
    heads = tuple(range(leading[-1] if leading else 1))
    found = torch.zeros((len(sequences), len(heads), queries), dtype=m.dtype, device=m.device)
    if not found.numel():
        return found
    end = min(queries, keys - shift)
    for at in range(max(0, -shift), end, _DIAGONAL_BLOCK):
        rows = torch.arange(at, min(at + _DIAGONAL_BLOCK, end), device=m.device)
        block = m.read(Selection(tuple(sequences), heads, rows), rows + shift)
        found[:, :, rows] = block.diagonal(dim1=-2, dim2=-1)
    return found


def format_bytes(size: int) -> str:
    """A number of bytes as people read it, in powers of 1000.

    >>> format_bytes(805_306_368)
    '805.3 MB'
    """
    if size < 1000:
        return f"{size} bytes"
    power = min((len(str(size)) - 1) // 3, 6)
    return f"{size / 1000**power:.1f} {'kMGTPE'[power - 1]}B"
