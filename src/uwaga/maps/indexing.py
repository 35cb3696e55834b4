"""Indexing of maps: from what `m[...]` accepts to positions of every dimension.

A dimension takes an int (which drops it), a slice, a list, a 1-D integer tensor or a 1-D bool tensor; lists of several
dimensions combine as an outer product, as by NumPy's ix_.
"""

import math
from collections.abc import Sequence
from operator import index as as_int
from typing import Any, NamedTuple, SupportsIndex, TypeGuard

import torch
from torch import Tensor

_MAX_POSITION = 1 << 40  # larger than any position


class Positions(NamedTuple):
    """The indexed positions of one dimension."""

    unique: Tensor  # (n,) int64, ascending
    order: Tensor | None  # (m,) int64 indices into `unique`, in the order of the result; None: all, in order
    is_dropped: bool  # indexed by an int, so that the result lacks the dimension

    @property
    def length(self) -> int:
        return len(self.unique) if self.order is None else len(self.order)


def expand(index: object, shape: Sequence[int], names: Sequence[str], kind: str) -> list[Positions]:
    """The indexed positions of every dimension of a shape.

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


def integer(value: object, name: str) -> int:
    """The int of an integer of Python, NumPy or PyTorch, bounded so that adding positions cannot overflow int64.

    Raises:
        ValueError: anything else.
    """
    try:
        result = as_int(value) if is_int(value) else None
    except TypeError:  # a floating tensor
        result = None
    if result is None:
        raise ValueError(f"{name} must be an integer, not {value!r}")
    if abs(result) > _MAX_POSITION:
        raise ValueError(f"{name} must lie between -{_MAX_POSITION} and {_MAX_POSITION}, not {result}")
    return result


def integers(value: int | Tensor, name: str) -> int | Tensor:
    """The same for a number or a tensor of integers, which is returned as it is."""
    if not isinstance(value, Tensor):
        return integer(value, name)
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        raise ValueError(f"{name} must be integers, not {value.dtype}")
    return value


def optional_integers(start: int | Tensor | None, name: str) -> int | Tensor | None:
    """The same where None is allowed."""
    return None if start is None else integers(start, name)


def per_sequence(value: int | Tensor | None, batch: tuple[int, ...], name: str) -> list[Any]:
    """One value for each sequence of the batch dimensions.

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


def is_int(part: object) -> TypeGuard[SupportsIndex]:
    """Whether an index is a single position: an integer of Python, NumPy or PyTorch, and not a bool."""
    if isinstance(part, bool) or (isinstance(part, Tensor) and part.dtype == torch.bool):
        return False
    return hasattr(part, "__index__") and getattr(part, "ndim", None) in (None, 0)


def _positions(part: object, size: int, axis: str, kind: str) -> Positions:
    if isinstance(part, slice):
        return _of_range(range(*part.indices(size)))
    if is_int(part):
        at = int(part)
        if not -size <= at < size:
            raise _out_of_range(at, size, axis, kind)
        return Positions(torch.tensor([at % size], device="cpu"), None, True)
    if isinstance(part, (list, range)) or hasattr(part, "__array__"):
        return _of_list(
            torch.as_tensor(part if not isinstance(part, range) else list(part), device="cpu"), size, axis, kind
        )
    raise TypeError(
        f"{kind}: an index of {axis} must be an int, a slice, a list or a 1-D tensor, not {type(part).__name__}"
    )


def _of_range(positions: range) -> Positions:
    if positions.step < 0:
        rising = _of_range(positions[::-1])
        return rising._replace(order=torch.arange(len(positions) - 1, -1, -1, device="cpu"))
    stop = max(positions.stop, positions.start)
    return Positions(torch.arange(positions.start, stop, positions.step, device="cpu"), None, False)


def _of_list(listed: Tensor, size: int, axis: str, kind: str) -> Positions:
    if listed.dim() != 1:
        raise IndexError(f"{kind}: an index of {axis} must have one dimension, not {listed.dim()}")
    if listed.dtype == torch.bool:
        if len(listed) != size:
            raise IndexError(f"{kind}: a bool index of {len(listed)} for {axis} of size {size}")
        return Positions(listed.nonzero().squeeze(-1), None, False)
    if len(listed) and (listed.dtype.is_floating_point or listed.dtype.is_complex):
        raise TypeError(f"{kind}: an index of {axis} must hold integers or bools, not {listed.dtype}")
    unique, order = _normalized(listed.long(), size, axis, kind).unique(return_inverse=True)
    is_rising = len(unique) == len(listed) and bool((order.diff() > 0).all())
    return Positions(unique, None if is_rising else order, False)


def _normalized(listed: Tensor, size: int, axis: str, kind: str) -> Tensor:
    """Positions counted from the front. Raises IndexError for one that is out of range."""
    outside = listed[(listed < -size) | (listed >= size)]
    if len(outside):
        raise _out_of_range(int(outside[0]), size, axis, kind)
    return torch.where(listed < 0, listed + size, listed)


def _out_of_range(at: int, size: int, axis: str, kind: str) -> IndexError:
    return IndexError(f"{kind}: index {at} is out of range for {axis} of size {size}")
