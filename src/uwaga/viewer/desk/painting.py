"""A picture of a matrix in cells, made a little at a time: first from a sample of its queries, then exact from the top.

So every answer takes a bounded time, a page that nobody looks at any more costs nothing further, and a picture of a
hundred thousand tokens can be seen long before all of its ten thousand million weights were computed.

Letters: Q queries, K keys, I x J cells.
"""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uwaga.viewer.desk.lens import Lens

_AT_ONCE = 1 << 26  # a picture of fewer weights needs no sample before it
_SAMPLES = 8  # queries of each cell
_FIRST = 0.2  # what a complete sample counts, of the whole


class Painting:
    """I x J cells of a matrix, in equal or unequal ranges.

    Args:
        lens: the matrix.
        rows: (I+1,) rising edges of the ranges of queries.
        columns: (J+1,) of keys.
        how: "mass" (sum over keys, mean over queries) or "max" (of differences the one farthest from 0).
        exact: False: the sample is all that is made, where a sample comes first.
    """

    def __init__(
        self, lens: Lens, rows: NDArray[np.int64], columns: NDArray[np.int64], how: str, *, exact: bool = True
    ) -> None:
        self._lens, self._rows, self._columns, self._how = lens, rows, columns, how
        self.cells = np.full((len(rows) - 1, len(columns) - 1), np.nan, np.float32)
        self._cost = int(lens.work[rows[-1]] - lens.work[rows[0]])
        self._sampled = np.zeros(len(rows) - 1, np.int64)
        self._sum = np.zeros(self.cells.shape, np.float64)
        self._is_sample = self._cost > _AT_ONCE and bool((np.diff(rows) > 2 * _SAMPLES).any())
        self._wants_exact = exact or not self._is_sample
        self._steps = self._work()
        self.complete = 0.0

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        return self.cells.nbytes + self._sum.nbytes

    @property
    def is_exact(self) -> bool:
        """Whether every cell is what the map says."""
        return self.complete == 1.0 and self._wants_exact

    def go_on(self, until: float) -> None:
        """Paint until a moment of `time.monotonic`, one step at least."""
        for complete in self._steps:
            self.complete = complete
            if time.monotonic() >= until:
                return
        self.complete = 1.0

    def _work(self) -> Iterator[float]:
        """All steps, with what is complete after each."""
        before = 0.0
        if self._is_sample:
            before = _FIRST if self._wants_exact else 1.0
            for turn in range(_SAMPLES):
                for part in self._sample(turn):
                    yield before * min(turn + part, _SAMPLES) / _SAMPLES
        if self._wants_exact:
            for part in self._exact():
                yield before + (1.0 - before) * part

    def _sample(self, turn: int) -> Iterator[float]:
        """One more query of every range."""
        starts, lengths = self._rows[:-1], np.diff(self._rows)
        wanted = np.flatnonzero(lengths > turn)
        chosen = starts[wanted] + (lengths[wanted] * _spread(turn)).astype(np.int64)
        for at in self._lens.steps(chosen):
            self._add(wanted[at], self._across(self._lens.read(chosen[at].tolist(), self._shown)))
            yield at.stop / len(wanted)

    def _add(self, ranges: NDArray[np.int64], found: NDArray[np.float64]) -> None:
        """What was found of one query of some ranges."""
        self._sampled[ranges] += 1
        if self._how == "mass":
            self._sum[ranges] += found
            self.cells[ranges] = self._sum[ranges] / self._sampled[ranges, None]
        else:
            self._sum[ranges] = stronger(self._sum[ranges], found)
            self.cells[ranges] = self._sum[ranges]

    def _exact(self) -> Iterator[float]:
        """The ranges from the top: several at a time, or a long one in pieces."""
        first, ranges = 0, len(self._rows) - 1
        while first < ranges:
            stop = self._lens.stop(int(self._rows[first]), int(self._rows[-1]))
            last = int(np.searchsorted(self._rows, stop, "right")) - 1
            if last > first:
                self.cells[first:last] = self._pooled(self._rows[first : last + 1])
            else:
                last = first + 1
                for part in self._long(first):
                    yield (first + part) / ranges
            first = last
            yield first / ranges

    def _long(self, at: int) -> Iterator[float]:
        """One range of more queries than are looked at together."""
        start, stop = (int(edge) for edge in self._rows[at : at + 2])
        cells = np.zeros(len(self._columns) - 1)
        first = start
        while first < stop:
            if first > start:
                yield (first - start) / (stop - start)
            last = self._lens.stop(first, stop)
            found = self._pooled(np.array([first, last]))[0]
            cells = cells + found * ((last - first) / (stop - start)) if self._how == "mass" else stronger(cells, found)
            first = last
        self.cells[at] = cells

    def _pooled(self, rows: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """Cells of some ranges: by the map's own engine where it has one."""
        plain = self._lens.plain
        if plain is not None:
            edges = torch.from_numpy(rows), torch.from_numpy(self._columns)
            pooled: NDArray[np.float32] = plain.pool(*edges, how=self._how).weights.to("cpu", torch.float32).numpy()
            return pooled
        start, stop = int(rows[0]), int(rows[-1])
        block = self._across(self._lens.read(slice(start, stop), self._shown))
        parts = [block[a - start : b - start] for a, b in pairwise(rows)]
        if self._how == "mass":
            return np.stack([part.mean(0) if len(part) else np.zeros(block.shape[1]) for part in parts])
        return np.stack([stronger(part.max(0, initial=0.0), part.min(0, initial=0.0)) for part in parts])

    @property
    def _shown(self) -> slice:
        """The keys of the picture."""
        return slice(int(self._columns[0]), int(self._columns[-1]))

    def _across(self, weights: Tensor) -> NDArray[np.float64]:
        """(rows, J) from (rows, keys): a row in its cells."""
        return across(weights.numpy(), self._columns - self._columns[0], self._how)


def across(weights: NDArray[np.float32], edges: NDArray[np.int64], how: str) -> NDArray[np.float64]:
    """(rows, J): the sum or the strongest of the weights between neighbouring edges, 0 where there are none."""
    found = np.zeros((len(weights), len(edges) - 1))
    filled = np.flatnonzero(np.diff(edges))
    if not len(filled) or not len(weights):
        return found
    starts = edges[filled]
    if how == "mass":
        found[:, filled] = np.add.reduceat(weights, starts, axis=1, dtype=np.float64)
    else:
        high, low = (function.reduceat(weights, starts, axis=1) for function in (np.maximum, np.minimum))
        found[:, filled] = stronger(high, low)
    return found


def stronger(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """The one farther from 0, of weights simply the larger; of differences it keeps the sign."""
    return np.where(np.abs(one) >= np.abs(other), one, other)


def _spread(turn: int) -> float:
    """In (0, 1): 1/2, 1/4, 3/4, 1/8, ... (van der Corput), each far from those before it."""
    found, step, number = 0.0, 0.5, turn + 1
    while number:
        found += step * (number & 1)
        step, number = step / 2, number >> 1
    return found
