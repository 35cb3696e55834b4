"""The base class of all maps: a virtual array whose entries are computed when they are read.

A subclass defines its size (`shape`) and computes a rectangle of it (`read`); the methods of the base class use these two.

In m[...] a dimension takes an int (which drops it), a slice, a list, a 1-D integer tensor or a 1-D bool tensor. Lists of several
dimensions combine as an outer product, like NumPy's ix_.

Letters: H query heads, Q queries, K keys, R ragged rows.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from uwaga._base.arguments import check, integer, is_int
from uwaga.maps.spec import Selection
from uwaga.ops.ragged import Ragged

# The default limit of to_dense and of one index: the matrix of 12 heads over 4729 tokens in float32.
MAX_BYTES = 2**30
Shape = tuple[Any, ...]  # ints; None if the sequences of a ragged batch differ
MAX_NESTING = 100  # maps of maps are read by recursion, and Python has a thousand frames
_HOW_TO_READ = "read parts of it by m[..., i, j], or all of it by to_dense(max_bytes=...)"
_DIAGONAL_BLOCK = 64  # rows of the square blocks in which a diagonal is read


class WeightMap(ABC):
    """Compute attention weights (..., H, Q, K) or (Q, K) when they are read; a ragged batch has a matrix per sequence."""

    __slots__ = ()

    @property
    def nesting(self) -> int:
        """The number of maps on the longest path from this map to one of queries and keys, whose nesting is 0."""
        return 0

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The sizes (..., H, Q, K) or (Q, K); for a ragged map (R, H, None, None) or (R, None, None), see `shapes`."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """float32, or float64 for float64."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the results."""

    @abstractmethod
    def describe(self) -> str:
        """Return the part of `repr` between shape and dtype, such as "mask=None"."""

    @abstractmethod
    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        """Compute the weights (sequences, heads, queries, keys) of the selected rows of a dense map at these keys.

        All dimensions before H are flattened to sequences. Positions are ascending, unique, and on the map's device. A weight
        has the same bits in every rectangle.
        """

    def read_entries(self, selection: Selection, keys: Tensor) -> Tensor:
        """Compute the entries m[...] like `read`, with a gradient if the map has one."""
        return self.read(selection, keys)

    @abstractmethod
    def parts(self) -> "Sequence[WeightMap] | None":
        """Return the maps (H, Q, K) or (Q, K) of a ragged batch's sequences; None for a dense map."""

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of `parts()`; for a dense map its own shape only."""
        parts = self.parts()
        return [self.shape] if parts is None else [part.shape for part in parts]

    @property
    def nbytes(self) -> int:
        """The bytes that the dense matrix would take."""
        return sum(math.prod(shape) for shape in self.shapes) * self.dtype.itemsize

    def __getitem__(self, index: object) -> Any:
        """Compute the exact weights at ints, slices, lists and 1-D tensors; lists combine as an outer product.

        For a ragged map, m[r] is the map of sequence r, and m[r, h, i, j] is m[r][h, i, j].

        Raises:
            IndexError: a position out of range, a bool index of the wrong length, or too many indices.
            TypeError: an index of another type.
            ValueError: the result would take more than 1 GiB.
        """
        if self.parts() is None:
            return read_rectangle(self, index)
        first, *rest = index if isinstance(index, tuple) else (index,)
        part = map_of_sequence(self, first)
        return part[tuple(rest)] if rest else part

    def row(self, i: int) -> Tensor:
        """Compute the weights (..., H, K) of query i; a negative i counts from the end."""
        self._check_dense("row")
        return read_rectangle(self, (..., i, slice(None)))

    def column(self, j: int) -> Tensor:
        """Compute the weights (..., H, Q) on key j; a negative j counts from the end."""
        self._check_dense("column")
        return read_rectangle(self, (..., j))

    def diagonal(self, offset: int = 0, start: int | Tensor | None = None) -> Tensor | Ragged:
        """Compute the weight of every query i on key i + start + offset; 0 without such a key.

        The result is (..., H, Q), or Ragged (N, H).

        Args:
            offset: -1 for the previous token.
            start: the position of query 0 among the keys, a number or one per sequence; None: the last query is at the
                last key.

        Raises:
            ValueError: offset or start is not an integer, or there is not one start per sequence.
        """
        offset = integer(offset, f"{self.kind}.diagonal: offset")
        start = integers(start, f"{self.kind}.diagonal: start")
        parts = self.parts()
        if parts is None:
            return _diagonal(self, offset, start)
        starts = per_sequence(start, (len(parts),), f"{self.kind}.diagonal: start")
        return packed(self, [_diagonal(part, offset, one) for part, one in zip(parts, starts, strict=True)])

    def to_dense(self, max_bytes: int = MAX_BYTES) -> Tensor | list[Tensor]:
        """Compute all weights as one tensor; for a ragged map a list of tensors.

        Raises:
            ValueError: they take more than max_bytes.
        """
        if self.nbytes > max_bytes:
            raise ValueError(
                f"{self.kind}.to_dense: the dense matrix {self.shape} takes {self.nbytes} bytes "
                f"({format_bytes(self.nbytes)}), more than max_bytes={max_bytes}"
            )
        parts = self.parts()
        if parts is None:
            return read_rectangle(self, (), max_bytes)
        return [read_rectangle(part, (), max_bytes) for part in parts]

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
        raise TypeError(f"{self.kind}: a map is not converted to an array implicitly; {_HOW_TO_READ}")

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        shape = f"({', '.join('?' if size is None else str(size) for size in self.shape)})"
        size = f"{format_bytes(self.nbytes)} as a dense matrix"
        return f"{self.kind}(shape={shape}, {self.describe()}, {kind}, {size})"

    @property
    def kind(self) -> str:
        """The name of the class, for messages."""
        return type(self).__name__

    def _check_dense(self, name: str) -> None:
        """Raise TypeError for a ragged map."""
        if self.parts() is not None:
            raise TypeError(f"{self.kind}.{name}: a ragged map has one per sequence; use m[r].{name}(...)")


class DerivedMap(WeightMap):
    """Share the shape, dtype and device of another map, `map`, which a subclass sets."""

    __slots__ = ("map",)

    map: WeightMap

    @property
    def nesting(self) -> int:
        return 1 + self.map.nesting

    @property
    def shape(self) -> Shape:
        return self.map.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.map.dtype

    @property
    def device(self) -> torch.device:
        return self.map.device


# Positions of one dimension.


class Positions(NamedTuple):
    """Hold the indexed positions of one dimension."""

    unique: Tensor  # (n,) int64, ascending
    order: Tensor | None  # (m,) int64 indices into `unique`, in the order of the result; None: all, in order
    is_dropped: bool  # indexed by an int, so that the result lacks the dimension

    @property
    def length(self) -> int:
        return len(self.unique) if self.order is None else len(self.order)


def expand(index: object, shape: Sequence[int], names: Sequence[str], kind: str) -> list[Positions]:
    """Return the indexed positions of every dimension of a shape.

    Raises:
        IndexError: a position out of range, a bool index of another length, or too many indices.
        TypeError: an index of another type.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    at = [place for place, part in enumerate(parts) if part is Ellipsis]
    if len(at) > 1:
        raise IndexError(f"{kind}: an index may have one ellipsis, not {len(at)}")
    missing = len(shape) - (len(parts) - len(at))
    if missing < 0:
        raise IndexError(f"{kind}: {len(parts) - len(at)} indices for the {len(shape)} dimensions ({', '.join(names)})")
    place = at[0] if at else len(parts)
    parts[place : place + len(at)] = [slice(None)] * missing
    return [
        _positions(part, size, f"axis {axis} ({name})", kind)
        for axis, (part, size, name) in enumerate(zip(parts, shape, names, strict=True))
    ]


def integers(value: int | Tensor | None, name: str) -> int | Tensor | None:
    """Check a number with `integer`, or return a tensor of integers or None unchanged."""
    if not isinstance(value, Tensor):
        return None if value is None else integer(value, name)
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        raise ValueError(f"{name} must be integers, not {value.dtype}")
    return value


def per_sequence(value: int | Tensor | None, batch: tuple[int, ...], name: str) -> list[Any]:
    """Return one value for each sequence of the batch dimensions.

    Raises:
        ValueError: a tensor that does not broadcast to the batch dimensions.
    """
    if not isinstance(value, Tensor):
        return [value] * math.prod(batch)
    try:
        return value.broadcast_to(batch).flatten().tolist()
    except RuntimeError:
        raise ValueError(
            f"{name} must broadcast to the batch dimensions {batch}, not be {tuple(value.shape)}"
        ) from None


def _positions(part: object, size: int, axis: str, kind: str) -> Positions:
    if isinstance(part, slice):
        return _of_range(range(*part.indices(size)))
    if type(part) is int or is_int(part):
        at = int(part)
        if not -size <= at < size:
            raise _out_of_range(at, size, axis, kind)
        return Positions(torch.tensor([at % size], device="cpu"), None, True)
    if isinstance(part, (list, range)) or hasattr(part, "__array__"):
        positions = torch.as_tensor(list(part) if isinstance(part, range) else part, device="cpu")
        return _of_list(positions, size, axis, kind)
    raise TypeError(
        f"{kind}: an index of {axis} must be an int, a slice, a list or a 1-D tensor, not {type(part).__name__}"
    )


def _of_range(positions: range) -> Positions:
    if positions.step < 0:
        rising = _of_range(positions[::-1])
        return rising._replace(order=torch.arange(len(positions) - 1, -1, -1, device="cpu"))
    stop = max(positions.stop, positions.start)
    return Positions(torch.arange(positions.start, stop, positions.step, device="cpu"), None, False)


def _of_list(index: Tensor, size: int, axis: str, kind: str) -> Positions:
    if index.dim() != 1:
        raise IndexError(f"{kind}: an index of {axis} must have one dimension, not {index.dim()}")
    if index.dtype == torch.bool:
        if len(index) != size:
            raise IndexError(f"{kind}: a bool index of {len(index)} for {axis} of size {size}")
        return Positions(index.nonzero().squeeze(-1), None, False)
    if len(index) and (index.dtype.is_floating_point or index.dtype.is_complex):
        raise TypeError(f"{kind}: an index of {axis} must hold integers or bools, not {index.dtype}")
    index = index.long()
    outside = index[(index < -size) | (index >= size)]
    if len(outside):
        raise _out_of_range(int(outside[0]), size, axis, kind)
    unique, order = torch.where(index < 0, index + size, index).unique(return_inverse=True)
    is_rising = len(unique) == len(index) and bool((order.diff() > 0).all())
    return Positions(unique, None if is_rising else order, False)


def _out_of_range(at: int, size: int, axis: str, kind: str) -> IndexError:
    return IndexError(f"{kind}: index {at} is out of range for {axis} of size {size}")


# Reading by positions.


def check_nesting(name: str, m: WeightMap) -> WeightMap:
    """Return a map that `name` is computed from. Raises ValueError: too many maps are nested."""
    check(m.nesting < MAX_NESTING, f"{name}: more than {MAX_NESTING} maps are computed one from another")
    return m


def count_heads(m: WeightMap) -> int:
    """Return H of a dense map; 1 for a map (Q, K)."""
    return int(m.shape[-3]) if len(m.shape) > 2 else 1


def packed(
    m: WeightMap, parts: Sequence[Tensor], axis: int = -1, *others: int, dtype: torch.dtype | None = None
) -> Ragged:
    """Pack (H, ..., n, ...) of each sequence of a ragged map into Ragged (N, H, ...); there may be no sequence.

    Args:
        axis: the axis of the queries or keys in each part.
        others: the sizes after H.
        dtype: the dtype of the result; None for the map's.
    """
    empty = torch.zeros((0, *m.shape[1:-2], *others), dtype=dtype or m.dtype, device=m.device)
    lengths = torch.tensor([0, *(x.shape[axis] for x in parts)], device=m.device)
    return Ragged(torch.cat([empty, *(x.movedim(axis, 0) for x in parts)]), lengths.cumsum(0))


def map_of_sequence(m: WeightMap, index: object) -> WeightMap:
    """Return m[index] of a ragged map. Raises IndexError; TypeError: an index that is not an int."""
    parts = m.parts()
    assert parts is not None
    if not is_int(index):
        raise TypeError(
            f"{m.kind}: the first index of a ragged map must be the int of a sequence: m[r] or m[r, h, i, j]"
        )
    if not -len(parts) <= int(index) < len(parts):
        raise IndexError(f"{m.kind}: index {int(index)} is out of range for {len(parts)} sequences")
    return parts[int(index)]


def read_rectangle(m: WeightMap, index: object, max_bytes: int = MAX_BYTES) -> Tensor:
    """Return m[index] of a dense map; ints drop their dimension. Raises ValueError: more than max_bytes."""
    names = [*(f"batch {at}" for at in range(len(m.shape) - 3)), "heads", "queries", "keys"][-len(m.shape) :]
    result = expand(index, m.shape, names, m.kind)
    counts = tuple(positions.length for positions in result)
    shape = [count for count, positions in zip(counts, result, strict=True) if not positions.is_dropped]
    size = math.prod(counts) * m.dtype.itemsize
    if size > max_bytes:
        raise ValueError(
            f"{m.kind}: reading {counts} weights at once takes {size} bytes ({format_bytes(size)}); "
            "read fewer, or all of them by to_dense(max_bytes=...)"
        )
    return _gather(m, result).reshape(shape)


def _diagonal(m: WeightMap, offset: int, start: int | Tensor | None) -> Tensor:
    """Compute `WeightMap.diagonal` of a dense map."""
    *leading, queries, keys = m.shape
    batch = leading[:-1]
    if not isinstance(start, Tensor):
        first = keys - queries if start is None else start
        return _band(m, range(math.prod(batch)), first + offset).reshape((*leading, queries))
    firsts = per_sequence(start, tuple(batch), f"{m.kind}.diagonal: start")
    results = [_band(m, range(b, b + 1), first + offset) for b, first in enumerate(firsts)]
    return torch.cat([_band(m, range(0), 0), *results]).reshape((*leading, queries))


def _gather(m: WeightMap, indices: list[Positions]) -> Tensor:
    """Return the weights at the positions, with all dimensions of the map; each position is read once."""
    *leading, queries, keys = [positions.unique for positions in indices]
    heads = leading.pop().tolist() if leading else [0]
    flat = torch.zeros(1, dtype=torch.int64, device="cpu")
    for size, chosen in zip(m.shape, leading, strict=False):
        flat = (flat[:, None] * size + chosen).flatten()
    sizes = [len(positions.unique) for positions in indices]
    if all(sizes):
        selection = Selection(tuple(flat.tolist()), tuple(heads), queries.to(m.device))
        weights = m.read_entries(selection, keys.to(m.device)).reshape(sizes)
    else:
        weights = torch.zeros(sizes, dtype=m.dtype, device=m.device)
    for dimension, positions in enumerate(indices):
        if positions.order is not None:
            weights = weights.index_select(dimension, positions.order.to(m.device))
    return weights


def _band(m: WeightMap, sequences: range, shift: int) -> Tensor:
    """Return the weight of every query i on key i + shift, (sequences, H, Q), read in square blocks."""
    queries, keys = m.shape[-2:]
    heads = tuple(range(count_heads(m)))
    result = torch.zeros((len(sequences), len(heads), queries), dtype=m.dtype, device=m.device)
    if not result.numel():
        return result
    end = min(queries, keys - shift)
    for at in range(max(0, -shift), end, _DIAGONAL_BLOCK):
        rows = torch.arange(at, min(at + _DIAGONAL_BLOCK, end), device=m.device)
        block = m.read(Selection(tuple(sequences), heads, rows), rows + shift)
        result[:, :, rows] = block.diagonal(dim1=-2, dim2=-1)
    return result


def format_bytes(size: int) -> str:
    """Return a number of bytes with a decimal unit (1 kB is 1000 bytes).

    >>> format_bytes(805_306_368)
    '805.3 MB'
    """
    if size < 1000:
        return f"{size} bytes"
    power = min((len(str(size)) - 1) // 3, 6)
    return f"{size / 1000**power:.1f} {'kMGTPE'[power - 1]}B"
