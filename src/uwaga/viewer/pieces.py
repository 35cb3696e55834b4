"""Tokens as people read them: without the marks that tokenizers use for joints, spaces and bytes.

Letters: T tokens.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

_SPECIAL = re.compile(
    r"\[(PAD|CLS|SEP|MASK|BOS|EOS|unused\d+)\]|<(/?s|pad|mask|cls|sep|bos|eos|extra_id_\d+)>|<\|[^<>|\s]*\|>"
)
_LONGEST = 1000  # letters of a token that are shown
_MOST = 32  # tokens of a word: texts without spaces, of some languages or of none, are cut there
_MARKS = "ĠĊ"  # what GPT-2's tokenizer makes of a space and of a new line


class Pieces(NamedTuple):
    """The tokens of one text, T of each."""

    labels: list[str]
    glued: list[bool]  # there is no space before it
    special: list[bool]  # no part of the text: [CLS], </s>
    starts: list[bool]  # a word begins with it

    def some(self, kept: Sequence[int]) -> "Pieces":
        """Those of the listed tokens."""
        labels = [self.labels[at] for at in kept]
        glued, special, starts = ([column[at] for at in kept] for column in (self.glued, self.special, self.starts))
        return Pieces(labels, glued, special, starts)


def pieces(tokens: Sequence[str]) -> Pieces:
    """How tokens are read, whichever tokenizer they are of: WordPiece, byte-level BPE, SentencePiece or single characters.

    >>> pieces(["[CLS]", "un", "##seen", "."]).labels
    ['[CLS]', 'un', 'seen', '.']
    >>> pieces(["This", "Ġis", "Ġcaf", "Ã©"])[:2]
    (['This', 'is', 'caf', 'é'], [True, False, False, True])
    """
    special = [_SPECIAL.fullmatch(token) is not None for token in tokens]
    read = _reader(tokens)
    found = [(token, False) if is_special else read(token) for token, is_special in zip(tokens, special, strict=True)]
    glued = [is_glued or at == 0 for at, (_, is_glued) in enumerate(found)]
    labels = [label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…" for label, _ in found]
    return Pieces(labels, glued, special, _starts(labels, glued, special))


def word_ranges(pieces: Pieces) -> list[tuple[int, int]]:
    """The tokens [start, stop) of every word, and of every special token."""
    starts = [at for at, begins in enumerate(pieces.starts) if begins]
    ends = [*starts, len(pieces.labels)][1:]
    cut = [range(start, end, _MOST) for start, end in zip(starts, ends, strict=True)]
    return [(at, min(at + _MOST, each.stop)) for each in cut for at in each]


def joined(pieces: Pieces, start: int, stop: int) -> str:
    """The text of some tokens."""
    shown = zip(pieces.labels[start:stop], pieces.glued[start:stop], strict=True)
    text = "".join(label if at == 0 or is_glued else f" {label}" for at, (label, is_glued) in enumerate(shown))
    return text.strip(" ") or text[:1]


def _starts(labels: list[str], glued: list[bool], special: list[bool]) -> list[bool]:
    """Whether a word begins: at the start, after a space, at a new line, after or at a special token. A space of its own
    ends the word before it."""
    begins = []
    for at, label in enumerate(labels):
        after = at == 0 or not glued[at] or special[at - 1] or labels[at - 1][-1:].isspace()
        begins.append(after or special[at] or label.startswith("\n"))
    return begins


def _reader(tokens: Sequence[str]) -> Callable[[str], tuple[str, bool]]:
    """A function from a token to its label and whether it is glued to what stands before it."""
    if any(token.startswith(tuple(_MARKS)) for token in tokens):
        return _of_bytes
    if any(token.startswith("▁") for token in tokens):
        return lambda token: (token[1:], False) if token.startswith("▁") else (token, True)
    if all(len(token) <= 1 for token in tokens) and any(token in (" ", "\n") for token in tokens):
        return lambda token: (token, True)
    return lambda token: (token[2:], True) if token.startswith("##") and len(token) > 2 else (token, False)


def _of_bytes(token: str) -> tuple[str, bool]:
    table = _byte_of()
    if any(letter not in table for letter in token):
        return token, True
    text = bytes(table[letter] for letter in token).decode(errors="replace")
    return (text[1:], False) if text.startswith(" ") and len(text) > 1 else (text, True)


@cache
def _byte_of() -> dict[str, int]:
    """The letters that stand for bytes in GPT-2's vocabulary: printable ones for themselves, the others from U+0100 on."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + n): byte for n, byte in enumerate(others)}
