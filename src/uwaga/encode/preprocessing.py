"""From texts to the token sequences that the model reads: groups of texts, tokenising them ahead of the model, windows of long
texts, and which tokens are in which spans of a text, for late chunking.

All of it is a function of the texts and options alone, so that a second run computes the same batches. Letters: N packed tokens, S sequences (texts, or
windows of long ones), T tokens of one text, R rows of the result.
"""

from collections import deque
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
# Tokenised groups that wait for the model. One suffices: the model takes many times longer than the tokenizer.
_GROUPS_AHEAD = 1

Overflow = Literal["error", "truncate", "mean", "windows"]


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text that is tokenised already. Where its tokens are in it is not known: of one that is truncated the report says that all of it was read."""

    text: str
    ids: Sequence[int]  # with those of the prompt, without special ones

    def __len__(self) -> int:
        return len(self.ids)


def groups(
    items: Iterable[Item],
    characters: Callable[[Item], int],
    *,
    max_documents: int = GROUP_DOCUMENTS,
    max_characters: int = GROUP_CHARACTERS,
) -> Iterator[list[Item]]:
    """Consecutive items in lists within both bounds; a list has one item at least.

    >>> list(groups(["a", "bb", "cccc", "d"], len, max_characters=3))
    [['a', 'bb'], ['cccc'], ['d']]
    """
    group: list[Item] = []
    total = 0
    for item in items:
        size = characters(item)
        if group and (len(group) == max_documents or total + size > max_characters):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def text_groups(texts: Iterable[Any]) -> Iterator[Sequence[Any]]:
    """Texts in groups; groups of texts as they are."""
    rest = iter(texts)
    for first in rest:
        parts = chain([first], rest)
        # Anything but a string is refused later, with its number.
        yield from groups(parts, lambda x: len(x) if isinstance(x, str) else 1) if isinstance(first, str) else parts


def windows(tokens: int, most: int, overlap: int = 0) -> list[Span]:
    """(start, stop) of each window of a text of so many tokens, of at most `most` each.

    They are as few as possible, and equal in size up to one token: no window is a short remainder, and a plain mean of their
    vectors weighs every token equally.

    >>> windows(9, 4), windows(9, 4, overlap=1)
    ([(0, 3), (3, 6), (6, 9)], [(0, 3), (2, 6), (5, 9)])
    """
    if tokens <= most:
        return [(0, tokens)]
    new = tokens - overlap  # tokens in no earlier window; of the first window, those after its first `overlap`
    count = -(-new // (most - overlap))
    starts = [new * window // count for window in range(count + 1)]
    return [(start, stop + overlap) for start, stop in pairwise(starts)]


def spans_of(spans: Any, count: int | None) -> SpansOf:
    """The spans of each of `count` texts, from what `TextEncoder.encode` takes. Raises ValueError."""
    if isinstance(spans, str):
        names = ", ".join(SPLITS)
        check(spans in SPLITS, f"TextEncoder: spans must be lists of spans, or one of {names}, not {spans!r}")
        return lambda _, text: split_spans(text, spans)  # type: ignore[arg-type]
    is_list = isinstance(spans, Sequence)
    check(is_list, f"TextEncoder: spans must be a list of spans for each text, not {type(spans).__name__}")
    check(len(spans) == count, f"TextEncoder: there are {count} texts, and spans of {len(spans)}")
    for number, pairs in enumerate(spans):
        if not isinstance(pairs, Sequence) or not all(map(_is_span, pairs)):
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
    first character which is no white space, or its first one if it is nothing else.
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
    for place in range(start, stop):
        if not text[place].isspace():
            return place
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedGroup:
    """The token sequences of a group of texts, packed, and the report of the rows that they give."""

    ids: np.ndarray  # (N,) int64, special tokens included
    offsets: np.ndarray  # (S+1,) int64
    sequences_per_row: np.ndarray  # (R,) int64
    report: Report
    first_document: int  # the number of documents in earlier groups
    skipped: np.ndarray  # (S,) int64: tokens at the start of each sequence that are not pooled, those of the prompt
    seen: np.ndarray | None  # (S,) int64: the first so many tokens of each sequence are seen by others; None: all
    invalid: tuple[DocumentError, ...]  # documents that were left out, in order
    # The places of the tokens of each row among the N, if rows are spans; then a text's first row has all of its sequences.
    spans: list[np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessor:
    """Texts to sequences of tokens. A text gives the same sequences in any group."""

    tokenizer: Tokenizer
    overflow: Overflow
    overlap: int  # tokens that neighbouring windows share
    max_tokens: int  # of a text, special ones not counted, that the model takes
    keeps_end: bool = False  # whether a text that is truncated loses its beginning
    prompt: str = ""  # before every text
    chat: ChatTemplate | None = None  # makes the text that is tokenised of prompt and text
    include_prompt: bool = True  # False: the prompt's tokens, and the special ones before them, are not pooled
    skip_invalid: bool = False  # leave out texts that cannot be encoded, instead of raising
    # A token that lengthens short sequences, to how many, special ones included, and whether the others see it: ColBERT's mask tokens.
    padding: tuple[int, int, bool] | None = None
    spans: SpansOf | None = None  # the spans of a text, each of which is a row; None: a row for each text or window

    def tokenized(self, groups: Iterable[Sequence[str | TokenizedText]]) -> Iterator[TokenizedGroup]:
        """The groups in their order. A thread tokenises the next group, if there is one, while the caller works on this one.

        The iterable is read in the caller's thread, so that it need not be thread-safe. Raises what the iterable raises, and
        DocumentError unless `skip_invalid`.
        """
        rest = iter(groups)
        if len(begin := list(islice(rest, 2))) < 2:
            yield from (self.tokenize(group, 0) for group in begin)
            return
        waiting: deque[Future[TokenizedGroup]] = deque()
        first = 0
        with ThreadPoolExecutor(1, thread_name_prefix="uwaga-tokens") as thread:
            try:
                for group in chain(begin, rest):
                    waiting.append(thread.submit(self.tokenize, group, first))
                    first += len(group)
                    if len(waiting) > _GROUPS_AHEAD:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def tokenize(self, texts: Sequence[str | TokenizedText], first: int) -> TokenizedGroup:
        """Tokenise a group of texts, which are numbered from `first`. Raises DocumentError unless `skip_invalid`."""
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
            parts, numbers, places = self._windows(len(tokens)), tokens.ids, list[np.ndarray]()
            if end := self._end(parts):
                numbers = [*numbers[: parts[0][1] - len(end)], *end]
            if self.spans is not None:
                spans = self.spans(number, text)
                assert isinstance(tokens, Encoding)
                tokens_of_spans = span_tokens(text, spans, tokens.offsets, len(self.prompt))
                if isinstance(tokens_of_spans, str):
                    leave_out(number, tokens_of_spans)
                    continue
                places_T = places_in(parts, len(ids), len(prefix), special)
                places = [places_T[inside] for inside in tokens_of_spans]
            sizes = [max(stop - start + special, least) for start, stop in parts]
            for (start, stop), size in zip(parts, sizes, strict=True):
                ids += (*prefix, *numbers[start:stop], *suffix)
                seen.append(stop - start + special)
                ids += [filler] * (size - seen[-1])
                left_out = min(of_prompt, stop) - start
                skipped.append(left_out + len(prefix) if left_out > 0 else 0)
            lengths += sizes
            if self.spans is not None:
                of_spans += places
                for span, place in zip(spans, places, strict=True):
                    rows.append((number, *span, len(text), len(place), len(parts)))
                counts += [len(parts), *[0] * (len(places) - 1)]
            elif self.overflow == "windows":
                for span, size in zip(self._shown(text, tokens, parts), sizes, strict=True):
                    rows.append((number, *span, len(text), size, len(parts)))
                counts += [1] * len(parts)
            else:
                start, stop = self._read(text, tokens, parts, len(end))
                rows.append((number, start, stop, len(text), sum(sizes), len(parts)))
                counts.append(len(parts))
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
        """The number, the text and the tokens of each text that can be tokenised."""
        valid: list[tuple[int, str | TokenizedText]] = []
        whole: list[str] = []
        for number, item in enumerate(texts, start=first):
            if (reason := reason_against_text(item)) is not None:
                leave_out(number, reason)
                continue
            valid.append((number, item))
            if isinstance(item, str):
                whole.append(self.prompt + item if self.chat is None else self.chat.text(item, prompt=self.prompt))
        if self.overflow == "truncate" and not self.keeps_end:
            new = iter(encode_prefixes(self.tokenizer, whole, max_tokens=self.max_tokens))
        else:
            with_offsets = self.overflow in ("truncate", "windows") or self.spans is not None
            new = iter(self.tokenizer.encode(whole, with_offsets=with_offsets))
        return [
            (number, item, next(new)) if isinstance(item, str) else (number, item.text, item) for number, item in valid
        ]

    def _end(self, parts: Sequence[Span]) -> Sequence[int]:
        """The tokens that end a text of these windows in any case: those that the chat template puts after one that fills the model."""
        if self.chat is None or parts[0][1] - parts[0][0] < self.max_tokens:
            return ()
        return self.chat.end(self.tokenizer.backend, 1, self.prompt)[-self.max_tokens :]

    def _prompt_tokens(self) -> int:
        """The tokens of the prompt, if pooling leaves them out, counted as in sentence-transformers: of the prompt alone."""
        if self.include_prompt or not self.prompt:
            return 0
        (tokens,) = self.tokenizer.encode([self.prompt], with_offsets=False)
        return len(tokens)

    def _reason_against(self, tokens: int, prompt_tokens: int) -> str | None:
        """Why a text of so many tokens, with its prompt, cannot be encoded; None if it can."""
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

    def _shown(self, text: str, tokens: Any, parts: Sequence[Span]) -> list[Span]:
        """(start, stop) of the characters of each window. The first begins with the text and the last one ends with it, white space
        included: they cover it all."""
        if len(parts) == 1:
            return [(0, len(text))]
        starts = [0, *(self._characters(tokens, start, len(self.prompt))[0] for start, _ in parts[1:])]
        stops = [*(self._characters(tokens, stop - 1, len(self.prompt))[1] for _, stop in parts[:-1]), len(text)]
        return list(zip(starts, stops, strict=True))

    def _read(self, text: str, tokens: Encoding | TokenizedText, parts: Sequence[Span], of_end: int) -> Span:
        """(start, stop) of the characters that are read of a text. of_end: the last tokens that are not its own."""
        first, last = parts[0][0], parts[-1][1]
        start, stop = 0, len(text)
        if isinstance(tokens, TokenizedText) or not (first or last < len(tokens)):
            return start, stop
        before, least, most = len(self.prompt), 0, len(text)
        if self.chat is not None:  # where the text is in what was rendered, if the template has not changed it
            before = max(self.chat.text(text, prompt=self.prompt).find(text.strip()), 0)
            least, most = 1, len(text) - 1
        if first:
            start = max(self._characters(tokens, first, before)[0], least)
        if last < len(tokens):
            stop = min(self._characters(tokens, max(last - 1 - of_end, 0), before)[1], most)
        return start, stop

    def _characters(self, tokens: Encoding, index: int, before: int) -> Span:
        """(start, stop) of a token in the text, which has so many characters before it; (0, 0) for a token before it."""
        offsets = tokens.token_to_chars(index)
        assert offsets is not None
        return max(0, offsets[0] - before), max(0, offsets[1] - before)


def reason_against_text(item: object) -> str | None:
    """Why a text cannot be tokenised; None if it can."""
    text = item.text if isinstance(item, TokenizedText) else item
    if not isinstance(text, str):
        return f"must be a string, not {type(text).__name__}"
    if not text or text.isspace():
        return "is empty"
    return lone_surrogate(text)
