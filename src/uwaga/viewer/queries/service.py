"""The query service: answers what a page may ask about attention maps, each request in bounded time and memory.

about, items                         sides, layers, heads, axes; the tokens or words along an axis
overview, tile                       rasters of the weights, coarse to exact
entry, row, column                   single weights
heads                                a row or a column of every head of a layer, over tokens
picture                              what a model of pictures saw
weights, npz                         rectangles of weights, which may take seconds
statistics                           the statistics of a layer's heads
why                                  the link whose score is split; `RunCache` runs its model

`front/types.js` has the arguments and replies.
"""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from uwaga.viewer.messages import Reply, RequestError, RequestParser
from uwaga.viewer.queries import labels, statistics, weights, why
from uwaga.viewer.queries.heads import DIFFERENCE, WRITTEN, HeadResolver, HeadView, LayerSelection
from uwaga.viewer.queries.lru_cache import LRUCache
from uwaga.viewer.queries.raster import OVERVIEW, TILE, Block, Overview, Tile
from uwaga.viewer.view_model import MapName, ViewModel, axes_of

_TIME_BUDGET = 0.2  # seconds per reply; a step that has begun may overrun it
_MAX_ITEMS = 200_000
_LEAST_WORDS, _MOST_WORDS = 3, 60  # of a short text: what a small map has a cell for each of, with special tokens
_MAX_FINISHED_BYTES = 128 << 20
_MAX_UNFINISHED_BYTES = 128 << 20


class _Resumable(Protocol):
    """A computation that the next request for the same thing continues."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...

    def advance(self, until: float) -> None:
        """Compute until `time.monotonic()` reaches `until`, at least one step."""

    def reply(self) -> Reply:
        """The result so far; meta["complete"] in [0, 1]."""
        ...


class QueryService:
    """Answers requests about the maps of a view model. Thread-safe: one request is computed at a time."""

    def __init__(self, view_model: ViewModel) -> None:
        self.view_model = view_model
        self._resolver = HeadResolver(view_model)
        self._lock = threading.RLock()
        self._closed = False
        self._finished: LRUCache[Reply] = LRUCache(_MAX_FINISHED_BYTES, lambda reply: reply.nbytes + 4096)
        self._unfinished: LRUCache[_Resumable] = LRUCache(_MAX_UNFINISHED_BYTES, lambda work: work.nbytes + 4096)
        self._handlers: Mapping[str, Callable[[RequestParser], Reply]] = {
            "about": self._about,
            "items": self._items,
            "overview": self._overview,
            "tile": self._tile,
            "entry": self._entry,
            "row": self._row,
            "column": self._column,
            "heads": self._heads,
            "picture": self._picture,
            "statistics": self._statistics,
            "labels": self._labels,
        }
        # These may take seconds. They take the lock for each step, so that other requests are answered in between.
        self._long_handlers: Mapping[str, Callable[[RequestParser], Reply]] = {
            "weights": self._weights,
            "npz": self._npz,
        }

    def answer(self, parser: RequestParser) -> Reply:
        """The reply to a request for maps.

        Raises:
            RequestError: an argument out of range; a side, layer or head that does not exist; a service that was closed.
        """
        self._check_open()
        if parser.name in self._long_handlers:
            return self._long_handlers[parser.name](parser)
        with self._lock:
            return self._handlers[parser.name](parser)

    def link(self, parser: RequestParser) -> why.Link:
        """The link that a request "why" is about. Raises RequestError, as `answer`."""
        self._check_open()
        with self._lock:
            return why.link(self._resolver, parser)

    def close(self) -> None:
        """Refuse all further requests; one that is being computed ends at its next step."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("the view is closed")

    def _about(self, parser: RequestParser) -> Reply:
        return _about(self._resolver)

    def _items(self, parser: RequestParser) -> Reply:
        side = parser.text("side", self._resolver.ids)
        stack = parser.text("stack", self._resolver.stacks(side))
        axis = self._resolver.axis(side, stack, parser.value("merge"), parser.value("specials"))
        first = parser.integer("first", 0, len(axis) + 1)
        last = min(first + parser.integer("count", 0, _MAX_ITEMS + 1), len(axis))
        meta = {
            "labels": axis.labels[first:last],
            "no_space_before": [int(each) for each in axis.no_space_before[first:last]],
            "specials": [at for at in axis.specials if first <= at < last],
            "unknown": [at for at in axis.unknown if first <= at < last],
            "breaks": [[at, lines] for at, lines in axis.breaks.items() if first <= at < last],
            "total": len(axis),
        }
        return Reply(meta=meta, arrays=(axis.spans[first:last],))

    def _overview(self, parser: RequestParser) -> Reply:
        selection = self._resolver.selection(parser)
        pooling = parser.value("pooling")
        return self._resume(("overview", selection, pooling), lambda: Overview(self._resolver, selection, pooling))

    def _tile(self, parser: RequestParser) -> Reply:
        selection, head_view, head = self._head(parser)
        pooling = parser.value("pooling")
        queries, keys = head_view.sizes
        level = parser.integer("level", 0, max(max(queries, keys) - 1, 1).bit_length() + 1)
        size = TILE << level
        row = parser.integer("row", 0, -(-queries // size))
        column = parser.integer("column", 0, -(-keys // size))
        key = ("tile", selection, head, pooling if level else "weights", level, row, column)
        return self._resume(key, lambda: Tile(head_view, pooling, level, row * size, column * size))

    def _entry(self, parser: RequestParser) -> Reply:
        _, head_view, _ = self._head(parser)
        queries, keys = head_view.sizes
        query, key = parser.integer("query", 0, queries), parser.integer("key", 0, keys)
        return weights.entry(head_view, query, key)

    def _row(self, parser: RequestParser) -> Reply:
        _, head_view, _ = self._head(parser)
        query = parser.integer("query", 0, head_view.sizes[0])
        return weights.row(head_view, query)

    def _column(self, parser: RequestParser) -> Reply:
        selection, head_view, head = self._head(parser)
        key = parser.integer("key", 0, head_view.sizes[1])
        return self._resume(("column", selection, head, key), lambda: weights.Column(head_view, key))

    def _heads(self, parser: RequestParser) -> Reply:
        side, name = self._resolver.layer(parser)
        selection, axis = LayerSelection(side, name, "tokens", "show"), parser.value("axis")
        count = self._resolver.heads(side, name)
        sizes = self._resolver.head_view(selection, 0).sizes
        item = parser.integer("item", 0, sizes[axis == "column"])
        if count * max(sizes) > weights.MAX_OF_HEADS:
            raise RequestError(f"heads: {count} heads of {max(sizes)} tokens are more than one reply holds")
        views = (self._resolver.head_view(selection, head) for head in range(count))
        return self._resume(("heads", selection, axis, item), lambda: weights.Heads(list(views), axis, item))

    def _picture(self, parser: RequestParser) -> Reply:
        picture = self.view_model.picture
        if picture is None:
            raise RequestError("picture: this view has none")
        return Reply(meta={}, arrays=(picture.pixels,))

    def _statistics(self, parser: RequestParser) -> Reply:
        side, name = self._resolver.layer(parser)
        return self._resume(("statistics", side, name), lambda: statistics.of_layer(self._resolver, side, name))

    def _labels(self, parser: RequestParser) -> Reply:
        selection = self._resolver.selection(parser)
        if selection.side == DIFFERENCE:
            raise RequestError("labels: side: heads are labelled in one text, not in a difference")
        return self._resume(("labels", selection), lambda: labels.Labels(self._resolver, selection))

    def _weights(self, parser: RequestParser) -> Reply:
        return Reply(meta={}, arrays=(self._block(parser)[0],))

    def _npz(self, parser: RequestParser) -> Reply:
        block, selection, head, rows, columns = self._block(parser)
        with self._lock:
            axes = self._resolver.axes(selection)
        kind, layer = selection.name
        side = self._resolver.side(selection.side)
        names: dict[str, str | int] = {"model": side.model, "text": side.title, "side": selection.side}
        names |= {"kind": kind, "layer": layer, "head": head, "merge": selection.merge, "specials": selection.specials}
        spans = (axis.spans[slice(*part)] for axis, part in zip(axes, (rows, columns), strict=True))
        block = np.where(weights.hidden(_sees(self._resolver, selection.side, selection.name), *spans), np.nan, block)
        data = weights.npz(block, axes, rows, columns, names)
        return Reply(meta={"name": f"{kind}-{layer}-{head}.npz"}, arrays=(np.frombuffer(data, np.uint8),))

    def _block(
        self, parser: RequestParser
    ) -> tuple[NDArray[np.float32], LayerSelection, int, tuple[int, int], tuple[int, int]]:
        """A rectangle of one head: its weights, the layer and the head, and the ranges of queries and keys."""
        with self._lock:
            selection, head_view, head = self._head(parser)
            rows, columns = (
                parser.range(name, n) for name, n in zip(("rows", "columns"), head_view.sizes, strict=True)
            )
            block = Block(head_view, rows, columns)
        while block.complete < 1:
            self._check_open()
            with self._lock:
                block.advance(time.monotonic() + _TIME_BUDGET)
            time.sleep(0.001)  # locks are not fair: without a pause this thread would take it again at once
        return block.weights, selection, head, rows, columns

    def _head(self, parser: RequestParser) -> tuple[LayerSelection, HeadView, int]:
        """The layer, the head's matrix and the head's number that a request names."""
        selection = self._resolver.selection(parser)
        head = parser.integer("head", 0, self._resolver.heads(selection.side, selection.name))
        return selection, self._resolver.head_view(selection, head), head

    def _resume(self, key: tuple[object, ...], make: Callable[[], _Resumable]) -> Reply:
        """Continue (or begin) a computation within the time budget; a complete reply is cached under the key."""
        finished = self._finished.get(key)
        if finished is not None:
            return finished
        work = self._unfinished.get(key) or self._unfinished.put(key, make())
        work.advance(time.monotonic() + _TIME_BUDGET)
        reply = work.reply()
        if reply.meta["complete"] == 1:
            self._unfinished.discard(key)
            self._finished.put(key, reply)
        return reply


def _about(resolver: HeadResolver) -> Reply:
    """Sides, layers, heads and axes, and where a page opens: the first request of every page."""
    sides = [_side(resolver, side) for side in resolver.ids]
    meta = {
        # Not imported: the package's top-level module names modules of higher layers.
        "version": sys.modules["uwaga"].__version__,
        "title": resolver.view_model.title,
        "tile": TILE,
        "overview": OVERVIEW,
        "live": True,
        "statistics": statistics.titles(),
        "sides": sides,
        "start": _start(resolver) if sides else None,
    }
    if resolver.view_model.picture is not None:
        meta["picture"] = resolver.view_model.picture.to_json()
    if resolver.view_model.answer is not None:
        meta["answer"] = resolver.view_model.answer.to_json()
    return Reply(meta=meta)


def _start(resolver: HeadResolver) -> dict[str, Any]:
    """A decoder with cross-attention opens on that: what it writes is the story, and what it reads of the text its reason. A picture opens on
    the last layer, which has gathered most."""
    names = list(resolver.maps("0"))
    if (picture := resolver.view_model.picture) is not None:
        kind, layer = [name for name in names if name[0] in picture.grids][-1]
        return {"side": "0", "kind": kind, "layer": layer, "head": 0, "merge": "tokens"}
    kind, layer = next((name for name in names if name[0] == "cross"), names[0])
    return {"side": "0", "kind": kind, "layer": layer, "head": 0, "merge": _merge(resolver, kind)}


def _merge(resolver: HeadResolver, kind: str) -> str:
    """A short text is read in words: its pieces are merged, where what is compared has the same ones. A decoder writes tokens, not words,
    and the letters of one word stay apart."""
    sides = [side for side in resolver.ids if side != DIFFERENCE]
    if kind == "cross" or not all(resolver.side(side).sources for side in sides):
        return "tokens"
    axes = [resolver.axis(side, axes_of(kind)[0], "words", "show") for side in sides]
    is_short = all(_LEAST_WORDS <= len(axis) - len(axis.specials) <= _MOST_WORDS for axis in axes)
    is_comparable = all(np.array_equal(axes[0].spans, axis.spans) for axis in axes)
    return "words" if is_short and is_comparable else "tokens"


def _side(resolver: HeadResolver, side: str) -> dict[str, Any]:
    shown, names = resolver.side(side), resolver.maps(side)
    title, model = shown.title, shown.model
    if side == DIFFERENCE:
        title, model = (
            _difference_title([getattr(each, name) for each in resolver.view_model.sides])
            for name in ("title", "model")
        )
    return {
        "id": side,
        "title": title,
        "model": model,
        "text_title": shown.title,
        "signed": side == DIFFERENCE,
        "maps": [
            {
                "kind": kind,
                "layer": layer,
                "heads": resolver.heads(side, (kind, layer)),
                "sees": _sees(resolver, side, (kind, layer)),
            }
            for kind, layer in names
        ],
        "stacks": {stack: _stack(resolver, side, stack) for stack in resolver.stacks(side)},
        "kinds": {kind: _axes(kind, writes=shown.writes) for kind, _ in names},
    }


def _sees(resolver: HeadResolver, side: str, name: MapName) -> list[int | None] | None:
    """How many tokens before and after its own a query may look at, None for any number; None where no such band is known."""
    sides = range(len(resolver.view_model.sides)) if side == DIFFERENCE else [int(side)]
    bands = [weights.band(resolver.view_model.sides[number].maps[name]) for number in sides]
    return bands[0] if all(band == bands[0] for band in bands) else None


def _axes(kind: str, *, writes: bool) -> dict[str, str]:
    queries, keys = axes_of(kind)
    return {"queries": WRITTEN if kind == "cross" and writes else queries, "keys": keys}


def _stack(resolver: HeadResolver, side: str, stack: str) -> dict[str, Any]:
    """How many tokens, words and special tokens an axis has, and how many tokens are the one for what the vocabulary lacks."""
    shown, read = resolver.side(side), "decoder" if stack == WRITTEN else stack
    words = len(resolver.axis(side, stack, "words", "show"))
    text = shown.token_text(read)
    counts = {"tokens": shown.sizes[read], "words": words, "specials": sum(text.special), "unknown": sum(text.unknown)}
    return counts | ({"unknown_token": shown.tokens[read][text.unknown.index(True)]} if any(text.unknown) else {})


def _difference_title(names: list[str]) -> str:
    """The title of a difference, "first minus second"; one name where both are equal."""
    return " minus ".join(dict.fromkeys(names))
