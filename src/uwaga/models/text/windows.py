"""What becomes of a document that is longer than the model: the policy, and where its windows lie."""

from dataclasses import dataclass
from itertools import pairwise

from uwaga.ops.values import is_integer

LONG = ("error", "truncate", "mean", "windows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How documents of more than `room` tokens are cut.

    error       they are refused
    truncate    their first `room` tokens
    mean        one vector, the mean of those of their windows
    windows     one vector for each of their windows

    Raises:
        ValueError: an unknown policy, or an overlap that leaves nothing new to a window.
    """

    long: str = "error"
    overlap: int = 0  # tokens that neighbouring windows share
    room: int | None = None  # tokens of a document, special ones apart, that the model takes; None: any number

    def __post_init__(self) -> None:
        if self.long not in LONG:
            raise ValueError(f"TextEncoder: long must be one of {', '.join(map(repr, LONG))}, not {self.long!r}")
        if self.overlap and self.long not in ("mean", "windows"):
            raise ValueError(f"TextEncoder: overlap belongs to long='mean' and long='windows', not to {self.long!r}")
        if not is_integer(self.overlap) or self.overlap < 0 or (self.room is not None and self.overlap >= self.room):
            least = "at least 0" if self.room is None else f"from 0 to {self.room - 1}"
            raise ValueError(f"TextEncoder: overlap must be {least}, not {self.overlap!r}")

    def is_long(self, tokens: int) -> bool:
        return self.room is not None and tokens > self.room

    def windows(self, tokens: int) -> list[tuple[int, int]]:
        """Where the windows of a document of so many tokens start and stop.

        As few as possible, and all of one size, give or take a token: then no vector stands for a remainder of three
        words, and a plain mean weighs every token alike.

        >>> Policy(long="mean", room=4).windows(9)
        [(0, 3), (3, 6), (6, 9)]
        >>> Policy(long="windows", room=4, overlap=1).windows(9)
        [(0, 3), (2, 6), (5, 9)]
        """
        if self.room is None or not self.is_long(tokens):
            return [(0, tokens)]
        if self.long == "truncate":
            return [(0, self.room)]
        assert self.long != "error"
        new = tokens - self.overlap  # tokens that are in no earlier window, the first window's overlap apart
        count = -(-new // (self.room - self.overlap))
        starts = [new * window // count for window in range(count + 1)]
        return [(start, stop + self.overlap) for start, stop in pairwise(starts)]
