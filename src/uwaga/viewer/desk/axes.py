"""The items along an axis: tokens or words, with or without special tokens.

Letters: T tokens of a text, I items.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from uwaga.viewer.pieces import Pieces, joined, word_ranges

MERGES = ("tokens", "words")
SPECIALS = ("show", "hide")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """I items of one text.

    spans: (I, 2) int32, the tokens [start, stop) of each.
    kept: the tokens that are not hidden, None where none is.
    words: per item its [start, stop) among the kept tokens; None where items are tokens.
    """

    labels: list[str]
    glued: list[bool]
    specials: list[int]
    spans: NDArray[np.int32]
    kept: list[int] | None
    words: list[tuple[int, int]] | None

    def __len__(self) -> int:
        return len(self.labels)


def axis(read: Pieces, *, merge: str, specials: str) -> Axis:
    """The items of a text. At least one stays: a text of special tokens alone keeps them."""
    hides = specials == "hide" and any(read.special) and not all(read.special)
    kept = [at for at, special in enumerate(read.special) if not special] if hides else None
    left = read if kept is None else read.some(kept)
    if merge == "words":
        left = left._replace(starts=[begins or at == 0 for at, begins in enumerate(left.starts)])
    words = word_ranges(left) if merge == "words" else None
    items = [(at, at + 1) for at in range(len(left.labels))] if words is None else words
    place = list(range(len(read.labels))) if kept is None else kept
    spans = np.array([(place[start], place[stop - 1] + 1) for start, stop in items], np.int32).reshape(-1, 2)
    return Axis(
        labels=left.labels if words is None else [joined(left, *word) for word in words],
        glued=[left.glued[start] for start, _ in items],
        specials=[at for at, (start, _) in enumerate(items) if left.special[start]],
        spans=spans,
        kept=kept,
        words=words,
    )
