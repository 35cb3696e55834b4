"""Where the passages of a text are: its paragraphs, sentences or lines, as spans of characters."""

import re
from collections.abc import Iterator
from typing import Literal, get_args

Split = Literal["paragraph", "sentence", "line", "document"]
SPLITS: tuple[str, ...] = get_args(Split)
Span = tuple[int, int]  # the first character, and the one after the last

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*")
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")


def split_spans(text: str, split: Split) -> list[Span]:
    """Return the spans of the passages of a text. They cover all of it: each passage includes the white space after it,
    and the first one the white space before it. A text of white space has no passages.

    >>> split_spans("One. Two!\\nThree\\n\\nFour.", "sentence")
    [(0, 5), (5, 10), (10, 17), (17, 22)]
    >>> split_spans("One. Two!\\nThree\\n\\nFour.", "paragraph")
    [(0, 17), (17, 22)]
    """
    starts = [start for start, stop in _parts(text, split) if not text[start:stop].isspace() and start < stop]
    if not starts:
        return []
    return list(zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True))


def _parts(text: str, split: Split) -> Iterator[Span]:
    """Yield what lies between the ends of passages, empty parts included."""
    if split == "document":
        yield 0, len(text)
    elif split == "line":
        yield from _lines(text, 0, len(text))
    else:
        for start, stop in _between(_PARAGRAPH_END, text, 0, len(text)):
            if split == "paragraph":
                yield start, stop
            else:
                for line in _lines(text, start, stop):
                    yield from _between(_SENTENCE_END, text, *line)


def _lines(text: str, start: int, stop: int) -> Iterator[Span]:
    for line in text[start:stop].splitlines(keepends=True):
        yield start, start + len(line)
        start += len(line)


def _between(end: re.Pattern[str], text: str, start: int, stop: int) -> Iterator[Span]:
    for match in end.finditer(text, start, stop):
        yield start, match.start()
        start = match.end()
    yield start, stop
