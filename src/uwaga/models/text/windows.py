"""What becomes of a document that is longer than the model: the policy, and where its windows lie."""

from dataclasses import dataclass
from itertools import pairwise

from uwaga.ops.validation import is_integer

OVERFLOW = ("error", "truncate", "mean", "windows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How documents of more than `max_tokens` tokens are cut.

    error       they are refused
    truncate    their first `max_tokens` tokens
    mean        one vector, the mean of those of their windows
    windows     one vector for each of their windows

    Raises:
        ValueError: an unknown policy, or an overlap that leaves nothing new to a window.
    """

    overflow: str = "error"
    overlap: int = 0  # tokens that neighbouring windows share
    max_tokens: int | None = None  # tokens of a document, special ones apart, that the model takes; None: any number

    def __post_init__(self) -> None:
        if self.overflow not in OVERFLOW:
            raise ValueError(
                f"TextEncoder: overflow must be one of {', '.join(map(repr, OVERFLOW))}, not {self.overflow!r}"
            )
        if self.overlap and self.overflow not in ("mean", "windows"):
            raise ValueError(f"TextEncoder: overlap needs overflow='mean' or 'windows', not {self.overflow!r}")
        if (
            not is_integer(self.overlap)
            or self.overlap < 0
            or (self.max_tokens is not None and self.overlap >= self.max_tokens)
        ):
            least = "at least 0" if self.max_tokens is None else f"from 0 to {self.max_tokens - 1}"
            raise ValueError(f"TextEncoder: overlap must be {least}, not {self.overlap!r}")

    def is_long(self, tokens: int) -> bool:
        return self.max_tokens is not None and tokens > self.max_tokens

    def windows(self, tokens: int) -> list[tuple[int, int]]:
        """Where the windows of a document of so many tokens start and stop.

        As few as possible, and all of one size, give or take a token: then no vector stands for a remainder of three
        words, and a plain mean weighs every token alike.

        >>> Policy(overflow="mean", max_tokens=4).windows(9)
        [(0, 3), (3, 6), (6, 9)]
        >>> Policy(overflow="windows", max_tokens=4, overlap=1).windows(9)
        [(0, 3), (2, 6), (5, 9)]
        """
        if self.max_tokens is None or not self.is_long(tokens):
            return [(0, tokens)]
        if self.overflow == "truncate":
            return [(0, self.max_tokens)]
        assert self.overflow != "error"
        new = tokens - self.overlap  # tokens that are in no earlier window, the first window's overlap apart
        count = -(-new // (self.max_tokens - self.overlap))
        starts = [new * window // count for window in range(count + 1)]
        return [(start, stop + self.overlap) for start, stop in pairwise(starts)]
