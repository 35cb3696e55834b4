"""The rows of a training, for each objective: how many tokens a row has, and what they are.

A row is told by a number. Rows of documents are numbered through all documents in order; a random window by its draw.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from uwaga.train.data.batch import IGNORED, Batch, labels, ragged
from uwaga.train.data.counter import bits
from uwaga.train.data.store import Store


class Rows(Protocol):
    """Rows of one split."""

    def __len__(self) -> int:
        """Rows of an epoch."""

    def lengths(self) -> np.ndarray:
        """(R,) int64: tokens of each that a model reads."""

    def batch(self, epoch: int, rows: Sequence[int]) -> Batch:
        """The tokens of some rows."""


class Cuts:
    """Documents cut into rows of at most `context` tokens, all of them in turn; a row's last token may be less behind.

    Args:
        lengths: (documents,) tokens of each.
        context: of a row.
    """

    def __init__(self, lengths: np.ndarray, context: int) -> None:
        self._lengths, self._context = lengths, context
        self._ends = np.cumsum(-(-lengths // context))  # rows up to and with each document

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def lengths(self) -> np.ndarray:
        """(R,) int64"""
        found, has_rows = np.full(len(self), self._context, np.int64), self._lengths > 0
        found[self._ends[has_rows] - 1] = (self._lengths[has_rows] - 1) % self._context + 1
        return found

    def place(self, row: int) -> tuple[int, int, int]:
        """Document, start and stop within it."""
        document = int(np.searchsorted(self._ends, row, side="right"))
        number = row - (int(self._ends[document - 1]) if document else 0)
        start = number * self._context
        return document, start, min(start + self._context, int(self._lengths[document]))


class DocumentRows:
    """Of a language model: each token of a document but the first is asked for once. Documents end in an end token."""

    def __init__(self, store: Store, context: int) -> None:
        self._store, self._cuts = store, Cuts(store.lengths() - 1, context)

    def __len__(self) -> int:
        return len(self._cuts)

    def lengths(self) -> np.ndarray:
        return self._cuts.lengths()

    def batch(self, epoch: int, rows: Sequence[int]) -> Batch:
        found = [self._row(row) for row in rows]
        return Batch(ids=ragged([x[:-1] for x in found]), decoder_ids=None, labels=labels([x[1:] for x in found]))

    def _row(self, row: int) -> np.ndarray:
        document, start, stop = self._cuts.place(row)
        first = int(self._store.offsets[document])
        return self._store.tokens[first + start : first + stop + 1].astype(np.int64)


class WindowRows:
    """Of a language model: windows of one long text that start anywhere, drawn anew in each epoch.

    Args:
        seed: of the draws.
        step: rows of a step. An epoch is about as many rows as hold the text once, in whole steps.
    """

    def __init__(self, store: Store, context: int, seed: int, step: int) -> None:
        self._tokens, self._context, self._seed = store.tokens, context, seed
        self._rows = max(1, round(len(self._tokens) / context / step)) * step
        self._starts: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self._rows

    def lengths(self) -> np.ndarray:
        return np.full(len(self), self._context, np.int64)

    def batch(self, epoch: int, rows: Sequence[int]) -> Batch:
        if epoch not in self._starts:
            drawn = bits(len(self), "windows", self._seed, epoch) % np.uint64(len(self._tokens) - self._context)
            self._starts = {epoch: drawn.astype(np.int64)}
        starts = self._starts[epoch][list(rows)]
        found = [self._tokens[start : start + self._context + 1].astype(np.int64) for start in starts]
        return Batch(ids=ragged([x[:-1] for x in found]), decoder_ids=None, labels=labels([x[1:] for x in found]))


class Sides(NamedTuple):
    """Stores of both sides of pairs, row by row."""

    sources: Store
    targets: Store


class PairRows:
    """Of an encoder-decoder. Targets are stored with what the decoder begins with before them, and an end behind."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides

    def __len__(self) -> int:
        return len(self._sides.sources)

    def lengths(self) -> np.ndarray:
        return self._sides.sources.lengths() + self._sides.targets.lengths() - 1

    def batch(self, epoch: int, rows: Sequence[int]) -> Batch:
        sources = [self._sides.sources.row(row) for row in rows]
        targets = [self._sides.targets.row(row) for row in rows]
        decoded = ragged([target[:-1] for target in targets])
        return Batch(ids=ragged(sources), decoder_ids=decoded, labels=labels([target[1:] for target in targets]))


class Masks(NamedTuple):
    """What a masked language model is asked for, as BERT does it (Devlin et al. 2019, section 3.1)."""

    share: float  # of the tokens of a row
    mask: int  # the id of the mask token
    words: np.ndarray  # ids that stand in for others
    before: np.ndarray  # ids around a row
    behind: np.ndarray
    seed: int


class MaskedRows:
    """Documents in rows, and of each row a share of the tokens, at least one: 80 % of those are masked, 10 % become some
    other word, 10 % stay."""

    def __init__(self, store: Store, context: int, masks: Masks) -> None:
        self._store, self._masks = store, masks
        self._around = len(masks.before) + len(masks.behind)
        self._cuts = Cuts(store.lengths(), context - self._around)

    def __len__(self) -> int:
        return len(self._cuts)

    def lengths(self) -> np.ndarray:
        return self._cuts.lengths() + self._around

    def batch(self, epoch: int, rows: Sequence[int]) -> Batch:
        made = [self._row(epoch, row) for row in rows]
        return Batch(ids=ragged([x for x, _ in made]), decoder_ids=None, labels=labels([y for _, y in made]))

    def _row(self, epoch: int, row: int) -> tuple[np.ndarray, np.ndarray]:
        document, start, stop = self._cuts.place(row)
        first = int(self._store.offsets[document])
        own = self._store.tokens[first + start : first + stop].astype(np.int64)
        masked, wanted = self._masked(own, epoch, row)
        before, behind = self._masks.before, self._masks.behind
        ends = [np.full(len(each), IGNORED) for each in (before, behind)]
        return np.concatenate((before, masked, behind)), np.concatenate((ends[0], wanted, ends[1]))

    def _masked(self, own: np.ndarray, epoch: int, row: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = bits(3 * len(own), "masks", self._masks.seed, epoch, row).reshape(3, len(own))
        chosen = np.argsort(drawn[0], kind="stable")[: max(1, round(len(own) * self._masks.share))]
        wanted = np.full(len(own), IGNORED)
        wanted[chosen] = own[chosen]
        tenth = (drawn[1][chosen] % np.uint64(10)).astype(np.int64)
        other = self._masks.words[(drawn[2][chosen] % np.uint64(len(self._masks.words))).astype(np.int64)]
        masked = own.copy()
        masked[chosen] = np.where(tenth < 8, self._masks.mask, np.where(tenth == 8, other, own[chosen]))
        return masked, wanted
