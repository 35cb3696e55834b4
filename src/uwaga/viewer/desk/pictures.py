"""What a map looks like: all heads of a layer in a few cells each, and the tiles of one head at every level.

Letters: H heads, I x J cells.
"""

import time

import numpy as np
from numpy.typing import NDArray

from uwaga.viewer.desk.hall import Hall, Place
from uwaga.viewer.desk.lens import Lens
from uwaga.viewer.desk.painting import Painting
from uwaga.viewer.desk.readings import Block
from uwaga.viewer.desk.reply import Reply

TILE = 256  # cells of a tile along an axis
OVERVIEW = 64


class Overview:
    """All heads of a layer in a few cells each."""

    def __init__(self, hall: Hall, place: Place, how: str) -> None:
        self._lens = lambda head: hall.lens(place, head)
        self._rows, self._columns = (_equal(size) for size in self._lens(0).sizes)
        self._how = how
        heads = hall.heads(place.side, place.name)
        self._cells = np.full((heads, len(self._rows) - 1, len(self._columns) - 1), np.nan, np.float32)
        self._done = 0  # heads
        self._exact = True  # all of them
        self._painting: Painting | None = None  # of the next one: a thousand heads are not begun at once

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        return self._cells.nbytes

    def go_on(self, until: float) -> None:
        """Paint until a moment of `time.monotonic`, one step at least."""
        while self._done < len(self._cells):
            if self._painting is None:
                lens = self._lens(self._done)
                self._painting = Painting(lens, self._rows, self._columns, self._how, exact=False)
            self._painting.go_on(until)
            self._cells[self._done] = self._painting.cells
            if self._painting.complete == 1:
                self._exact &= self._painting.is_exact
                self._painting, self._done = None, self._done + 1
            if time.monotonic() >= until:
                return

    def reply(self) -> Reply:
        """(H, I, J); nan where nothing is known yet."""
        part = 0.0 if self._painting is None else self._painting.complete
        complete = (self._done + part) / len(self._cells)
        return Reply(meta={"complete": complete, "exact": complete == 1 and self._exact}, arrays=(self._cells.copy(),))


class Tile:
    """A square of the map at some level; the weights themselves at level 0."""

    def __init__(self, lens: Lens, how: str, level: int, row: int, column: int) -> None:
        rows, columns = (_cells(first, level, size) for first, size in zip((row, column), lens.sizes, strict=True))
        block, across = ((int(edges[0]), int(edges[-1])) for edges in (rows, columns))
        self._painting = Block(lens, block, across) if level == 0 else Painting(lens, rows, columns, how)

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        return self._painting.nbytes

    def go_on(self, until: float) -> None:
        """Paint until a moment of `time.monotonic`, one step at least."""
        self._painting.go_on(until)

    def reply(self) -> Reply:
        """(I, J); nan where nothing is known yet."""
        found = self._painting
        cells = found.weights if isinstance(found, Block) else found.cells
        is_exact = found.complete == 1 if isinstance(found, Block) else found.is_exact
        return Reply(meta={"complete": found.complete, "exact": is_exact}, arrays=(cells.copy(),))


def _equal(size: int) -> NDArray[np.int64]:
    """The edges of at most OVERVIEW equal ranges."""
    count = max(min(size, OVERVIEW), 1)
    return np.arange(count + 1, dtype=np.int64) * size // count


def _cells(first: int, level: int, size: int) -> NDArray[np.int64]:
    """The edges of a tile's cells along an axis."""
    last = min(first + (TILE << level), size)
    return np.append(np.arange(first, last, 1 << level, dtype=np.int64), np.int64(last))
