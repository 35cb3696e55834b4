"""Caches the layout of a call in its mask, where the mask has tensors: the layers of a model share one mask and one layout.

Only where the kernels read the mask's own memory and no copy of it, so that later writes to the mask take effect.
"""

from typing import NamedTuple

from torch import Tensor

from uwaga.ops.mask_program import Band, Lengths, MaskProgram, check_lengths, check_starts
from uwaga.ops.masks import Both, Causal, DenseMask, Documents, Either, KeyLengths, Mask, Window

_PARTS: dict[type[Mask], tuple[str, ...]] = {
    Causal: ("start",),
    Window: ("start",),
    KeyLengths: ("lengths",),
    Documents: ("ids", "query_ids"),
    DenseMask: ("bits",),
    Both: ("left", "right"),
    Either: ("left", "right"),
}

_Memory = tuple[int, int, tuple[int, ...], tuple[int, ...]]  # address, bytes of the storage, shape and strides


class _Entry(NamedTuple):
    """A cached value, and what must be equal or unchanged for another call to use it."""

    cache_key: object  # the part of the call that must be equal
    offsets: Tensor | None  # of a ragged call; must be the same object
    tensors: tuple[Tensor, ...]  # of the mask, as the user passed them, and the offsets
    memory: tuple[_Memory, ...]  # of `tensors`
    read: tuple[Tensor, ...]  # those of the mask as the kernels read them, which keeps their memory alive
    lengths: tuple[Tensor, ...]  # those among them that may not exceed `keys`
    keys: int
    starts: tuple[Tensor, ...]  # those that say where queries stand
    cached_value: object


def cached(mask: Mask, cache_key: object, offsets: Tensor | None) -> object | None:
    """The value cached for an equal call; None where there is none.

    Raises:
        ValueError: lengths or starts that were overwritten since, and are now out of range.
    """
    value: _Entry | None = getattr(mask, "cached_layout", None)
    if (
        value is None
        or value.cache_key != cache_key
        or value.offsets is not offsets
        or _memory(value.tensors) != value.memory
    ):
        return None
    for lengths in value.lengths:
        check_lengths(lengths, value.keys)
    for starts in value.starts:
        check_starts(starts)
    return value.cached_value


def keep(
    mask: Mask,
    cache_key: object,
    offsets: Tensor | None,
    program: MaskProgram,
    read: tuple[Tensor, ...],
    keys: int,
    cached_value: object,
) -> None:
    """Cache a value in the mask, where that is safe. `read` are the tensors of its `program` over `keys` keys."""
    tensors = _tensors(mask)
    if tensors is None or not _storages(read) <= _storages(tensors):
        return
    if offsets is not None:
        tensors = (*tensors, offsets)
    starts = tuple(read[x.starts] for x in program if isinstance(x, Band) and x.starts is not None)
    lengths = tuple(read[x.lengths] for x in program if isinstance(x, Lengths) and read[x.lengths].numel())
    result = _Entry(cache_key, offsets, tensors, _memory(tensors), read, lengths, keys, starts, cached_value)
    object.__setattr__(mask, "cached_layout", result)


def _tensors(mask: Mask) -> tuple[Tensor, ...] | None:
    """The tensors of a mask; None where a part of it is of an unknown type."""
    if type(mask) not in _PARTS:
        return None
    result: tuple[Tensor, ...] = ()
    for part in (getattr(mask, name) for name in _PARTS[type(mask)]):
        if type(part) is Tensor:
            result += (part,)
        elif isinstance(part, Mask):
            inside = _tensors(part)
            if inside is None:
                return None
            result += inside
        elif isinstance(part, Tensor):
            return None
    return result


def _memory(tensors: tuple[Tensor, ...]) -> tuple[_Memory, ...]:
    return tuple((x.data_ptr(), x.untyped_storage().nbytes(), x.shape, x.stride()) for x in tensors)


def _storages(tensors: tuple[Tensor, ...]) -> set[int]:
    return {x.untyped_storage().data_ptr() for x in tensors}
