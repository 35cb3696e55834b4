"""The part of a text that each row of an array was computed from, and what was cut off. Letters: R rows of the array."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np


class DocumentError(ValueError):
    """A document that cannot be encoded.

    Attributes:
        document: its number among the texts, from 0.
        reason: what is wrong with the document, to follow "document 3 ...".
    """

    def __init__(self, document: int, reason: str) -> None:
        super().__init__(f"TextEncoder: document {document} {reason}")
        self.document, self.reason = document, reason


def not_finite(what: str, dtype: object) -> str:
    """Return what is wrong with a text whose vector or score is not finite."""
    name = str(dtype).removeprefix("torch.")
    instead = "use another model" if name == "float32" else "set the option dtype to float32"
    return f"has a {what} that is NaN or infinite in {name}; {instead}"


class Summary(NamedTuple):
    """Counts of a Report."""

    documents: int = 0
    tokens: int = 0  # that the model read, special tokens included
    cut: int = 0  # documents that were truncated
    lost: int = 0  # characters that were cut off
    windowed: int = 0  # documents of more than one window
    windows: int = 0  # of these documents

    def __str__(self) -> str:
        """Return the counts in words.

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
    """The part of a text that each row of an array was computed from: arrays (R,) int64.

    The rows of a document follow each other. Characters are counted in the text without its prompt.
    """

    document: np.ndarray  # number of the text, from 0
    start: np.ndarray  # the first character of the part
    stop: np.ndarray  # the character after the last one
    characters: np.ndarray  # of the whole text
    # The tokens that the model read for this row, special tokens included; of a span, the tokens that are pooled.
    tokens: np.ndarray
    windows: np.ndarray  # of the whole text; 1 unless it was too long for the model
    engine: str = "uwaga"  # what computed the hidden states (TextEncoder.explain)

    def __repr__(self) -> str:
        by = "" if self.engine == "uwaga" else f"; {self.engine}"
        return f"Report({len(self.document)} rows; {self.summary}{by})"

    @staticmethod
    def join(reports: Sequence["Report"]) -> "Report":
        """Return the report of concatenated arrays."""
        nothing = np.zeros(0, np.int64)
        joined: dict[str, Any] = {
            name: np.concatenate([nothing, *(getattr(report, name) for report in reports)]) for name in COLUMNS
        }
        return Report(**joined)

    def rows(self, kept_R: np.ndarray) -> "Report":
        """Return the report of some rows; kept_R: (R,) bool."""
        return replace(self, **{name: getattr(self, name)[kept_R] for name in COLUMNS})

    @property
    def cut(self) -> np.ndarray:
        """The numbers of documents whose end is in no row, by truncation or by their spans."""
        return self.document[self.is_last & (self._ends < self.characters)]

    @property
    def _ends(self) -> np.ndarray:
        """The last character of each row's document that is in any row, (R,)."""
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
        """Whether each row is the last one of its document, (R,) bool."""
        return np.append(self.document[1:] != self.document[:-1], True)[: len(self.document)]


COLUMNS = tuple(field.name for field in fields(Report) if field.name != "engine")  # the arrays
