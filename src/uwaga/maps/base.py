"""What every map of weights can do: it is an array that computes the entries that are read.

A kind of map says how large it is and how a rectangle of it is computed; everything here derives from that.

Letters: H query heads, Q queries, K keys, R ragged rows.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from uwaga.maps import reading
from uwaga.maps.indexing import integer, is_int, per_sequence, start_of
from uwaga.maps.spec import Selection
from uwaga.ops.ragged import Ragged

# What to_dense and a single index make without being told to: the matrix of 12 heads over 4729 tokens in float32.
MAX_BYTES = 2**30

Shape = tuple[Any, ...]  # ints; None where the sequences of a ragged batch differ

_HOW_TO_READ = "read parts of it by m[..., i, j], or all of it by to_dense(max_bytes=...)"


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
            return reading.rectangle(self, index, MAX_BYTES)
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
        return reading.rectangle(self, (..., i, slice(None)), MAX_BYTES)

    def column(self, j: int) -> Tensor:
        """(..., H, Q): the weights on key j, negative counted from the last."""
        self._need_dense("column")
        return reading.rectangle(self, (..., j), MAX_BYTES)

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
            return reading.diagonal(self, offset, start)
        starts = per_sequence(start, (len(parts),), f"{self.kind}.diagonal: start")
        found = [reading.diagonal(part, offset, one) for part, one in zip(parts, starts, strict=True)]
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
                f"({reading.readable(self.nbytes)}), more than max_bytes={max_bytes}"
            )
        parts = self.parts()
        if parts is None:
            return reading.rectangle(self, (), max_bytes)
        return [reading.rectangle(part, (), max_bytes) for part in parts]

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
        size = f"{reading.readable(self.nbytes)} as a dense matrix"
        return f"{self.kind}(shape={shape}, {self.describe()}, {kind}, {size})"

    @property
    def kind(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    def _need_dense(self, name: str) -> None:
        if self.parts() is not None:
            raise TypeError(f"{self.kind}.{name}: the sequences of a ragged map have each their own; m[r].{name}(...)")
