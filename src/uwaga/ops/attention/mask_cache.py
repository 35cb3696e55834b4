"""What a call made of a mask with tensors, kept with the mask: the layers of a model share one, and lay it out once.

Only where the kernels read the mask's own memory, so that what is written there later counts as it does in any call.
"""

from typing import Any, NamedTuple

from torch import Tensor

from uwaga.ops.mask_program import Band, Lengths, MaskProgram, check_lengths, check_starts
from uwaga.ops.masks import Both, Causal, DenseMask, Documents, Either, KeyLengths, Mask, Window

_PARTS = {
    Causal: ("start",),
    Window: ("start",),
    KeyLengths: ("lengths",),
    Documents: ("ids", "query_ids"),
    DenseMask: ("bits",),
    Both: ("left", "right"),
    Either: ("left", "right"),
}


class Remembered(NamedTuple):
    """What one call came to, and what must be as it was for another to come to the same."""

    asked: object  # what of the call must be equal
    offsets: Tensor | None  # of a ragged call: the very same
    tensors: tuple[Tensor, ...]  # of the mask, as it was given them, and the offsets
    places: tuple[tuple, ...]  # where those lay
    read: tuple[Tensor, ...]  # those of the mask as the kernels read them, which keeps their memory alive
    lengths: tuple[Tensor, ...]  # those among them that may not exceed `keys`
    keys: int
    starts: tuple[Tensor, ...]  # those that say where queries stand
    answer: Any


def recall(mask: Mask, asked: object, offsets: Tensor | None) -> Any:
    """The answer to the same question; None where it must be found anew. ValueError where lengths or starts do not fit any
    more."""
    found: Remembered | None = getattr(mask, "remembered", None)
    if found is None or found.asked != asked or found.offsets is not offsets or _places(found.tensors) != found.places:
        return None
    for lengths in found.lengths:
        check_lengths(lengths, found.keys)
    for starts in found.starts:
        check_starts(starts)
    return found.answer


def remember(
    mask: Mask,
    asked: object,
    offsets: Tensor | None,
    program: MaskProgram,
    read: tuple[Tensor, ...],
    keys: int,
    answer: object,
) -> None:
    """Keep an answer with the mask, where that is safe. `read` are the tensors of its `program` over `keys` keys."""
    tensors = _tensors(mask)
    if tensors is None or not _memories(read) <= _memories(tensors):
        return
    if offsets is not None:
        tensors = (*tensors, offsets)
    starts = tuple(read[x.starts] for x in program if isinstance(x, Band) and x.starts is not None)
    lengths = tuple(read[x.lengths] for x in program if isinstance(x, Lengths) and read[x.lengths].numel())
    found = Remembered(asked, offsets, tensors, _places(tensors), read, lengths, keys, starts, answer)
    object.__setattr__(mask, "remembered", found)


def _tensors(mask: Mask) -> tuple[Tensor, ...] | None:
    """Those of a mask; None where a part of it is of a type that is not known here."""
    if type(mask) not in _PARTS:
        return None
    found: tuple[Tensor, ...] = ()
    for part in (getattr(mask, name) for name in _PARTS[type(mask)]):
        if type(part) is Tensor:
            found += (part,)
        elif isinstance(part, Mask):
            inside = _tensors(part)
            if inside is None:
                return None
            found += inside
        elif isinstance(part, Tensor):
            return None
    return found


def _places(tensors: tuple[Tensor, ...]) -> tuple[tuple, ...]:
    return tuple((x.data_ptr(), x.untyped_storage().nbytes(), x.shape, x.stride()) for x in tensors)


def _memories(tensors: tuple[Tensor, ...]) -> set[int]:
    return {x.untyped_storage().data_ptr() for x in tensors}
