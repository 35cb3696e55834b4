"""From texts to the token sequences that the model reads: groups of texts, tokenised ahead of the model, windows of long texts, and the
tokens in each span of a text, for late chunking.

The result depends only on texts and options, so that a second run computes the same batches. Letters: N packed tokens, S sequences (texts,
or windows of long ones), T tokens of one text, R rows of the result.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any, Literal, TypeVar

import numpy as np
from tokenizers import Encoding

from uwaga._base.arguments import check
from uwaga.data.passages import SPLITS, Span, split_spans
from uwaga.encode.chat_template import ChatTemplate
from uwaga.encode.report import COLUMNS, DocumentError, Report
from uwaga.models.tokenizers.tokenizer import Tokenizer, encode_prefixes, lone_surrogate
from uwaga.ops.validation import is_integer

Item = TypeVar("Item")
SpansOf = Callable[[int, str], Sequence[Span]]  # of the number of a text, and the text

# Bounds of a group: its texts are tokenised together, and are in memory together.
GROUP_DOCUMENTS = 4096
GROUP_CHARACTERS = 1 << 20

Overflow = Literal["error", "truncate", "mean", "windows"]


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text and its tokens without places, so that reports ignore its truncation."""

    text: str
    ids: Sequence[int]  # with the prompt's tokens, without special tokens

    def __len__(self) -> int:
        return len(self.ids)


def groups(
    items: Iterable[Item],
    characters: Callable[[Item], int],
    is_last: Callable[[Item, int], bool] = lambda item, total: False,
    *,
    max_documents: int = GROUP_DOCUMENTS,
    max_characters: int = GROUP_CHARACTERS,
) -> Iterator[list[Item]]:
    """Yield consecutive items in lists within both bounds; a list has at least one item.

    is_last: whether an item ends its list, which has so many characters with it.

    >>> list(groups(["a", "bb", "cccc", "d"], len, max_characters=3))
    [['a', 'bb'], ['cccc'], ['d']]
    """
    group: list[Item] = []
    total = 0
    for item in items:
        size = characters(item)
        if group and total + size > max_characters:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
        if len(group) == max_documents or is_last(item, total):
            yield group
            group, total = [], 0
    if group:
        yield group


def text_groups(texts: Iterable[Any]) -> Iterator[Sequence[Any]]:
    """Yield texts in groups, or the groups of texts that the caller made."""
    rest = iter(texts)
    for first in rest:
        parts = chain([first], rest)
        # An item that is no string raises an error later, with its number.
        yield from groups(parts, lambda x: len(x) if isinstance(x, str) else 1) if isinstance(first, str) else parts


def windows(tokens: int, most: int, overlap: int = 0) -> list[Span]:
    """Divide a text of so many tokens into windows (start, stop) of at most `most` tokens.

    There are as few windows as possible, and their sizes differ by at most one token: no window is a short remainder, and a plain mean
    of their vectors weighs each token equally.

    >>> windows(9, 4), windows(9, 4, overlap=1)
    ([(0, 3), (3, 6), (6, 9)], [(0, 3), (2, 6), (5, 9)])
    """
    if tokens <= most:
        return [(0, tokens)]
    new = tokens - overlap  # tokens that are in no earlier window, after the first `overlap` tokens of the first window
    count = -(-new // (most - overlap))
    starts = [new * window // count for window in range(count + 1)]
    return [(start, stop + overlap) for start, stop in pairwise(starts)]


def spans_of(spans: Any, count: int | None) -> SpansOf:
    """Return a function that finds spans, as `TextEncoder.encode` takes them, of `count` texts."""
    if isinstance(spans, str):
        names = ", ".join(SPLITS)
        check(spans in SPLITS, f"TextEncoder: spans must be lists of spans, or one of {names}, not {spans!r}")
        return lambda _, text: split_spans(text, spans)  # type: ignore[arg-type]
    is_list = isinstance(spans, Sequence)
    check(is_list, f"TextEncoder: spans must be a list of spans for each text, not {type(spans).__name__}")
    check(len(spans) == count, f"TextEncoder: there are {count} texts, and spans of {len(spans)}")

    def is_span(span: object) -> bool:
        return isinstance(span, Sequence) and len(span) == 2 and all(map(is_integer, span))

    for number, pairs in enumerate(spans):
        if not isinstance(pairs, Sequence) or not all(map(is_span, pairs)):
            raise ValueError(
                f"TextEncoder: the spans of document {number} must be a list of pairs (start, stop) of integers"
            )
    return lambda number, _: [(int(start), int(stop)) for start, stop in spans[number]]


def span_tokens(
    text: str, spans: Sequence[Span], offsets: Sequence[tuple[int, int]], prompt: int
) -> list[np.ndarray] | str:
    """Return the numbers of each span's tokens in rising order, or the reason why a span has none.

    A token is in the span that has its first character that is not white space, or its first character if it is all white space.

    Args:
        text, spans: the text, and (start, stop) of its characters.
        offsets: (start, stop) of each of T tokens in prompt and text.
        prompt: the characters of the prompt.
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
    """Return the place of a token's first visible character; it is negative in the prompt."""
    if start < 0:
        # SentencePiece joins the space before a word to it, even the last space of the prompt to the first word of the text.
        return start if stop <= 0 or text[:stop].isspace() else _first(text, 0, stop)
    for place in range(start, stop):
        if not text[place].isspace():
            return place
    return start


def places_in(windows: Sequence[Span], first: int, prefix: int, special: int) -> np.ndarray:
    """Return the places (T,) of a text's tokens among packed tokens.

    A token of several windows is in the first of them. The windows are packed from place `first` on. Each window has `special` special
    tokens, and `prefix` of them are before its own tokens.

    >>> places_in([(0, 3), (2, 5)], first=10, prefix=1, special=2)
    array([11, 12, 13, 17, 18])
    """
    places_T = np.empty(windows[-1][1], np.int64)
    done = 0
    for start, stop in windows:
        places_T[done:stop] = np.arange(first + prefix + done - start, first + prefix + stop - start)
        first, done = first + stop - start + special, stop
    return places_T


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedGroup:
    """The packed token sequences of a group of texts, and the report of their rows."""

    ids: np.ndarray  # (N,) int64, special tokens included
    offsets: np.ndarray  # (S+1,) int64
    sequences_per_row: np.ndarray  # (R,) int64
    report: Report
    first_document: int  # the number of documents in earlier groups
    skipped: np.ndarray  # (S,) int64: tokens of the prompt at the start of each sequence, which are not pooled
    seen: np.ndarray | None  # (S,) int64: the first tokens of each sequence that other tokens see; None: all
    invalid: tuple[DocumentError, ...]  # documents that were left out, in order
    # The places of each row's tokens among the N, if rows are spans. A text's first row then has all its sequences.
    spans: list[np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessor:
    """Texts to sequences of tokens. A text gives the same sequences in any group."""

    tokenizer: Tokenizer
    overflow: Overflow
    overlap: int  # tokens that neighbouring windows share
    max_tokens: int  # the most tokens of a text, without special tokens
    keeps_end: bool = False  # whether truncation removes the beginning of a text
    prompt: str = ""  # before every text
    chat: ChatTemplate | None = None  # makes the text that is tokenised of prompt and text
    include_prompt: bool = True  # False: the prompt's tokens, and special tokens before them, are not pooled
    skip_invalid: bool = False  # leave out texts that cannot be encoded, instead of raising
    # ColBERT's mask tokens: the token that lengthens short sequences, the length with special tokens, and whether other tokens see it.
    padding: tuple[int, int, bool] | None = None
    spans: SpansOf | None = None  # the spans of a text, each of which is a row; None: a row for each text or window

    def tokenized(self, groups: Iterable[Sequence[str | TokenizedText]]) -> Iterator[TokenizedGroup]:
        """Tokenise groups in their order, in a thread that is one group ahead of the caller.

        The iterable is read in the caller's thread, so that it need not be thread-safe. Raises what the iterable raises, and
        DocumentError unless `skip_invalid`.
        """
        rest = iter(groups)
        if len(begin := list(islice(rest, 2))) < 2:
            yield from (self.tokenize(group, 0) for group in begin)
            return
        ahead: Future[TokenizedGroup] | None = None  # one suffices, since the model takes far longer than the tokenizer
        first = 0
        with ThreadPoolExecutor(1, thread_name_prefix="uwaga-tokens") as thread:
            for group in chain(begin, rest):
                current, ahead = ahead, thread.submit(self.tokenize, group, first)
                first += len(group)
                if current is not None:
                    yield current.result()
            assert ahead is not None
            yield ahead.result()

    def tokenize(self, texts: Sequence[str | TokenizedText], first: int) -> TokenizedGroup:
        """Tokenise a group of texts from number `first`. Raises DocumentError."""
        invalid: list[DocumentError] = []

        def leave_out(number: int, reason: str) -> None:
            error = DocumentError(number, reason)
            if not self.skip_invalid:
                raise error
            invalid.append(error)

        encoded = self._encode(texts, first, leave_out)
        ids: list[int] = []
        lengths, seen, skipped, counts = list[int](), list[int](), list[int](), list[int]()
        rows: list[tuple[int, ...]] = []  # of the columns of a Report
        of_spans: list[np.ndarray] = []
        prefix, suffix = self.tokenizer.prefix_ids, self.tokenizer.suffix_ids
        special, of_prompt = len(prefix) + len(suffix), self._prompt_tokens()
        filler, least, is_seen = self.padding or (0, 0, True)
        for number, text, tokens in encoded:
            if (reason := self._reason_against(len(tokens), of_prompt)) is not None:
                leave_out(number, reason)
                continue
            parts, numbers = self._windows(len(tokens)), tokens.ids
            if end := self._end(parts):
                numbers = [*numbers[: parts[0][1] - len(end)], *end]
            sizes = [max(stop - start + special, least) for start, stop in parts]
            if self.spans is not None:
                spans = self.spans(number, text)
                assert isinstance(tokens, Encoding)
                tokens_of_spans = span_tokens(text, spans, tokens.offsets, len(self.prompt))
                if isinstance(tokens_of_spans, str):
                    leave_out(number, tokens_of_spans)
                    continue
                places_T = places_in(parts, len(ids), len(prefix), special)
                of_spans += [places_T[inside] for inside in tokens_of_spans]
                for span, inside in zip(spans, tokens_of_spans, strict=True):
                    rows.append((number, *span, len(text), len(inside), len(parts)))
                counts += [len(parts), *[0] * (len(spans) - 1)]
            elif self.overflow == "windows":
                for part, size in zip(parts, sizes, strict=True):
                    rows.append((number, *self._read(text, tokens, part), len(text), size, len(parts)))
                counts += [1] * len(parts)
            else:
                read = self._read(text, tokens, (parts[0][0], parts[-1][1]), len(end))
                rows.append((number, *read, len(text), sum(sizes), len(parts)))
                counts.append(len(parts))
            for (start, stop), size in zip(parts, sizes, strict=True):
                ids += (*prefix, *numbers[start:stop], *suffix)
                seen.append(stop - start + special)
                ids += [filler] * (size - seen[-1])
                left_out = min(of_prompt, stop) - start
                skipped.append(left_out + len(prefix) if left_out > 0 else 0)
            lengths += sizes
        columns: Any = zip(COLUMNS, np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS)).T, strict=True)
        return TokenizedGroup(
            ids=np.array(ids, dtype=np.int64),
            offsets=np.cumsum([0, *lengths], dtype=np.int64),
            sequences_per_row=np.array(counts, dtype=np.int64),
            report=Report(**dict(columns)),
            first_document=first,
            skipped=np.array(skipped, dtype=np.int64),
            seen=None if is_seen else np.array(seen, dtype=np.int64),
            invalid=tuple(sorted(invalid, key=lambda error: error.document)),
            spans=of_spans,
        )

    def _windows(self, tokens: int) -> list[Span]:
        if self.overflow != "truncate":
            return windows(tokens, self.max_tokens, self.overlap)
        start = max(tokens - self.max_tokens, 0) if self.keeps_end else 0
        return [(start, min(start + self.max_tokens, tokens))]

    def _encode(
        self, texts: Sequence[str | TokenizedText], first: int, leave_out: Callable[[int, str], None]
    ) -> list[tuple[int, str, Encoding | TokenizedText]]:
        """Return the number, the text and the tokens of each text that can be tokenised."""
        valid: list[tuple[int, str | TokenizedText]] = []
        whole: list[str] = []
        for number, item in enumerate(texts, start=first):
            if (reason := reason_against_text(item)) is not None:
                leave_out(number, reason)
                continue
            valid.append((number, item))
            if isinstance(item, str):
                whole.append(item)
        if self.chat is None:
            whole = [self.prompt + text for text in whole]
        else:
            whole = self.chat.texts([(text,) for text in whole], prompt=self.prompt)
        if self.overflow == "truncate" and not self.keeps_end:
            new = iter(encode_prefixes(self.tokenizer, whole, max_tokens=self.max_tokens))
        else:
            with_offsets = self.overflow in ("truncate", "windows") or self.spans is not None
            new = iter(self.tokenizer.encode(whole, with_offsets=with_offsets))
        return [
            (number, item, next(new)) if isinstance(item, str) else (number, item.text, item) for number, item in valid
        ]

    def _end(self, parts: Sequence[Span]) -> Sequence[int]:
        """Return the last tokens of the chat template, which end a text that fills the model."""
        if self.chat is None or parts[0][1] - parts[0][0] < self.max_tokens:
            return ()
        return self.chat.end(self.tokenizer.backend, 1, self.prompt)[-self.max_tokens :]

    def _prompt_tokens(self) -> int:
        """Count the prompt's tokens if they are not pooled, as sentence-transformers does."""
        if self.include_prompt or not self.prompt:
            return 0
        (tokens,) = self.tokenizer.encode([self.prompt], with_offsets=False)
        return len(tokens)

    def _reason_against(self, tokens: int, prompt_tokens: int) -> str | None:
        """Return why a text of so many tokens, with its prompt, cannot be encoded; None if it can."""
        if not tokens:
            return "is empty: it has no tokens"
        if self.overflow == "error" and tokens > self.max_tokens:
            counts = f"has {tokens:,} tokens, and the model takes at most {self.max_tokens:,}"
            others = "truncate, mean or windows" if self.spans is None else "windows"
            others = others if self.chat is None else "truncate"
            return f"{counts}; set the option overflow to {others}"
        if prompt_tokens and self._windows(tokens)[0][1] <= prompt_tokens and not self.tokenizer.suffix_ids:
            return f"has no token to pool: the {prompt_tokens} tokens of the prompt are left out, and leave no room for others"
        return None

    def _read(self, text: str, tokens: Encoding | TokenizedText, part: Span, of_end: int = 0) -> Span:
        """Return (start, stop) of the characters that some tokens are from.

        of_end: the number of last tokens that are not the text's. The first token begins with the text and the last token ends with it,
        white space included, so that windows cover a text.
        """
        first, last = part
        start, stop = 0, len(text)
        if isinstance(tokens, TokenizedText) or not (first or last < len(tokens)):
            return start, stop
        before, least, most = len(self.prompt), 0, len(text)
        if self.chat is not None:  # the text's place in what was rendered, if the template has not changed the text
            before = max(self.chat.text(text, prompt=self.prompt).find(text.strip()), 0)
            least, most = 1, len(text) - 1
        if first:
            start = max(_place(tokens, first)[0] - before, least)
        if last < len(tokens):
            stop = min(max(0, _place(tokens, max(last - 1 - of_end, 0))[1] - before), most)
        return start, stop


def _place(tokens: Encoding, index: int) -> Span:
    place = tokens.token_to_chars(index)
    assert place is not None
    return place


def reason_against_text(item: object) -> str | None:
    """Return why a text cannot be tokenised; None if it can."""
    text = item.text if isinstance(item, TokenizedText) else item
    if not isinstance(text, str):
        return f"must be a string, not {type(text).__name__}"
    if not text or text.isspace():
        return "is empty"
    return lone_surrogate(text)
