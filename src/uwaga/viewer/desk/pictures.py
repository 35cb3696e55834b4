"""What a map looks like: all heads of a layer in a few cells each, and the tiles of one head at every level.

Letters: H heads, I x J cells.
"""

import time

import numpy as np
from numpy.typing import NDArray

from uwaga.viewer.desk.hall import Hall, Place
from uwaga.viewer.desk.lens import Lens
from uwaga.viewer.desk.painting import Painting
from uwaga.viewer.desk.reply import Reply

TILE = 256  # cells of a tile along an axis
OVERVIEW = 64


class Overview:
    """All heads of a layer in a few cells each."""

    def __init__(self, hall: Hall, place: Place, how: str) -> None:
        lenses = [hall.lens(place, head) for head in range(hall.heads(place.side, place.name))]
        rows, columns = (_equal(size) for size in lenses[0].sizes)
        self._paintings = [Painting(lens, rows, columns, how, exact=False) for lens in lenses]

    def go_on(self, until: float) -> None:
        """Paint until a moment of `time.monotonic`."""
        for painting in self._paintings:
            if painting.complete < 1:
                painting.go_on(until)
                if time.monotonic() >= until:
                    return

    def reply(self) -> Reply:
        """(H, I, J); nan where nothing is known yet."""
        complete = sum(painting.complete for painting in self._paintings) / len(self._paintings)
        exact = all(painting.is_exact for painting in self._paintings)
        cells = np.stack([painting.cells for painting in self._paintings])
        return Reply(meta={"complete": complete, "exact": exact}, arrays=(cells,))


class Tile:
    """A square of the map at some level; the weights themselves at level 0."""

    def __init__(self, lens: Lens, how: str, level: int, row: int, column: int) -> None:
        self._lens = lens
        rows, columns = (_cells(first, level, size) for first, size in zip((row, column), lens.sizes, strict=True))
        self._rows, self._columns = (slice(int(edges[0]), int(edges[-1])) for edges in (rows, columns))
        self._painting = None if level == 0 else Painting(lens, rows, columns, how)

    def go_on(self, until: float) -> None:
        """Paint until a moment of `time.monotonic`."""
        if self._painting is not None:
            self._painting.go_on(until)

    def reply(self) -> Reply:
        """(I, J); nan where nothing is known yet."""
        if self._painting is None:
            weights = self._lens.read(self._rows, self._columns).numpy()
            return Reply(meta={"complete": 1, "exact": True}, arrays=(weights,))
        meta = {"complete": self._painting.complete, "exact": self._painting.is_exact}
        return Reply(meta=meta, arrays=(self._painting.cells.copy(),))


def _equal(size: int) -> NDArray[np.int64]:
    """The edges of at most OVERVIEW equal ranges."""
    count = max(min(size, OVERVIEW), 1)
    return np.arange(count + 1, dtype=np.int64) * size // count


def _cells(first: int, level: int, size: int) -> NDArray[np.int64]:
    """The edges of a tile's cells along an axis."""
    last = min(first + (TILE << level), size)
    return np.append(np.arange(first, last, 1 << level, dtype=np.int64), np.int64(last))
