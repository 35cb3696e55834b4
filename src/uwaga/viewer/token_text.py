"""Tokens as text to display: without the marks that tokenizers put for continuations, spaces and bytes.

Letters: T tokens.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

_SPECIAL = re.compile(
    r"\[(PAD|CLS|SEP|MASK|BOS|EOS|unused\d+)\]|<(/?s|pad|mask|cls|sep|bos|eos|extra_id_\d+)>|<\|[^<>|\s]*\|>"
)
_MAX_LABEL = 1000  # characters of a token that are shown
_MAX_WORD = 32  # tokens of a word: a text without spaces is cut there
_BYTE_LEVEL = "ĠĊ"  # how GPT-2's byte-level BPE writes a space and a newline


class TokenText(NamedTuple):
    """The T tokens of one text, column by column."""

    labels: list[str]
    glued: list[bool]  # no space before it
    special: list[bool]  # a special token such as [CLS] or </s>, not part of the text
    starts: list[bool]  # first token of a word

    def select(self, kept: Sequence[int]) -> "TokenText":
        """The tokens at the given positions."""
        labels = [self.labels[at] for at in kept]
        glued, special, starts = ([column[at] for at in kept] for column in (self.glued, self.special, self.starts))
        return TokenText(labels, glued, special, starts)


def token_text(tokens: Sequence[str]) -> TokenText:
    """The text of tokens from any tokenizer: WordPiece, byte-level BPE, SentencePiece or single characters.

    >>> token_text(["[CLS]", "un", "##seen", "."]).labels
    ['[CLS]', 'un', 'seen', '.']
    >>> token_text(["This", "Ġis", "Ġcaf", "Ã©"])[:2]
    (['This', 'is', 'caf', 'é'], [True, False, False, True])
    """
    special = [_SPECIAL.fullmatch(token) is not None for token in tokens]
    decode = _decoder(tokens)
    found = [(token, False) if is_special else decode(token) for token, is_special in zip(tokens, special, strict=True)]
    glued = [is_glued or at == 0 for at, (_, is_glued) in enumerate(found)]
    labels = [label if len(label) <= _MAX_LABEL else f"{label[: _MAX_LABEL - 1]}…" for label, _ in found]
    return TokenText(labels, glued, special, _starts(labels, glued, special))


def word_ranges(tokens: TokenText) -> list[tuple[int, int]]:
    """The token range [start, stop) of every word, and of every special token."""
    starts = [at for at, begins in enumerate(tokens.starts) if begins]
    ends = [*starts, len(tokens.labels)][1:]
    cut = [range(start, end, _MAX_WORD) for start, end in zip(starts, ends, strict=True)]
    return [(at, min(at + _MAX_WORD, each.stop)) for each in cut for at in each]


def join_tokens(tokens: TokenText, start: int, stop: int) -> str:
    """The text of the tokens [start, stop)."""
    shown = zip(tokens.labels[start:stop], tokens.glued[start:stop], strict=True)
    text = "".join(label if at == 0 or is_glued else f" {label}" for at, (label, is_glued) in enumerate(shown))
    return text.strip(" ") or text[:1]


def _starts(labels: list[str], glued: list[bool], special: list[bool]) -> list[bool]:
    """Whether each token begins a word: at the start of the text, after a space, at a newline, at or after a special token.
    A token that ends in a space ends its word."""
    begins = []
    for at, label in enumerate(labels):
        after = at == 0 or not glued[at] or special[at - 1] or labels[at - 1][-1:].isspace()
        begins.append(after or special[at] or label.startswith("\n"))
    return begins


def _decoder(tokens: Sequence[str]) -> Callable[[str], tuple[str, bool]]:
    """For the tokenizer that the tokens look like: a function from a token to its text and whether no space precedes it."""
    if any(token.startswith(tuple(_BYTE_LEVEL)) for token in tokens):
        return _decode_bytes
    if any(token.startswith("▁") for token in tokens):
        return lambda token: (token[1:], False) if token.startswith("▁") else (token, True)
    if all(len(token) <= 1 for token in tokens) and any(token in (" ", "\n") for token in tokens):
        return lambda token: (token, True)
    return lambda token: (token[2:], True) if token.startswith("##") and len(token) > 2 else (token, False)


def _decode_bytes(token: str) -> tuple[str, bool]:
    table = _byte_of()
    if any(letter not in table for letter in token):
        return token, True
    text = bytes(table[letter] for letter in token).decode(errors="replace")
    return (text[1:], False) if text.startswith(" ") and len(text) > 1 else (text, True)


@cache
def _byte_of() -> dict[str, int]:
    """GPT-2's characters for bytes: printable bytes stand for themselves, the others are numbered from U+0100 on."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + n): byte for n, byte in enumerate(others)}
