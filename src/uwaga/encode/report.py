"""For each row of an array, the part of which text it was computed from, and what was cut off. Letters: R rows of the array."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np


class DocumentError(ValueError):
    """A document that cannot be encoded.

    Attributes:
        document: its number among the texts given, from 0.
        reason: what is wrong with it, to follow "document 3 ...".
    """

    def __init__(self, document: int, reason: str) -> None:
        super().__init__(f"TextEncoder: document {document} {reason}")
        self.document, self.reason = document, reason


def not_finite(what: str, dtype: object) -> str:
    """What is wrong with a text whose vector or score is not finite. dtype: torch's, of the model."""
    name = str(dtype).removeprefix("torch.")
    instead = "use another model" if name == "float32" else "set the option dtype to float32"
    return f"has a {what} that is NaN or infinite in {name}; {instead}"


class Summary(NamedTuple):
    """Counts of a Report."""

    documents: int = 0
    tokens: int = 0  # read by the model, special ones included
    cut: int = 0  # documents that were truncated
    lost: int = 0  # characters that were cut off
    windowed: int = 0  # documents of more than one window
    windows: int = 0  # of these documents

    def plus(self, other: "Summary") -> "Summary":
        return Summary(*map(sum, zip(self, other, strict=True)))

    def __str__(self) -> str:
        """
        >>> print(Summary(documents=3, tokens=1200, cut=1, lost=70))
        documents: 3; tokens: 1,200; truncated: 1 (70 characters cut off)
        """
        text = f"documents: {self.documents:,}; tokens: {self.tokens:,}"
        if self.cut:
            text += f"; truncated: {self.cut:,} ({self.lost:,} characters cut off)"
        if self.windowed:
            text += f"; split into windows: {self.windowed:,} ({self.windows:,} windows)"
        return text


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """For every row of an array, the part of a text that it was computed from: arrays (R,) int64. The rows of a document are
    consecutive. Characters are counted in the text without its prompt."""

    document: np.ndarray  # number of the text, from 0
    start: np.ndarray  # the first character of the part
    stop: np.ndarray  # after the last one
    characters: np.ndarray  # of the whole text
    tokens: np.ndarray  # read by the model for this row, special ones included; of a span, those that are pooled
    windows: np.ndarray  # of the whole text: 1 unless it was longer than the model
    engine: str = "uwaga"  # what computed the hidden states: TextEncoder.explain

    def __repr__(self) -> str:
        by = "" if self.engine == "uwaga" else f"; {self.engine}"
        return f"Report({len(self.document)} rows; {self.summary}{by})"

    @staticmethod
    def join(reports: Sequence["Report"]) -> "Report":
        """The report of concatenated arrays."""
        nothing = np.zeros(0, np.int64)
        joined: dict[str, Any] = {
            name: np.concatenate([nothing, *(getattr(report, name) for report in reports)]) for name in COLUMNS
        }
        return Report(**joined)

    def rows(self, kept_R: np.ndarray) -> "Report":
        """The report of some rows alone; kept_R: (R,) bool."""
        return replace(self, **{name: getattr(self, name)[kept_R] for name in COLUMNS})

    @property
    def cut(self) -> np.ndarray:
        """Numbers of the documents whose end is in no row: they were truncated, or their spans end before them."""
        return self.document[self.is_last & (self._ends < self.characters)]

    @property
    def _ends(self) -> np.ndarray:
        """(R,): the last character of the document that is in a row; spans may be in any order."""
        if not len(self.document):
            return self.stop
        first = np.append(True, self.document[1:] != self.document[:-1])
        return np.maximum.reduceat(self.stop, np.flatnonzero(first))[np.cumsum(first) - 1]

    @property
    def summary(self) -> Summary:
        last = self.is_last
        windowed = last & (self.windows > 1)
        return Summary(
            documents=int(last.sum()),
            tokens=int(self.tokens.sum()),
            cut=len(self.cut),
            lost=int((self.characters - self._ends)[last].sum()),
            windowed=int(windowed.sum()),
            windows=int(self.windows[windowed].sum()),
        )

    @property
    def is_last(self) -> np.ndarray:
        """(R,) bool: the last row of each document."""
        return np.append(self.document[1:] != self.document[:-1], True)[: len(self.document)]


COLUMNS = tuple(field.name for field in fields(Report) if field.name != "engine")  # the arrays
