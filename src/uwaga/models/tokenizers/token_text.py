"""Tokens as text to display: without the marks that tokenizers put for continuations, spaces and bytes.

Letters: T tokens.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

_MAX_LABEL = 1000  # characters of a token that are shown
_MAX_WORD = 32  # tokens of a word: a text without spaces is cut there
SPECIAL_TOKEN = re.compile(
    r"\[(PAD|CLS|SEP|MASK|BOS|EOS|DIST|REG \d+|unused\d+)\]|<(/?s|pad|mask|cls|sep|bos|eos|extra_id_\d+)>|<\|[^<>|\s]*\|>"
)
UNKNOWN_TOKEN = re.compile(r"\[UNK\]|<unk>", re.IGNORECASE)
_BYTE_LEVEL = "ĠĊ"  # how GPT-2's byte-level BPE writes a space and a newline


class TokenText(NamedTuple):
    """The T tokens of one text, column by column."""

    labels: list[str]
    no_space_before: list[bool]  # no space before it
    special: list[bool]  # a special token such as [CLS] or </s>, not part of the text
    starts: list[bool]  # first token of a word
    unknown: list[bool]  # the token for what the vocabulary lacks
    breaks: Mapping[int, int] = {}  # newlines before it that no token stands for, where there are any

    def select(self, kept: Sequence[int]) -> "TokenText":
        """Return the tokens at the given positions."""
        breaks = {new: self.breaks[old] for new, old in enumerate(kept) if old in self.breaks}
        return TokenText._make([*([column[at] for at in kept] for column in self[:5]), breaks])


class SourceText(NamedTuple):
    """What was written: a text, and which characters [start, end) of it each of T tokens stands for."""

    text: str
    offsets: Sequence[tuple[int, int]]


def written(text: str, tokenizer: Any, tokens: Sequence[str]) -> SourceText | None:
    """Return the offsets of tokens in their text, or None if the tokenizer does not give these tokens for the text.

    The text may have been cut short before the special tokens at its end. Then the result has its beginning only. A decoder reads a start token
    before the tokens, and does not read the last one.

    Args:
        text: as it was given to the tokenizer.
        tokenizer: a `tokenizers.Tokenizer`.
        tokens: T strings.
    """
    encoding = tokenizer.encode(text)
    names, count = encoding.tokens, len(tokens)
    if names == list(tokens):
        return SourceText(text, encoding.offsets)
    behind = next((n for n, special in enumerate(reversed(encoding.special_tokens_mask)) if not special), 0)
    kept = count - behind
    if 0 < kept < len(names) - behind and list(tokens) == [*names[:kept], *names[len(names) - behind :]]:
        offsets = encoding.offsets[:kept]
        end = max(end for _, end in offsets)
        return SourceText(text[:end], [*offsets, *[(end, end)] * behind])
    if count and list(tokens[1:]) == names[: count - 1]:
        offsets = encoding.offsets[: count - 1]
        is_whole = count >= len(names)
        return SourceText(text if is_whole else text[: max((end for _, end in offsets), default=0)], [(0, 0), *offsets])
    return None


def token_text(tokens: Sequence[str], source: SourceText | None = None) -> TokenText:
    """Return the text of tokens from any tokenizer: WordPiece, byte-level BPE, SentencePiece or single characters.

    With its source, a token is what was written: capital letters that the tokenizer lowers, letters that it does not know, spaces
    where they were. Of several tokens of one character the first has it, and the others are their bytes.

    >>> token_text(["[CLS]", "un", "##seen", "."]).labels
    ['[CLS]', 'un', 'seen', '.']
    >>> token_text(["This", "Ġis", "Ġcaf", "Ã©"])[:2]
    (['This', 'is', 'caf', 'é'], [True, False, False, True])
    >>> token_text(["didn", "'", "t", "[UNK]"], SourceText("Didn't 🦉", [(0, 4), (4, 5), (5, 6), (7, 8)]))[:2]
    (['Didn', "'", 't', '🦉'], [True, True, True, False])
    """
    special = [SPECIAL_TOKEN.fullmatch(token) is not None for token in tokens]
    unknown = [UNKNOWN_TOKEN.fullmatch(token) is not None for token in tokens]
    decode = _decoder(tokens)
    results = [(token, False) if special[at] else decode(token) for at, token in enumerate(tokens)]
    read, begins, breaks = ([], [], {}) if source is None else _read(source)
    if source is not None:
        for at, (token, own_text) in enumerate(zip(tokens, read, strict=True)):
            if not special[at]:
                results[at] = own_text or (_decode_bytes(token)[0], True)
    no_space_before = [is_continuation or at == 0 for at, (_, is_continuation) in enumerate(results)]
    labels = [label if len(label) <= _MAX_LABEL else f"{label[: _MAX_LABEL - 1]}…" for label, _ in results]
    starts = []
    for at, label in enumerate(labels):
        # A token that ends in a space ends its word.
        after = at == 0 or not no_space_before[at] or special[at - 1] or labels[at - 1][-1:].isspace()
        by_source = None if source is None else begins[at]
        starts.append(at == 0 or ((after or special[at] or label.startswith("\n")) if by_source is None else by_source))
    return TokenText(labels, no_space_before, special, starts, unknown, breaks)


def _read(source: SourceText) -> tuple[list[tuple[str, bool] | None], list[bool | None], dict[int, int]]:
    """Return what each token stands for in its source, in three parts.

    1. The characters of each token and whether no space precedes them; None if an earlier token has them.
    2. Whether the token begins a word by the word boundaries of Unicode (UAX 29); None without characters. By these rules "didn't" is one word,
       and so is a comma.
    3. The newlines between tokens, by the token after them.
    """
    text, boundaries = source.text, set(word_boundaries(source.text))
    read: list[tuple[str, bool] | None] = []
    begins: list[bool | None] = []
    breaks = {}
    seen = done = 0  # characters that tokens so far stand for, and up to which they reach
    for at, (start, end) in enumerate(source.offsets):
        begin = max(start, seen)
        letters = text[begin:end]
        # A space belongs to the gap; what is nothing but space, such as a newline, is itself.
        is_continuation = begin == seen and not letters[:1].isspace()
        read.append((letters.lstrip(" ") or letters, is_continuation or not letters.strip(" ")) if letters else None)
        seen = max(seen, end) if letters else seen
        begin = max(start, done)
        if done and (lines := text.count("\n", done, begin)):
            breaks[at] = lines
        begin = end - len(text[begin:end].lstrip())
        begins.append(begin in boundaries or text[begin - 1 : begin].isspace() if begin < end else None)
        done = max(done, end)
    return read, begins, breaks


def word_boundaries(text: str) -> list[int]:
    """Return the word boundaries of a text by the rules of Unicode (UAX 29): ascending, with its start and its end."""
    import regex

    return [match.start() for match in regex.finditer(r"(?w)\b", text)]


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, by the word boundaries of Unicode (UAX 29). No dictionary is used: Chinese
    characters, hiragana and Thai letters are a word each; katakana and Hangul are one up to the next other character.

    >>> split_words("Don't: it's 3.14!")
    ["Don't", ':', "it's", '3.14', '!']
    >>> split_words("これはペンです。")
    ['こ', 'れ', 'は', 'ペン', 'で', 'す', '。']
    """
    boundaries = word_boundaries(text)
    # A space takes up the marks of direction that follow it.
    pieces = (text[start:end].strip() for start, end in pairwise(boundaries))
    return [piece for piece in pieces if piece]


def word_ranges(tokens: TokenText) -> list[tuple[int, int]]:
    """Return the token range [start, stop) of every word, and of every special token."""
    starts = [at for at, begins in enumerate(tokens.starts) if begins]
    ends = [*starts, len(tokens.labels)][1:]
    cut = [range(start, end, _MAX_WORD) for start, end in zip(starts, ends, strict=True)]
    return [(at, min(at + _MAX_WORD, part.stop)) for part in cut for at in part]


def join_tokens(tokens: TokenText, start: int, stop: int) -> str:
    """Return the text of the tokens [start, stop)."""
    shown = zip(tokens.labels[start:stop], tokens.no_space_before[start:stop], strict=True)
    text = "".join(
        label if at == 0 or is_continuation else f" {label}" for at, (label, is_continuation) in enumerate(shown)
    )
    return text.strip(" ") or text[:1]


def _decoder(tokens: Sequence[str]) -> Callable[[str], tuple[str, bool]]:
    """Return a function from a token to its text and whether no space precedes it, by the kind of tokenizer that the tokens show."""
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
    text = bytes(table[letter] for letter in token).decode(errors="surrogateescape")
    # Bytes that are no whole character are written as bytes.
    text = re.sub("[\udc80-\udcff]", lambda lone: f"<0x{ord(lone[0]) - 0xDC00:02X}>", text)
    return (text[1:], False) if text.startswith(" ") and len(text) > 1 else (text, True)


@cache
def _byte_of() -> dict[str, int]:
    """Return the byte of each of GPT-2's characters: printable bytes stand for themselves, the others are numbered from U+0100 on."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + n): byte for n, byte in enumerate(others)}
