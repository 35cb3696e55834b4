"""One sequence of a dense map, or one head of it.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, D query/key width.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from uwaga.maps.indexing import integer
from uwaga.maps.narrow import narrow
from uwaga.maps.spec import Normalizer
from uwaga.ops.attention.call import Call

Part = tuple[Tensor, Tensor, Call, Normalizer | None]


def places(at: Sequence[int], leading: Sequence[int]) -> tuple[int, ...]:
    """Indices of leading dimensions, counted from the front.

    Raises:
        IndexError: too many of them, or one that is out of range.
        ValueError: one that is no integer.
    """
    if len(at) > len(leading):
        raise IndexError(f"AttentionMap.select: {len(at)} indices for the leading dimensions {tuple(leading)}")
    chosen = [integer(index, "AttentionMap.select: an index") for index in at]
    for axis, (index, size) in enumerate(zip(chosen, leading, strict=False)):
        if not -size <= index < size:
            raise IndexError(f"AttentionMap.select: index {index} is out of range for axis {axis} of size {size}")
    return tuple(index % size for index, size in zip(chosen, leading, strict=False))


def part(query: Tensor, key: Tensor, call: Call, known: Normalizer | None, at: tuple[int, ...]) -> Part:
    """The query (..., H, Q, D), the key (..., G, K, D), the call and what is known of its rows, at leading indices."""
    batch, heads = query.shape[:-3], call.query.shape[1]
    first, count = _flat(at[: len(batch)], batch)
    chosen = range(at[-1], at[-1] + 1) if len(at) > len(batch) else range(heads)
    some = narrow(call, tuple(range(first, first + count)), tuple(chosen))
    if known is not None:
        known = Normalizer(*(x[first : first + count, chosen.start : chosen.stop] for x in known))
    of_key = (*at[: len(batch)], *(head // call.heads_per_key_head for head in at[len(batch) :]))
    return query[at], key[of_key], some, known


def _flat(at: tuple[int, ...], batch: Sequence[int]) -> tuple[int, int]:
    """The first of the sequences at leading indices, and how many they are; they lie side by side."""
    first = 0
    for index, size in zip(at, batch, strict=False):
        first = first * size + index
    count = math.prod(batch[len(at) :])
    return first * count, count
