"""Rasters: a head's matrix pooled into cells, step by step: first from a sample of the queries, then exactly, in their order.

Every request takes a bounded time; a page that sends no requests causes no work; and a raster of 100,000 x 100,000 tokens is
shown long before all of its 10^10 weights are computed.

Letters: H heads, Q queries, K keys, I x J cells.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uwaga._base.options import Integer
from uwaga.viewer.messages import Reply
from uwaga.viewer.queries.heads import HeadView
from uwaga.viewer.queries.result import Computation, ViewResult
from uwaga.viewer.request_table import Pooling, Shown, in_range, request

TILE = 256  # cells of a tile along an axis
OVERVIEW = 64  # cells of an overview along an axis
_NO_SAMPLE = 1 << 26  # a raster of a lower cost is computed exactly at once
_SAMPLES = 8  # sampled queries of each range
_SAMPLE_SHARE = 0.2  # the value of `complete` once all samples are taken


class ProgressiveRaster:
    """I x J cells of a matrix, each over a range of queries and a range of keys; NaN where nothing is known yet.

    Args:
        head_view: the matrix.
        rows: (I+1,) non-decreasing edges of the ranges of queries.
        columns: (J+1,) of the ranges of keys.
        pooling: "sum" (sum over keys, mean over queries) or "max" (for signed weights, the one farthest from 0).
        exact: whether a sample is followed by the exact cells; a matrix that needs no sample is computed exactly in any case.
    """

    def __init__(
        self,
        head_view: HeadView,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        pooling: str,
        *,
        exact: bool = True,
    ) -> None:
        self._head_view, self._rows, self._columns, self._how = head_view, rows, columns, pooling
        self.cells = np.full((len(rows) - 1, len(columns) - 1), np.nan, np.float32)
        self._cost = int(head_view.cost[rows[-1]] - head_view.cost[rows[0]])
        self._sampled = np.zeros(len(rows) - 1, np.int64)
        self._sum = np.zeros(self.cells.shape, np.float64)
        self._is_sample = self._cost > _NO_SAMPLE and bool((np.diff(rows) > 2 * _SAMPLES).any())
        self._wants_exact = exact or not self._is_sample

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        return self.cells.nbytes + self._sum.nbytes

    def work(self) -> Iterator[float]:
        """Compute all steps; yield the completed fraction after each."""
        before = 0.0
        if self._is_sample:
            before = _SAMPLE_SHARE if self._wants_exact else 1.0
            for turn in range(_SAMPLES):
                for part in self._sample(turn):
                    yield before * min(turn + part, _SAMPLES) / _SAMPLES
        if self._wants_exact:
            for part in self._exact():
                yield before + (1.0 - before) * part

    def _sample(self, turn: int) -> Iterator[float]:
        """Read one more sampled query of every range of queries."""
        starts, lengths = self._rows[:-1], np.diff(self._rows)
        rows = np.flatnonzero(lengths > turn)
        chosen = starts[rows] + (lengths[rows] * _van_der_corput(turn)).astype(np.int64)
        for at in self._head_view.steps(chosen):
            self._add(rows[at], self._pool_row(self._head_view.read(chosen[at].tolist(), self._shown)))
            yield at.stop / len(rows)

    def _add(self, ranges: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Add the cells of one sampled query to each of some ranges."""
        self._sampled[ranges] += 1
        if self._how == "sum":
            self._sum[ranges] += values
            self.cells[ranges] = self._sum[ranges] / self._sampled[ranges, None]
        else:
            self._sum[ranges] = farther_from_zero(self._sum[ranges], values)
            self.cells[ranges] = self._sum[ranges]

    def _exact(self) -> Iterator[float]:
        """Compute the ranges of queries in order: several per step, or a long one in several steps."""
        first, ranges = 0, len(self._rows) - 1
        while first < ranges:
            stop = self._head_view.stop(int(self._rows[first]), int(self._rows[-1]))
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
        """Compute one range of more queries than a step takes."""
        start, stop = (int(edge) for edge in self._rows[at : at + 2])
        cells = np.zeros(len(self._columns) - 1)
        first = start
        while first < stop:
            if first > start:
                yield (first - start) / (stop - start)
            last = self._head_view.stop(first, stop)
            means = self._pooled(np.array([first, last]))[0]
            cells = (
                cells + means * ((last - first) / (stop - start))
                if self._how == "sum"
                else farther_from_zero(cells, means)
            )
            first = last
        self.cells[at] = cells

    def _pooled(self, rows: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """Compute exact cells of some ranges, by the map's pooling engine if it has one."""
        attention = self._head_view.attention
        if attention is not None:
            edges = torch.from_numpy(rows), torch.from_numpy(self._columns)
            pooled: NDArray[np.float32] = (
                attention.pool(*edges, pooling=self._how).weights.to("cpu", torch.float32).numpy()
            )
            return pooled
        start, stop = int(rows[0]), int(rows[-1])
        block = self._pool_row(self._head_view.read(slice(start, stop), self._shown))
        parts = [block[a - start : b - start] for a, b in pairwise(rows)]
        if self._how == "sum":
            return np.stack([part.mean(0) if len(part) else np.zeros(block.shape[1]) for part in parts])
        return np.stack([farther_from_zero(part.max(0, initial=0.0), part.min(0, initial=0.0)) for part in parts])

    @property
    def _shown(self) -> slice:
        """Return the range of keys that the raster covers."""
        return slice(int(self._columns[0]), int(self._columns[-1]))

    def _pool_row(self, weights: Tensor) -> NDArray[np.float64]:
        """Return (rows, J) from (rows, keys)."""
        return pool_columns(weights.numpy(), self._columns - self._columns[0], self._how)


def pool_columns(weights: NDArray[np.float32], edges: NDArray[np.int64], pooling: str) -> NDArray[np.float64]:
    """Pool between edges, (rows, J): the sum, or the weight farthest from 0; 0 if empty."""
    result = np.zeros((len(weights), len(edges) - 1))
    filled = np.flatnonzero(np.diff(edges))
    if not len(filled) or not len(weights):
        return result
    starts = edges[filled]
    if pooling == "sum":
        result[:, filled] = np.add.reduceat(weights, starts, axis=1, dtype=np.float64)
    else:
        high, low = (function.reduceat(weights, starts, axis=1) for function in (np.maximum, np.minimum))
        result[:, filled] = farther_from_zero(high, low)
    return result


def farther_from_zero(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return elementwise the number farther from 0, with its sign: the larger of two weights."""
    return np.where(np.abs(one) >= np.abs(other), one, other)


def _van_der_corput(turn: int) -> float:
    """Return 1/2, 1/4, 3/4, 1/8, ..., each far from those before it: van der Corput's, base 2."""
    result, step, number = 0.0, 0.5, turn + 1
    while number:
        result += step * (number & 1)
        step, number = step / 2, number >> 1
    return result


def _weight_block(
    head_view: HeadView,
    rows: tuple[int, int],
    columns: tuple[int, int],
    reply: Callable[[NDArray[np.float32], float], Reply],
) -> Computation:
    """Read a rectangle of exact weights from its first row on; NaN is not known yet.

    reply: of the weights and the completed fraction.
    """
    first, last = rows
    shape = last - first, columns[1] - columns[0]
    weights = np.full(shape, np.nan, np.float32)

    def work() -> Iterator[float]:
        at = first
        while at < last:
            stop = head_view.stop(at, last)
            weights[at - first : stop - first] = head_view.read(slice(at, stop), slice(*columns)).numpy()
            at = stop
            yield (at - first) / shape[0]

    return Computation(work(), lambda complete: reply(weights, complete), weights.nbytes)


@request(saved=True)
def overview(result: ViewResult, *, pooling: Pooling, **shown: Unpack[Shown]) -> Computation:
    """Pool every head of a layer into at most OVERVIEW x OVERVIEW cells: (H, I, J)."""
    resolver = result.resolver
    selection = resolver.selection(**shown)
    sizes = resolver.head_view(selection, 0).sizes
    rows, columns = map(_equal, sizes)
    heads = resolver.heads(selection.side, selection.name)
    cells = np.full((heads, len(rows) - 1, len(columns) - 1), np.nan, np.float32)

    def work() -> Iterator[float]:
        for head in range(heads):  # one raster at a time, since each takes memory
            raster = ProgressiveRaster(resolver.head_view(selection, head), rows, columns, pooling, exact=False)
            for part in raster.work():
                cells[head] = raster.cells
                yield (head + part) / heads

    def reply(complete: float) -> Reply:
        # single: a cell is one weight
        return Reply(meta={"complete": complete, "single": cells.shape[1:] == sizes}, arrays=(cells.copy(),))

    return Computation(work(), reply, cells.nbytes)


@request(saved=True)
def tile(
    result: ViewResult,
    *,
    head: Integer,
    pooling: Pooling,
    level: Integer,
    row: Integer,
    column: Integer,
    **shown: Unpack[Shown],
) -> Computation:
    """Show a square of a head, (I, J), by its place among those of its level.

    A cell has 2**level tokens along an axis, and is the exact weight at level 0. NaN is not known yet.
    """
    _, head_view = result.resolver.select(head, **shown)
    queries, keys = head_view.sizes
    size = TILE << in_range("level", level, 0, max(max(queries, keys) - 1, 1).bit_length() + 1)
    places = in_range("row", row, 0, -(-queries // size)), in_range("column", column, 0, -(-keys // size))
    rows, columns = (_cells(at * size, level, of) for at, of in zip(places, head_view.sizes, strict=True))

    def reply(cells: NDArray[np.float32], complete: float) -> Reply:
        return Reply(meta={"complete": complete}, arrays=(cells.copy(),))

    if level == 0:
        block, across = ((int(edges[0]), int(edges[-1])) for edges in (rows, columns))
        return _weight_block(head_view, block, across, reply)
    raster = ProgressiveRaster(head_view, rows, columns, pooling)
    return Computation(raster.work(), lambda complete: reply(raster.cells, complete), raster.nbytes)


def _equal(size: int) -> NDArray[np.int64]:
    """Return the edges of at most OVERVIEW equal ranges."""
    count = max(min(size, OVERVIEW), 1)
    return np.arange(count + 1, dtype=np.int64) * size // count


def _cells(first: int, level: int, size: int) -> NDArray[np.int64]:
    """Return the edges of a tile's cells along an axis."""
    last = min(first + (TILE << level), size)
    return np.append(np.arange(first, last, 1 << level, dtype=np.int64), np.int64(last))
