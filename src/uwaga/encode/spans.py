"""Which tokens are in which spans of a text, for late chunking.

Letters: N tokens of a group of texts, T of one text, R rows of the result, each a span.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from uwaga.data.passages import SPLITS, Span, split_spans
from uwaga.ops.validation import is_integer

SpansOf = Callable[[int, str], Sequence[Span]]  # of the number of a text, and the text


class SpanTokens(NamedTuple):
    """The tokens of the spans of a group of texts."""

    tokens: np.ndarray  # (N,) int64: their places among the tokens of the group, span by span
    offsets: np.ndarray  # (R+1,) int64

    @staticmethod
    def of(spans: Sequence[np.ndarray]) -> "SpanTokens":
        offsets = np.cumsum([0, *map(len, spans)], dtype=np.int64)
        return SpanTokens(np.concatenate([np.zeros(0, np.int64), *spans]), offsets)

    def of_rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of the rows from `start` up to `stop`, and the offsets of these rows in them."""
        offsets = self.offsets[start : stop + 1]
        return self.tokens[offsets[0] : offsets[-1]], offsets - offsets[0]


def spans_of(spans: Any, count: int | None) -> SpansOf:
    """The spans of each of `count` texts, from what `TextEncoder.encode` takes. Raises ValueError."""
    if isinstance(spans, str):
        if spans not in SPLITS:
            raise ValueError(f"TextEncoder: spans must be lists of spans, or one of {', '.join(SPLITS)}, not {spans!r}")
        return lambda _, text: split_spans(text, spans)  # type: ignore[arg-type]
    if not isinstance(spans, Sequence):
        raise ValueError(f"TextEncoder: spans must be a list of spans for each text, not {type(spans).__name__}")
    if len(spans) != count:
        raise ValueError(f"TextEncoder: there are {count} texts, and spans of {len(spans)}")
    for number, each in enumerate(spans):
        if not isinstance(each, Sequence) or not all(map(_is_span, each)):
            raise ValueError(
                f"TextEncoder: the spans of document {number} must be a list of pairs (start, stop) of integers"
            )
    return lambda number, _: [(int(start), int(stop)) for start, stop in spans[number]]


def _is_span(span: object) -> bool:
    return isinstance(span, Sequence) and len(span) == 2 and all(map(is_integer, span))


def span_tokens(
    text: str, spans: Sequence[Span], offsets: Sequence[tuple[int, int]], prompt: int
) -> list[np.ndarray] | str:
    """For each span the numbers of its tokens, rising, or why there are none.

    offsets: (start, stop) of each of T tokens in the text after a prompt of so many characters. A token is in the span that has its
    first character which is no white space, or its first one where it is nothing else.
    """
    if not spans:
        return "has no spans"
    first_T = np.array([_first(text, start - prompt, stop - prompt) for start, stop in offsets], np.int64)
    order_T = np.argsort(first_T, kind="stable")
    sorted_T = first_T[order_T]
    results = []
    for number, (start, stop) in enumerate(spans):
        place = f"span {number}, from character {start} to {stop}"
        if not 0 <= start <= stop <= len(text):
            return f"has {len(text):,} characters, and {place}, is not within them"
        if start == stop:
            return f"has an empty span: {place}"
        low, high = np.searchsorted(sorted_T, [start, stop])
        if low == high:
            return f"has no token in {place}"
        results.append(np.sort(order_T[low:high]))
    return results


def _first(text: str, start: int, stop: int) -> int:
    """The first character of a token that is no white space; negative in the prompt."""
    if start < 0:
        # SentencePiece joins the space before a word to it: the last one of the prompt to the first word of the text.
        return start if stop <= 0 or text[:stop].isspace() else _first(text, 0, stop)
    for at in range(start, stop):
        if not text[at].isspace():
            return at
    return start


def places_in(windows: Sequence[Span], first: int, prefix: int, special: int) -> np.ndarray:
    """(T,): the places of the tokens of a text, whose windows are packed from place `first` on, each with `prefix` special tokens before
    it, of `special` in all. A token of several windows is in the first of them.

    >>> places_in([(0, 3), (2, 5)], first=10, prefix=1, special=2)
    array([11, 12, 13, 17, 18])
    """
    places_T = np.empty(windows[-1][1], np.int64)
    done = 0
    for start, stop in windows:
        places_T[done:stop] = np.arange(first + prefix + done - start, first + prefix + stop - start)
        first, done = first + stop - start + special, stop
    return places_T
