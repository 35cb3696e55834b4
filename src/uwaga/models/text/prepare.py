"""A group of texts as what the model reads: sequences of tokens, packed, and a report of where they come from.

Letters: N packed tokens, S sequences (documents, or windows of long ones), R rows of the result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding

from uwaga.models.text.beginnings import encode_beginnings
from uwaga.models.text.errors import DocumentError
from uwaga.models.text.report import Report
from uwaga.models.text.tokenizer import Tokenizer
from uwaga.models.text.windows import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The sequences of a group, and what the rows of its result are."""

    ids: np.ndarray  # (N,) int64, special tokens included
    offsets: np.ndarray  # (S+1,) int64
    counts: np.ndarray  # (R,) int64: how many sequences one after the other make a row
    report: Report
    before: int  # documents of earlier groups

    def documents_within(self, sequences: int) -> int:
        """How many documents, earlier groups' included, are finished with the first sequences of this one."""
        rows = int(np.searchsorted(np.cumsum(self.counts), sequences, side="right"))
        return self.before + int(self.report.is_last[:rows].sum())


class _Row(NamedTuple):
    """A row of a Report."""

    document: int
    start: int
    stop: int
    characters: int
    tokens: int
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparer:
    """Texts to sequences; a text gives the same ones whatever stands around it."""

    tokenizer: Tokenizer
    policy: Policy
    prompt: str = ""  # before every text

    def prepare(self, texts: Sequence[str], first: int) -> Prepared:
        """Raises DocumentError; the texts are numbered from `first`."""
        ids: list[int] = []
        lengths: list[int] = []
        counts: list[int] = []
        rows: list[_Row] = []
        for number, (text, tokens) in enumerate(zip(texts, self._encode(texts, first), strict=True), start=first):
            self._check(number, len(tokens))
            windows, numbers = self.policy.windows(len(tokens)), tokens.ids
            for start, stop in windows:
                ids += (*self.tokenizer.before, *numbers[start:stop], *self.tokenizer.behind)
                lengths.append(stop - start + self.tokenizer.special)
            made = list(self._rows(number, len(text), tokens, windows))
            rows += made
            counts += [len(windows) // len(made)] * len(made)
        columns = np.array(rows, dtype=np.int64).reshape(-1, len(_Row._fields)).T
        return Prepared(
            ids=np.array(ids, dtype=np.int64),
            offsets=np.cumsum([0, *lengths], dtype=np.int64),
            counts=np.array(counts, dtype=np.int64),
            report=Report(**dict(zip(_Row._fields, columns, strict=True))),
            before=first,
        )

    def _encode(self, texts: Sequence[str], first: int) -> list[Encoding]:
        for number, text in enumerate(texts, start=first):
            _check_text(number, text)
        if self.prompt:
            texts = [self.prompt + text for text in texts]
        if self.policy.overflow == "truncate" and self.policy.max_tokens is not None:
            return encode_beginnings(self.tokenizer, texts, max_tokens=self.policy.max_tokens)
        return self.tokenizer.encode(texts, with_places=self.policy.overflow == "windows")

    def _check(self, number: int, tokens: int) -> None:
        if not tokens:
            raise DocumentError(number, "is empty: it has no tokens")
        if self.policy.overflow == "error" and self.policy.is_long(tokens):
            said = f"has {tokens:,} tokens, and the model takes at most {self.policy.max_tokens:,}"
            raise DocumentError(number, f"{said}; set the option overflow to truncate, mean or windows")

    def _rows(
        self, number: int, characters: int, tokens: Encoding, windows: Sequence[tuple[int, int]]
    ) -> Iterator[_Row]:
        special, several = self.tokenizer.special, len(windows)
        if self.policy.overflow == "windows":
            for index, (start, stop) in enumerate(windows):
                # The space before the first token and behind the last one belongs to them: nothing of the text is lost.
                first = self._place(tokens, start)[0] if index else 0
                end = self._place(tokens, stop - 1)[1] if index + 1 < several else characters
                yield _Row(number, first, end, characters, stop - start + special, several)
            return
        last = windows[-1][1]
        end = characters if last == len(tokens) else self._place(tokens, last - 1)[1]
        yield _Row(number, 0, end, characters, sum(stop - start + special for start, stop in windows), several)

    def _place(self, tokens: Encoding, index: int) -> tuple[int, int]:
        """The characters of a token in the text itself; (0, 0) of one in the prompt."""
        places = tokens.token_to_chars(index)
        assert places is not None
        start, stop = places
        return max(0, start - len(self.prompt)), max(0, stop - len(self.prompt))


def _check_text(number: int, text: object) -> None:
    if not isinstance(text, str):
        raise DocumentError(number, f"must be a string, not {type(text).__name__}")
    if not text or text.isspace():
        raise DocumentError(number, "is empty")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DocumentError(number, f"has half of a surrogate pair at character {error.start}") from error
