"""Numbers read off one head: an entry, a rectangle, a row, a column, the weight between spans.

Letters: Q queries, K keys, S and T spans.
"""

import io
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from uwaga.maps.statistics import pooling
from uwaga.viewer.desk.axes import Axis
from uwaga.viewer.desk.lens import Lens
from uwaga.viewer.desk.painting import Painting
from uwaga.viewer.desk.reply import QuestionError, Reply

MOST_WEIGHTS = 1 << 20
MOST_SPANS = 64
MOST_WORK = 1 << 31  # weights behind a rectangle: some seconds
_TOKEN_BYTES = 1 << 26  # of the names of tokens in a file, where each takes as much as the longest

Pairs = list[tuple[int, int]]


def entry(lens: Lens, query: int, key: int) -> Reply:
    """One weight, its rank in its row (1 for the largest; as many for equal ones), and the score behind it."""
    row = lens.read([query], slice(None))[0]
    weight = row[key]
    score = lse = None
    visible = True
    if lens.plain is not None:
        found = float(torch.as_tensor(lens.plain.scores[query, key]))
        visible, score = found != -float("inf"), _number(found)
        lse = _lse(lens, query, row)
    meta = {
        "weight": _number(float(weight)),
        "score": score,
        "rank": int((row > weight).sum()) + 1,
        "visible": visible,
        "lse": lse,
    }
    return Reply(meta=meta)


class Block:
    """A rectangle of weights, from the top.

    Raises:
        QuestionError: too many at once, or rows that take too long.
    """

    def __init__(self, lens: Lens, rows: tuple[int, int], columns: tuple[int, int]) -> None:
        count = (rows[1] - rows[0]) * (columns[1] - columns[0])
        if count > MOST_WEIGHTS:
            raise QuestionError(f"{count} weights are more than the {MOST_WEIGHTS} that are read at once")
        if lens.work[rows[1]] - lens.work[rows[0]] > MOST_WORK:
            rule = f"{rows[1] - rows[0]} rows are more than are read at once: each is normalised over all keys"
            raise QuestionError(f"{rule}; ask for fewer")
        self._lens, (self._next, self._last), self._columns = lens, rows, slice(*columns)
        self._first = self._next
        self.weights = np.full((rows[1] - rows[0], columns[1] - columns[0]), np.nan, np.float32)

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        return self.weights.nbytes

    @property
    def complete(self) -> float:
        """The part that is known."""
        return (self._next - self._first) / (self._last - self._first) if self._last > self._first else 1.0

    def go_on(self, until: float) -> None:
        """Read until a moment of `time.monotonic`, one step at least."""
        while self._next < self._last:
            stop = self._lens.stop(self._next, self._last)
            rows = self._lens.read(slice(self._next, stop), self._columns).numpy()
            self.weights[self._next - self._first : stop - self._first] = rows
            self._next = stop
            if time.monotonic() >= until:
                return


def row(lens: Lens, query: int) -> Reply:
    """What a query attends to."""
    return Reply(meta={}, arrays=(lens.read([query], slice(None))[0].numpy(),))


class Column:
    """What attends to a key, from the first query on: every weight of it takes a row's normalizer."""

    def __init__(self, lens: Lens, key: int) -> None:
        self._lens, self._key, self._next = lens, key, 0
        self._weights = np.full(lens.sizes[0], np.nan, np.float32)

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        return self._weights.nbytes

    def go_on(self, until: float) -> None:
        """Read until a moment of `time.monotonic`, one step at least."""
        while self._next < len(self._weights):
            block = slice(self._next, self._lens.stop(self._next, len(self._weights)))
            self._weights[block] = self._lens.read(block, [self._key])[:, 0].numpy()
            self._next = block.stop
            if time.monotonic() >= until:
                return

    def reply(self) -> Reply:
        """What is known; nan elsewhere."""
        return Reply(meta={"complete": self._next / max(len(self._weights), 1)}, arrays=(self._weights.copy(),))


class Between:
    """The weight between spans: the cells that their ends cut, joined."""

    def __init__(self, lens: Lens, spans: Pairs, key_spans: Pairs) -> None:
        self._rows, self._columns = (torch.tensor([pairs], dtype=torch.int64) for pairs in (spans, key_spans))
        self._row_edges, self._column_edges = pooling.span_edges(self._rows), pooling.span_edges(self._columns)
        cuts, columns = self._row_edges[0].numpy(), self._column_edges[0].numpy()
        # What lies between the spans is not looked at.
        self._runs = [(a, b) for a, b in _runs(cuts, spans) if cuts[a] < cuts[b]]
        self._paintings = [Painting(lens, cuts[a : b + 1], columns, "mass") for a, b in self._runs]

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        return sum(painting.nbytes for painting in self._paintings)

    def go_on(self, until: float) -> None:
        """Add up until a moment of `time.monotonic`."""
        for painting in self._paintings:
            if painting.complete < 1:
                painting.go_on(until)
                if time.monotonic() >= until:
                    return

    def reply(self) -> Reply:
        """(S, T): the mean over a span's queries of their weight on the keys of another; nan while it is not known."""
        cells = torch.zeros(1, 1, self._row_edges.shape[1] - 1, self._column_edges.shape[1] - 1)
        for (a, b), painting in zip(self._runs, self._paintings, strict=True):
            cells[0, 0, a:b] = torch.from_numpy(painting.cells)
        found = pooling.span_means(cells, self._rows, self._row_edges, self._columns, self._column_edges)[0, 0]
        complete = sum(painting.complete for painting in self._paintings) / max(len(self._paintings), 1)
        array: NDArray[np.float32] = found.float().numpy()
        return Reply(meta={"complete": complete if self._paintings else 1.0}, arrays=(array,))


def _runs(cuts: NDArray[np.int64], spans: Pairs) -> Iterator[tuple[int, int]]:
    """Where neighbouring pieces between the cuts all belong to some span: cuts [first, last]."""
    used = [any(start <= a and b <= stop for start, stop in spans) for a, b in pairwise(cuts)]
    first = None
    for at, is_used in enumerate([*used, False]):
        if is_used and first is None:
            first = at
        elif not is_used and first is not None:
            yield first, at
            first = None


def npz(
    weights: NDArray[np.float32], axes: tuple[Axis, Axis], rows: tuple[int, int], columns: tuple[int, int]
) -> bytes:
    """A rectangle as a file of NumPy: weights, query_tokens, key_tokens, rows, columns."""
    names = [_strings(axis.labels[slice(*part)]) for axis, part in zip(axes, (rows, columns), strict=True)]
    file = io.BytesIO()
    np.savez_compressed(file, weights=weights, query_tokens=names[0], key_tokens=names[1], rows=rows, columns=columns)
    return file.getvalue()


def _strings(labels: Sequence[str]) -> NDArray[np.str_]:
    """As NumPy holds them: all as long as the longest, so that one is cut, and without zeros at the end, which become U+2400."""
    most = max(_TOKEN_BYTES // (4 * max(len(labels), 1)), 1)
    return np.array([label[:most].replace("\0", "\u2400") for label in labels], np.str_)


def _lse(lens: Lens, query: int, row: torch.Tensor) -> float | None:
    """The logarithm of the sum of exponentials of a row, a learned sink's included: score less log weight, at the peak."""
    assert lens.plain is not None
    peak = int(row.argmax())
    score = torch.as_tensor(lens.plain.scores[query, peak]).double()
    return _number(float(score - row[peak].double().log()))


def _number(value: float) -> float | None:
    """What JSON can hold."""
    return value if np.isfinite(value) else None
