"""The rows of a split for each objective: their order in an epoch, their lengths, and their tokens.

A row is identified by a number. Rows of documents are numbered through all documents in order; random windows by their draw.
Letters: R rows, N packed tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from uwaga.train.data.batch import IGNORED, Batch, labels, ragged
from uwaga.train.data.store import TokenStore
from uwaga.train.seeds import permutation, random_bits


def fill_batches(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """(micro-batches + 1,) int64: the first row of each, filled with rows of these lengths up to so many tokens.

    >>> fill_batches(np.array([3, 3, 2, 4, 9]), 8).tolist()
    [0, 3, 4, 5]
    """
    ends = np.cumsum(lengths)
    starts, row, before = [0], 0, 0
    while row < len(lengths):
        row = max(int(np.searchsorted(ends, before + tokens, side="right")), row + 1)
        before = int(ends[row - 1])
        starts.append(row)
    return np.array(starts, np.int64)


class EpochOrder:
    """The order of one epoch: which rows make which micro-batch, as a pure function of (seed, epoch).

    Rows come in the order of a permutation and fill a micro-batch until the next one does not fit; lengths are mixed. To sort
    them would save nothing, since there is no padding, and would give each step rows of one length only.

    Args:
        lengths: (R,) tokens of each row.
        tokens: of a micro-batch at most.
        seed, epoch: of the permutation; seed None: the rows in their own order.
    """

    def __init__(self, lengths: np.ndarray, tokens: int, seed: int | None, epoch: int) -> None:
        order = np.arange(len(lengths)) if seed is None else permutation(len(lengths), "order", seed, epoch)
        self._order, self._starts = order, fill_batches(lengths[order], tokens)

    def __len__(self) -> int:
        """The number of micro-batches."""
        return len(self._starts) - 1

    def rows(self, micro: int) -> tuple[int, ...]:
        """The rows of a micro-batch."""
        return tuple(self._order[self._starts[micro] : self._starts[micro + 1]].tolist())


class Rows(Protocol):
    """The rows of one split."""

    def __len__(self) -> int:
        """The number of rows of an epoch."""

    def lengths(self) -> np.ndarray:
        """(R,) int64: the number of tokens that a model reads of each."""

    def batch(self, epoch: int, rows: Sequence[int]) -> Batch:
        """The tokens of some rows."""


class RowSlices:
    """Documents cut into consecutive rows of at most `context` tokens; the last row of a document may be shorter.

    Args:
        lengths: (documents,) tokens of each.
        context: of a row.
    """

    def __init__(self, lengths: np.ndarray, context: int) -> None:
        self._lengths, self._context = lengths, context
        self._ends = np.cumsum(-(-lengths // context))  # the number of rows up to and including each document

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def lengths(self) -> np.ndarray:
        """(R,) int64"""
        result, has_rows = np.full(len(self), self._context, np.int64), self._lengths > 0
        result[self._ends[has_rows] - 1] = (self._lengths[has_rows] - 1) % self._context + 1
        return result

    def locate(self, row: int) -> tuple[int, int, int]:
        """The document of a row, and its first and last + 1 token within it."""
        document = int(np.searchsorted(self._ends, row, side="right"))
        number = row - (int(self._ends[document - 1]) if document else 0)
        start = number * self._context
        return document, start, min(start + self._context, int(self._lengths[document]))


class DocumentRows:
    """For a language model: each token of a document but the first is a label once. Documents end in an end token."""

    def __init__(self, store: TokenStore, context: int) -> None:
        self._store, self._slices = store, RowSlices(store.lengths() - 1, context)

    def __len__(self) -> int:
        return len(self._slices)

    def lengths(self) -> np.ndarray:
        return self._slices.lengths()

    def batch(self, epoch: int, rows: Sequence[int]) -> Batch:
        results = [self._row(row) for row in rows]
        return Batch(ids=ragged([x[:-1] for x in results]), decoder_ids=None, labels=labels([x[1:] for x in results]))

    def _row(self, row: int) -> np.ndarray:
        document, start, stop = self._slices.locate(row)
        first = int(self._store.offsets[document])
        return self._store.tokens[first + start : first + stop + 1].astype(np.int64)


class WindowRows:
    """For a language model: windows of one long text that start at random positions, drawn anew in each epoch.

    Args:
        seed: of the draws.
        rows_per_step: an epoch is about as many rows as the text has windows, in whole steps.
    """

    def __init__(self, store: TokenStore, context: int, seed: int, rows_per_step: int) -> None:
        self._tokens, self._context, self._seed = store.tokens, context, seed
        self._rows = max(1, round(len(self._tokens) / context / rows_per_step)) * rows_per_step
        self._starts: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self._rows

    def lengths(self) -> np.ndarray:
        return np.full(len(self), self._context, np.int64)

    def batch(self, epoch: int, rows: Sequence[int]) -> Batch:
        if epoch not in self._starts:
            drawn = random_bits(len(self), "windows", self._seed, epoch) % np.uint64(len(self._tokens) - self._context)
            self._starts = {epoch: drawn.astype(np.int64)}
        starts = self._starts[epoch][list(rows)]
        results = [self._tokens[start : start + self._context + 1].astype(np.int64) for start in starts]
        return Batch(ids=ragged([x[:-1] for x in results]), decoder_ids=None, labels=labels([x[1:] for x in results]))


class PairRows:
    """For an encoder-decoder. Targets are stored with the decoder's start token before them and an end token behind."""

    def __init__(self, sources: TokenStore, targets: TokenStore) -> None:
        self._sources, self._targets = sources, targets

    def __len__(self) -> int:
        return len(self._sources)

    def lengths(self) -> np.ndarray:
        return self._sources.lengths() + self._targets.lengths() - 1

    def batch(self, epoch: int, rows: Sequence[int]) -> Batch:
        sources = [self._sources.row(row) for row in rows]
        targets = [self._targets.row(row) for row in rows]
        decoded = ragged([target[:-1] for target in targets])
        return Batch(ids=ragged(sources), decoder_ids=decoded, labels=labels([target[1:] for target in targets]))


class Masking(NamedTuple):
    """Which tokens a masked language model predicts, as in BERT (Devlin et al. 2019, section 3.1)."""

    probability: float  # the fraction of a row's tokens
    mask: int  # the id of the mask token
    ordinary: np.ndarray  # the ids of all tokens that are not special
    before: np.ndarray  # ids before a row
    behind: np.ndarray  # ids behind a row
    seed: int


class MaskedRows:
    """For a masked language model: a fraction of each row's tokens are labels, at least one; of these 80 % are masked, 10 % replaced
    by a random token and 10 % unchanged."""

    def __init__(self, store: TokenStore, context: int, masking: Masking) -> None:
        self._store, self._masking = store, masking
        self._around = len(masking.before) + len(masking.behind)
        self._slices = RowSlices(store.lengths(), context - self._around)

    def __len__(self) -> int:
        return len(self._slices)

    def lengths(self) -> np.ndarray:
        return self._slices.lengths() + self._around

    def batch(self, epoch: int, rows: Sequence[int]) -> Batch:
        made = [self._row(epoch, row) for row in rows]
        return Batch(ids=ragged([x for x, _ in made]), decoder_ids=None, labels=labels([y for _, y in made]))

    def _row(self, epoch: int, row: int) -> tuple[np.ndarray, np.ndarray]:
        document, start, stop = self._slices.locate(row)
        first = int(self._store.offsets[document])
        own = self._store.tokens[first + start : first + stop].astype(np.int64)
        masked, wanted = self._masked(own, epoch, row)
        before, behind = self._masking.before, self._masking.behind
        ends = [np.full(len(each), IGNORED) for each in (before, behind)]
        return np.concatenate((before, masked, behind)), np.concatenate((ends[0], wanted, ends[1]))

    def _masked(self, own: np.ndarray, epoch: int, row: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = random_bits(3 * len(own), "masks", self._masking.seed, epoch, row).reshape(3, len(own))
        chosen = np.argsort(drawn[0], kind="stable")[: max(1, round(len(own) * self._masking.probability))]
        wanted = np.full(len(own), IGNORED)
        wanted[chosen] = own[chosen]
        tenth = (drawn[1][chosen] % np.uint64(10)).astype(np.int64)
        other = self._masking.ordinary[(drawn[2][chosen] % np.uint64(len(self._masking.ordinary))).astype(np.int64)]
        masked = own.copy()
        masked[chosen] = np.where(tenth < 8, self._masking.mask, np.where(tenth == 8, other, own[chosen]))
        return masked, wanted
