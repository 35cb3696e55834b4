"""From texts to the token sequences that the model reads: groups of texts, tokenising them ahead of the model, windows of long
texts, and batches of sequences.

All of it is a function of the texts and options alone, so that a second run computes the same batches. Letters: N packed tokens, S sequences (texts, or
windows of long ones), R rows of the result.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from math import inf
from typing import NamedTuple, TypeVar, cast

import numpy as np
from tokenizers import Encoding

from uwaga.encode.chat_template import ChatTemplate
from uwaga.encode.report import DocumentError, Report
from uwaga.encode.spans import SpansOf, SpanTokens, places_in, span_tokens
from uwaga.models.tokenizers.loading import Tokenizer, encode_prefixes, lone_surrogate
from uwaga.ops.validation import is_integer

Item = TypeVar("Item")

# Bounds of a group: its texts are tokenised together, and are in memory together.
GROUP_DOCUMENTS = 4096
GROUP_CHARACTERS = 1 << 20
# Tokenised groups that wait for the model. One suffices: the model takes many times longer than the tokenizer.
_GROUPS_AHEAD = 1

OVERFLOW = ("error", "truncate", "mean", "windows")


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


def batches(lengths: Sequence[int] | np.ndarray, tokens_per_batch: int) -> list[slice]:
    """Consecutive sequences in batches of about `tokens_per_batch` tokens, none much smaller than the others.

    Batches have equal shares of the tokens, so that no small one is left at the end. A batch has at most `tokens_per_batch`
    tokens and one more sequence.

    >>> batches([4, 4, 4, 4, 4], tokens_per_batch=10)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    if not len(lengths):
        return []
    ends = np.cumsum(lengths)
    count = max(1, -(-int(ends[-1]) // tokens_per_batch))
    shares = np.linspace(0, ends[-1], count + 1)[1:-1]
    # The sequence in which a share ends goes to the batch that has more of it.
    middles = ends - np.asarray(lengths) / 2
    edges = sorted({0, len(lengths), *np.searchsorted(middles, shares).tolist()})
    return [slice(start, stop) for start, stop in pairwise(edges)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowPolicy:
    """What to do with texts of more than `max_tokens` tokens.

    error       they are refused, with a DocumentError
    truncate    their first `max_tokens` tokens are read, or their last ones with `keeps_end`
    mean        one vector, the mean of those of their windows
    windows     one vector for each of their windows

    Raises:
        ValueError: an unknown policy; an overlap as long as a window, or without windows.
    """

    overflow: str = "error"
    overlap: int = 0  # tokens that neighbouring windows share
    max_tokens: int | None = None  # tokens of a text, special ones not counted, that the model takes; None: any number
    keeps_end: bool = False  # whether a text that is truncated loses its beginning

    def __post_init__(self) -> None:
        if self.overflow not in OVERFLOW:
            known = ", ".join(map(repr, OVERFLOW))
            raise ValueError(f"TextEncoder: overflow must be one of {known}, not {self.overflow!r}")
        if self.overlap and self.overflow not in ("mean", "windows"):
            raise ValueError(f"TextEncoder: overlap needs overflow='mean' or 'windows', not {self.overflow!r}")
        allowed = "at least 0" if self.max_tokens is None else f"from 0 to {self.max_tokens - 1}"
        most = inf if self.max_tokens is None else self.max_tokens - 1
        if not is_integer(self.overlap) or not 0 <= self.overlap <= most:
            raise ValueError(f"TextEncoder: overlap must be {allowed}, not {self.overlap!r}")

    def is_too_long(self, tokens: int) -> bool:
        return self.max_tokens is not None and tokens > self.max_tokens

    def windows(self, tokens: int) -> list[tuple[int, int]]:
        """(start, stop) of each window of a text of so many tokens.

        They are as few as possible, and equal in size up to one token: no window is a short remainder, and a plain mean of their
        vectors weighs every token equally.

        >>> OverflowPolicy(overflow="mean", max_tokens=4).windows(9)
        [(0, 3), (3, 6), (6, 9)]
        >>> OverflowPolicy(overflow="windows", max_tokens=4, overlap=1).windows(9)
        [(0, 3), (2, 6), (5, 9)]
        """
        if self.max_tokens is None or not self.is_too_long(tokens):
            return [(0, tokens)]
        if self.overflow == "truncate":
            start = tokens - self.max_tokens if self.keeps_end else 0
            return [(start, start + self.max_tokens)]
        assert self.overflow != "error"
        new = tokens - self.overlap  # tokens in no earlier window; of the first window, those after its first `overlap`
        count = -(-new // (self.max_tokens - self.overlap))
        starts = [new * window // count for window in range(count + 1)]
        return [(start, stop + self.overlap) for start, stop in pairwise(starts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedGroup:
    """The token sequences of a group of texts, packed, and the report of the rows that they give."""

    ids: np.ndarray  # (N,) int64, special tokens included
    offsets: np.ndarray  # (S+1,) int64
    sequences_per_row: np.ndarray  # (R,) int64
    report: Report
    first_document: int  # the number of documents in earlier groups
    skipped: np.ndarray  # (S,) int64: tokens at the start of each sequence that are not pooled, those of the prompt
    seen: np.ndarray | None = (
        None  # (S,) int64: the first so many tokens of each sequence are seen by others; None: all
    )
    invalid: tuple[DocumentError, ...] = ()  # documents that were left out, in order
    spans: SpanTokens | None = (
        None  # of the rows, where they are spans; then a text's first row has all of its sequences
    )

    def documents_within(self, sequences: int) -> int:
        """The number of documents that are finished after the first `sequences` of this group: earlier groups included, and the
        documents that were left out before them."""
        rows = int(np.searchsorted(np.cumsum(self.sequences_per_row), sequences, side="right"))
        if not rows:
            return self.first_document
        return int(self.report.document[rows - 1]) + int(self.report.is_last[rows - 1])


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text that is tokenised already. Where its tokens are in it is not known: of one that is truncated the report says that all of it was read."""

    text: str
    ids: Sequence[int]  # with those of the prompt, without special ones

    def __len__(self) -> int:
        return len(self.ids)


class _Row(NamedTuple):
    """A row of a Report."""

    document: int
    start: int
    stop: int
    characters: int
    tokens: int
    windows: int


class Padding(NamedTuple):
    """Tokens that lengthen short sequences: the mask tokens after a query of ColBERT."""

    token: int
    length: int  # of a sequence then, special tokens included
    is_seen: bool  # by the other tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessor:
    """Texts to sequences of tokens. A text gives the same sequences in any group."""

    tokenizer: Tokenizer
    policy: OverflowPolicy
    prompt: str = ""  # before every text
    chat: ChatTemplate | None = None  # makes the text that is tokenised of prompt and text
    include_prompt: bool = True  # False: the prompt's tokens, and the special ones before them, are not pooled
    skip_invalid: bool = False  # leave out texts that cannot be encoded, instead of raising
    padding: Padding | None = None
    spans: SpansOf | None = None  # the spans of a text, each of which is a row; None: a row for each text or window

    def tokenized(self, groups: Iterable[Sequence[str | TokenizedText]]) -> Iterator[TokenizedGroup]:
        """The groups in their order. A thread tokenises the next group, where there is one, while the caller works on this one.

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
        valid = self._valid(texts, first, invalid)
        ids: list[int] = []
        lengths: list[int] = []
        counts: list[int] = []
        rows: list[_Row] = []
        skipped: list[int] = []
        seen: list[int] = []
        of_spans: list[np.ndarray] = []
        prompt_tokens = self._prompt_tokens()
        for (number, given), tokens in zip(valid.items(), self._encode(list(valid.values())), strict=True):
            text = _text_of(given)
            if (reason := self._reason_against(len(tokens), prompt_tokens)) is not None:
                self._leave_out(DocumentError(number, reason), invalid)
                continue
            windows, numbers = self.policy.windows(len(tokens)), tokens.ids
            end = self._end(windows)
            if end:
                numbers = [*numbers[: windows[0][1] - len(end)], *end]
            places: list[np.ndarray] = []
            if self.spans is not None:
                spans = self.spans(number, text)
                assert isinstance(tokens, Encoding)
                own_tokens = span_tokens(text, spans, tokens.offsets, len(self.prompt))
                if isinstance(own_tokens, str):
                    self._leave_out(DocumentError(number, own_tokens), invalid)
                    continue
                at = places_in(windows, len(ids), len(self.tokenizer.prefix_ids), self.tokenizer.num_special_tokens)
                places = [at[each] for each in own_tokens]
            for start, stop in windows:
                ids += (*self.tokenizer.prefix_ids, *numbers[start:stop], *self.tokenizer.suffix_ids)
                seen.append(stop - start + self.tokenizer.num_special_tokens)
                lengths.append(self._length(start, stop))
                if self.padding is not None:
                    ids += [self.padding.token] * (lengths[-1] - seen[-1])
                of_prompt = min(prompt_tokens, stop) - start
                skipped.append(of_prompt + len(self.tokenizer.prefix_ids) if of_prompt > 0 else 0)
            if self.spans is not None:
                of_spans += places
                pairs = zip(spans, places, strict=True)
                rows += [_Row(number, *span, len(text), len(each), len(windows)) for span, each in pairs]
                counts += [len(windows), *[0] * (len(places) - 1)]
                continue
            own = list(self._rows(number, text, tokens, windows, len(end)))
            rows += own
            counts += [len(windows) // len(own)] * len(own)
        columns = np.array(rows, dtype=np.int64).reshape(-1, len(_Row._fields)).T
        return TokenizedGroup(
            ids=np.array(ids, dtype=np.int64),
            offsets=np.cumsum([0, *lengths], dtype=np.int64),
            sequences_per_row=np.array(counts, dtype=np.int64),
            report=Report.of_columns(dict(zip(_Row._fields, columns, strict=True))),
            first_document=first,
            skipped=np.array(skipped, dtype=np.int64),
            seen=None if self.padding is None or self.padding.is_seen else np.array(seen, dtype=np.int64),
            invalid=tuple(sorted(invalid, key=lambda error: error.document)),
            spans=None if self.spans is None else SpanTokens.of(of_spans),
        )

    def _length(self, start: int, stop: int) -> int:
        """Tokens of the sequence of a window, special ones included."""
        length = stop - start + self.tokenizer.num_special_tokens
        return length if self.padding is None else max(length, self.padding.length)

    def _valid(
        self, texts: Sequence[str | TokenizedText], first: int, invalid: list[DocumentError]
    ) -> dict[int, str | TokenizedText]:
        """The texts that can be tokenised, by number."""
        valid = {}
        for number, text in enumerate(texts, start=first):
            if (reason := _reason_against_text(_text_of(text))) is None:
                valid[number] = text
            else:
                self._leave_out(DocumentError(number, reason), invalid)
        return valid

    def _leave_out(self, error: DocumentError, invalid: list[DocumentError]) -> None:
        if not self.skip_invalid:
            raise error
        invalid.append(error)

    def _encode(self, texts: Sequence[str | TokenizedText]) -> list[Encoding | TokenizedText]:
        new = iter(self._encode_texts([x for x in texts if isinstance(x, str)]))
        return [x if isinstance(x, TokenizedText) else next(new) for x in texts]

    def _encode_texts(self, texts: Sequence[str]) -> list[Encoding]:
        if self.chat is not None:
            texts = [self.chat.text(text, prompt=self.prompt) for text in texts]
        elif self.prompt:
            texts = [self.prompt + text for text in texts]
        truncates = self.policy.overflow == "truncate" and self.policy.max_tokens is not None
        if truncates and not self.policy.keeps_end:
            return encode_prefixes(self.tokenizer, texts, max_tokens=cast(int, self.policy.max_tokens))
        with_offsets = truncates or self.policy.overflow == "windows" or self.spans is not None
        return self.tokenizer.encode(texts, with_offsets=with_offsets)

    def _end(self, windows: Sequence[tuple[int, int]]) -> Sequence[int]:
        """The tokens that end a text of so many windows in any case: those that the chat template puts after one that fills the model."""
        most = self.policy.max_tokens
        if self.chat is None or most is None or windows[0][1] - windows[0][0] < most:
            return ()
        return self.chat.end(self.tokenizer.backend, 1, self.prompt)[-most:]

    def _prompt_tokens(self) -> int:
        """The tokens of the prompt, where pooling leaves them out, counted as in sentence-transformers: of the prompt alone."""
        if self.include_prompt or not self.prompt:
            return 0
        (tokens,) = self.tokenizer.encode([self.prompt], with_offsets=False)
        return len(tokens)

    def _reason_against(self, tokens: int, prompt_tokens: int) -> str | None:
        """Why a text of so many tokens, with its prompt, cannot be encoded; None if it can."""
        if not tokens:
            return "is empty: it has no tokens"
        if self.policy.overflow == "error" and self.policy.is_too_long(tokens):
            counts = f"has {tokens:,} tokens, and the model takes at most {self.policy.max_tokens:,}"
            others = "truncate, mean or windows" if self.spans is None else "windows"
            others = others if self.chat is None else "truncate"
            return f"{counts}; set the option overflow to {others}"
        if self.policy.windows(tokens)[0][1] <= prompt_tokens and not self.tokenizer.suffix_ids:
            return f"has no token to pool: the {prompt_tokens} tokens of the prompt are left out, and leave no room for others"
        return None

    def _rows(
        self, number: int, text: str, tokens: Encoding | TokenizedText, windows: Sequence[tuple[int, int]], of_end: int
    ) -> Iterator[_Row]:
        """of_end: the last tokens of a text that are not its own."""
        count, characters = len(windows), len(text)
        if self.policy.overflow == "windows":
            assert isinstance(tokens, Encoding)
            for index, (start, stop) in enumerate(windows):
                # The first row begins with the text and the last one ends with it, white space included: the rows cover it all.
                first = self._characters(tokens, start)[0] if index else 0
                end = self._characters(tokens, stop - 1)[1] if index + 1 < count else characters
                yield _Row(number, first, end, characters, self._length(start, stop), count)
            return
        first, last = windows[0][0], windows[-1][1]
        start, end = 0, characters
        if isinstance(tokens, Encoding) and (first or last < len(tokens)):
            before, least, most = len(self.prompt), 0, characters
            if self.chat is not None:  # where the text is in what was rendered, if the template has not changed it
                before = max(self.chat.text(text, prompt=self.prompt).find(text.strip()), 0)
                least, most = 1, characters - 1
            if first:
                start = max(self._characters(tokens, first, before)[0], least)
            if last < len(tokens):
                end = min(self._characters(tokens, max(last - 1 - of_end, 0), before)[1], most)
        yield _Row(number, start, end, characters, sum(self._length(start, stop) for start, stop in windows), count)

    def _characters(self, tokens: Encoding, index: int, before: int | None = None) -> tuple[int, int]:
        """(start, stop) of a token in the text, which has so many characters before it, None for those of the prompt; (0, 0) for a
        token before it."""
        offsets = tokens.token_to_chars(index)
        assert offsets is not None
        start, stop = offsets
        before = len(self.prompt) if before is None else before
        return max(0, start - before), max(0, stop - before)


def _text_of(text: str | TokenizedText) -> str:
    return text.text if isinstance(text, TokenizedText) else text


def _reason_against_text(text: object) -> str | None:
    """Why a text cannot be tokenised; None if it can."""
    if not isinstance(text, str):
        return f"must be a string, not {type(text).__name__}"
    if not text or text.isspace():
        return "is empty"
    return lone_surrogate(text)
