"""The desk: every question that a page may ask, answered in bounded time and memory.

about, items                         what there is to see
overview, tile                       pictures, coarse to exact
entry, row, column, between          numbers
weights, npz                         blocks of them, which may take seconds
statistics                           the table of a layer
page, lesson                         a page as a file; the calculation on a small example
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from uwaga.viewer.desk import readings, statistics
from uwaga.viewer.desk.about import about
from uwaga.viewer.desk.arguments import Arguments
from uwaga.viewer.desk.axes import MERGES, SPECIALS
from uwaga.viewer.desk.hall import Hall, Place
from uwaga.viewer.desk.lens import Lens
from uwaga.viewer.desk.pictures import TILE, Overview, Tile
from uwaga.viewer.desk.recent import Recent
from uwaga.viewer.desk.reply import QuestionError, Reply
from uwaga.viewer.exhibit import Exhibit

_BUDGET = 0.2  # seconds of one answer; a step that began may take somewhat longer
_MOST_ITEMS = 200_000
_KEPT = 128 << 20  # bytes of finished replies
_UNFINISHED = 128 << 20  # bytes of what was begun
_MOST_TILES_IN_PAGE = 512
_IN_PAGE = ("tile", "overview", "entry", "row", "column", "between", "statistics", "items", "lesson")


class _Unfinished(Protocol):
    """Work that goes on at the next question."""

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        ...

    def go_on(self, until: float) -> None:
        """Work until a moment of `time.monotonic`, one step at least."""

    def reply(self) -> Reply:
        """What is known; `complete` in [0, 1]."""
        ...


class Desk:
    """Answers questions about an exhibit. Safe to be asked from several threads: one question is worked on at a time."""

    def __init__(self, exhibit: Exhibit) -> None:
        self.exhibit = exhibit
        self._hall = Hall(exhibit)
        self._lock = threading.RLock()
        self._closed = False
        self._finished: Recent[Reply] = Recent(_KEPT, lambda reply: reply.nbytes + 4096)
        self._unfinished: Recent[_Unfinished] = Recent(_UNFINISHED, lambda work: work.nbytes + 4096)
        self._answers: Mapping[str, Callable[[Arguments], Reply]] = {
            "about": self._about,
            "items": self._items,
            "overview": self._overview,
            "tile": self._tile,
            "entry": self._entry,
            "row": self._row,
            "column": self._column,
            "between": self._between,
            "statistics": self._statistics,
        }
        # These may take seconds. They ask for the lock step by step, so that others have their turn.
        self._long_answers: Mapping[str, Callable[[Arguments], Reply]] = {
            "weights": self._weights,
            "npz": self._npz,
            "page": self._page,
        }

    def answer(self, question: Mapping[str, object]) -> Reply:
        """The reply to a question.

        Raises:
            QuestionError: a question that there is not, arguments that are missing, wrong or unknown, or something to see
                that there is not.
        """
        arguments = Arguments(question)
        self._stay_open()
        if arguments.ask == "lesson":
            from uwaga.viewer.lesson.replying import answer

            return answer(question)
        if arguments.ask in self._long_answers:
            return self._long_answers[arguments.ask](arguments)
        if arguments.ask not in self._answers:
            known = ", ".join([*self._answers, *self._long_answers, "lesson"])
            raise arguments.wrong("ask", f"one of {known}", arguments.ask)
        with self._lock:
            return self._answers[arguments.ask](arguments)

    def close(self) -> None:
        """Answer nothing more; a page that is being made ends at its next question."""
        self._closed = True

    def _stay_open(self) -> None:
        if self._closed:
            raise QuestionError("the view is closed")

    def _about(self, arguments: Arguments) -> Reply:
        arguments.done()
        return about(self._hall)

    def _items(self, arguments: Arguments) -> Reply:
        side = arguments.text("side", self._hall.ids)
        stack = arguments.text("stack", self._hall.side(side).stacks)
        axis = self._hall.axis(side, stack, arguments.text("merge", MERGES), arguments.text("specials", SPECIALS))
        first = arguments.integer("first", 0, len(axis) + 1)
        last = min(first + arguments.integer("count", 0, _MOST_ITEMS + 1), len(axis))
        arguments.done()
        meta = {
            "labels": axis.labels[first:last],
            "glued": [int(glued) for glued in axis.glued[first:last]],
            "specials": [at for at in axis.specials if first <= at < last],
            "total": len(axis),
        }
        return Reply(meta=meta, arrays=(axis.spans[first:last],))

    def _overview(self, arguments: Arguments) -> Reply:
        place = self._hall.place(arguments)
        how = arguments.text("how", ("mass", "max"))
        arguments.done()
        return self._go_on(("overview", place, how), lambda: Overview(self._hall, place, how))

    def _tile(self, arguments: Arguments) -> Reply:
        place, lens, head = self._head(arguments)
        how = arguments.text("how", ("mass", "max"))
        queries, keys = lens.sizes
        level = arguments.integer("level", 0, max(max(queries, keys) - 1, 1).bit_length() + 1)
        size = TILE << level
        row = arguments.integer("row", 0, -(-queries // size))
        column = arguments.integer("column", 0, -(-keys // size))
        arguments.done()
        name = ("tile", place, head, how if level else "weights", level, row, column)
        return self._go_on(name, lambda: Tile(lens, how, level, row * size, column * size))

    def _entry(self, arguments: Arguments) -> Reply:
        _, lens, _ = self._head(arguments)
        queries, keys = lens.sizes
        query, key = arguments.integer("query", 0, queries), arguments.integer("key", 0, keys)
        arguments.done()
        return readings.entry(lens, query, key)

    def _weights(self, arguments: Arguments) -> Reply:
        return Reply(meta={}, arrays=(self._block(arguments)[0],))

    def _row(self, arguments: Arguments) -> Reply:
        _, lens, _ = self._head(arguments)
        query = arguments.integer("query", 0, lens.sizes[0])
        arguments.done()
        return readings.row(lens, query)

    def _column(self, arguments: Arguments) -> Reply:
        place, lens, head = self._head(arguments)
        key = arguments.integer("key", 0, lens.sizes[1])
        arguments.done()
        return self._go_on(("column", place, head, key), lambda: readings.Column(lens, key))

    def _between(self, arguments: Arguments) -> Reply:
        place, lens, head = self._head(arguments)
        spans = arguments.ranges("spans", lens.sizes[0], readings.MOST_SPANS)
        key_spans = arguments.ranges("key_spans", lens.sizes[1], readings.MOST_SPANS)
        arguments.done()
        name = ("between", place, head, tuple(spans), tuple(key_spans))
        return self._go_on(name, lambda: readings.Between(lens, spans, key_spans))

    def _statistics(self, arguments: Arguments) -> Reply:
        side, name = self._hall.layer(arguments)
        arguments.done()
        return self._go_on(("statistics", side, name), lambda: statistics.of_layer(self._hall, side, name))

    def _npz(self, arguments: Arguments) -> Reply:
        weights, place, head, rows, columns = self._block(arguments)
        with self._lock:
            axes = self._hall.axes(place)
        found = readings.npz(weights, axes, rows, columns)
        kind, layer = place.name
        return Reply(meta={"name": f"{kind}-{layer}-{head}.npz"}, arrays=(np.frombuffer(found, np.uint8),))

    def _block(self, arguments: Arguments) -> tuple[NDArray[np.float32], Place, int, tuple[int, int], tuple[int, int]]:
        """A rectangle of a head: its weights, whose they are, and its ranges."""
        with self._lock:
            place, lens, head = self._head(arguments)
            rows, columns = (arguments.range(name, n) for name, n in zip(("rows", "columns"), lens.sizes, strict=True))
            arguments.done()
            block = readings.Block(lens, rows, columns)
        while block.complete < 1:
            self._stay_open()
            with self._lock:
                block.go_on(time.monotonic() + _BUDGET)
            time.sleep(0.001)  # a lock goes to whoever asks first, and that would be us again
        return block.weights, place, head, rows, columns

    def _page(self, arguments: Arguments) -> Reply:
        exact = arguments.questions("exact", _MOST_TILES_IN_PAGE)
        arguments.done()
        for question in exact:
            Arguments(question).text("ask", _IN_PAGE)
        from uwaga.viewer.page.saved import saved_page

        page = saved_page(self.answer, exact=exact)
        return Reply(meta={"name": "attention.html"}, arrays=(np.frombuffer(page, np.uint8),))

    def _head(self, arguments: Arguments) -> tuple[Place, Lens, int]:
        """What a question with a head is about."""
        place = self._hall.place(arguments)
        head = arguments.integer("head", 0, self._hall.heads(place.side, place.name))
        return place, self._hall.lens(place, head), head

    def _go_on(self, name: tuple[object, ...], make: Callable[[], _Unfinished]) -> Reply:
        """A reply as far as it comes in the time of one answer; kept when it is complete."""
        kept = self._finished.get(name)
        if kept is not None:
            return kept
        work = self._unfinished.get(name) or self._unfinished.put(name, make())
        work.go_on(time.monotonic() + _BUDGET)
        reply = work.reply()
        if reply.meta["complete"] == 1:
            self._unfinished.drop(name)
            self._finished.put(name, reply)
        return reply
