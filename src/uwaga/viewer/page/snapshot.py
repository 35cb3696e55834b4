"""A snapshot: a page that is one file, with the front end and the replies to all requests that it will make.

Requests come in groups, the most needed first; each is answered by the service, rounded where it is only shown as a picture,
compressed, and stored under its canonical JSON. What does not fit into the size or the time is stored coarser or not at all.
"""

import base64
import gzip
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uwaga._base.durable import atomic_replace
from uwaga.viewer.messages import Reply, Request, Service
from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.page.html import saved_html
from uwaga.viewer.runs import MAX_PREDICTED

# A request as it is; or (kind, layer, head), or (kind, layer, head, rows, columns) with ranges of tokens.
Exact = Request | tuple[str, int, int] | tuple[str, int, int, tuple[int, int], tuple[int, int]]
Answer = Callable[[Request], Reply]
_NewRequest = dict[str, object]

MAX_BYTES = 19_000_000  # of a page, without exact weights that were asked for
_ITEMS = 200_000  # per request, as the page asks for them
_CELLS = (256, 128, 64, 32)  # along an axis of a head's whole map, the finest first; at most those of a tile
_MAX_EXACT = 1 << 24  # weights, so that the page opens at once
# Bits of the mantissa of a coarse cell's float32: 3 digits, and half the bytes after compression. Exact weights keep all 23.
_COARSE_BITS = 10
_GZIP_LEVEL = 3  # the usual 6 saves 2 % more of such numbers, in four times the time
_PREDICTED = 1024  # tokens of a side whose predictions are stored
_STRIDES = (1, 2, 4, 8, 16, 32)  # of patches whose rows are stored
_GROUP_SHARE = 0.6  # of the bytes that are left, for one group: others follow


class StoppedError(Exception):
    """`stop` ended the snapshot."""


def save_snapshot(
    service: Service,
    path: str | os.PathLike[str],
    *,
    exact: Sequence[Exact] = (),
    seconds: float = 8.0,
    progress: Callable[[float], None] | None = None,
    language: str = "en",
) -> None:
    """Write a snapshot to a file, atomically. Arguments as in `View.save`. Raises ValueError, from `exact`, and OSError."""
    about = service.answer({"request": "about"}).meta
    requests = [request for each in exact for request in exact_requests(about, each)]
    html = snapshot_html(service.answer, exact=requests, seconds=seconds, progress=progress, language=language)
    with atomic_replace(Path(path)) as file:
        file.write(html)


def snapshot_html(
    answer: Answer,
    *,
    exact: Sequence[Request] = (),
    seconds: float = 8.0,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[float], None] | None = None,
    stop: Callable[[], bool] | None = None,
    language: str = "en",
    lesson: bool = False,
) -> bytes:
    """A snapshot as HTML in UTF-8, which needs no server and no network.

    It holds tokens, statistics, an overview of every layer and the whole map of every head in the finest cells that fit,
    first over tokens, then with words merged and special tokens hidden. Cells of more than one weight are rounded to three
    digits.

    Args:
        answer: that of a service.
        exact: requests whose replies are stored unrounded, whatever their size.
        seconds: time budget. What is needed is requested once in any case; the rest of the time goes to the other variants
            and to replies that were sampled first. What is not exact by then stays a sample.
        max_bytes: size that the page aims at.
        progress: called with the completed fraction, from 0 to 1.
        stop: called before each request; True ends the snapshot with StoppedError.
        language: of the page, a code of uwaga._base.languages.
        lesson: with the lesson, also where "about" says that the view opened without it.

    Raises:
        RequestError: from `exact`.
        StoppedError: see `stop`.
    """
    about = answer({"request": "about"})
    about = Reply(meta={**about.meta, "lesson": lesson or about.meta["lesson"]}, arrays=about.arrays)
    front = bundle(lesson=about.meta["lesson"])
    script = front.script("saved")
    builder = SnapshotBuilder(
        answer=answer, max_bytes=max_bytes - len(script.encode()) - len(front.css.encode()), seconds=seconds
    )
    if progress is not None:
        builder.progress = progress
    if stop is not None:
        builder.stop = stop
    builder.store({"request": "about"}, Reply(meta={**about.meta, "live": False}))
    for group in groups(about.meta, language):
        builder.offer(group)
    builder.request([dict(request) for request in exact])
    builder.complete()
    data = json.dumps({"replies": builder.replies}, separators=(",", ":")).replace("<", "\\u003c")
    return saved_html(str(about.meta["title"]), script=script, css=front.css, data=data, language=language).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Requests whose replies are stored together or not at all.

    choices: alternatives of falling size, of which the first that fits is taken.
    needed: the last choice is taken in any case.
    """

    choices: tuple[tuple[_NewRequest, ...], ...]
    needed: bool = False


@dataclass(kw_only=True)
class SnapshotBuilder:
    """Makes requests and stores the replies, within a size and a time.

    Args:
        answer: that of a service.
        max_bytes: bound on the stored replies; needed groups may exceed it.
        seconds: time budget for replies that are not complete and for groups that are not needed.
        progress: called with the completed fraction, from 0 to 1.
        stop: called before each request.
    """

    answer: Answer
    max_bytes: int
    seconds: float
    progress: Callable[[float], None] = lambda done: None
    stop: Callable[[], bool] = lambda: False
    replies: dict[str, str] = field(default_factory=dict)  # by canonical request, base64 of the bytes, plain or gzip
    _began: float = field(default_factory=time.monotonic)
    _incomplete: list[_NewRequest] = field(default_factory=list)  # the longest untouched first

    def store(self, request: Request, reply: Reply) -> None:
        """Store a reply."""
        data = stored_reply(request, reply).to_bytes()
        packed = gzip.compress(data, _GZIP_LEVEL, mtime=0)
        self.replies[canonical(request)] = base64.b64encode(min(data, packed, key=len)).decode()

    def request(self, requests: Sequence[_NewRequest]) -> None:
        """Make requests and store the replies, whatever their size. Raises RequestError, StoppedError."""
        for request in requests:
            if canonical(request) not in self.replies or request in self._incomplete:
                self._request(request)

    def offer(self, group: Group) -> None:
        """Store the largest choice of a group that fits. Raises RequestError, StoppedError."""
        for number, requests in enumerate(group.choices):
            last = group.needed and number == len(group.choices) - 1
            if not requests:
                return
            if last or self._fits(requests, timely=not group.needed):
                self.request(requests)
                return

    def complete(self) -> None:
        """Repeat requests whose replies are not complete, in turn, while there is time. Raises StoppedError."""
        total = max(len(self._incomplete), 1)
        while self._incomplete and (spent := time.monotonic() - self._began) < self.seconds:
            for request in list(self._incomplete):
                self._request(request)
            self.progress(max(spent / self.seconds, 1 - len(self._incomplete) / total))
        self.progress(1.0)

    def _fits(self, requests: Sequence[_NewRequest], *, timely: bool) -> bool:
        """Whether all replies fit into the size, and the time where that counts, by the size and time of one of them."""
        taken, began = sum(map(len, self.replies.values())), time.monotonic()
        sample = requests[len(requests) // 2]
        stored_before, incomplete_before = canonical(sample) in self.replies, list(self._incomplete)
        self._request(sample)
        ended = time.monotonic()
        fits = len(self.replies[canonical(sample)]) * len(requests) <= _GROUP_SHARE * (self.max_bytes - taken)
        fits &= not timely or (ended - began) * len(requests) <= self.seconds - (ended - self._began)
        if not fits and not stored_before:
            del self.replies[canonical(sample)]
            self._incomplete = incomplete_before
        return fits

    def _request(self, request: _NewRequest) -> None:
        if self.stop():
            raise StoppedError
        reply = self.answer(dict(request))
        self._incomplete = [other for other in self._incomplete if other != request]
        if reply.meta.get("complete", 1) < 1:
            self._incomplete.append(request)
        self.store(request, reply)


def stored_reply(request: Request, reply: Reply) -> Reply:
    """A reply for a page without a program behind it: `complete` becomes 1, and `reached` holds the completed fraction."""
    meta: dict[str, Any] = dict(reply.meta)
    if "complete" in meta:
        meta |= {"complete": 1, "reached": meta["complete"]}
    # These are pictures; all other arrays are numbers to read, and so are the cells of a short text, each of them a weight.
    is_overview = request["request"] == "overview" and not reply.meta.get("single")
    coarse = is_overview or (request["request"] == "tile" and request["level"] != 0)
    arrays = tuple(_rounded(array) if coarse and array.dtype == np.float32 else array for array in reply.arrays)
    return Reply(meta=meta, arrays=arrays)


def _rounded(array: NDArray[Any]) -> NDArray[Any]:
    """To the nearest float32 of _COARSE_BITS bits; NaN and infinity stay."""
    drop = 23 - _COARSE_BITS
    bits = np.ascontiguousarray(array).view(np.uint32)
    nearest = ((bits + np.uint32(1 << (drop - 1))) & np.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)).view(np.float32)
    return np.where(np.isfinite(array) & np.isfinite(nearest), nearest, array).astype(np.float32)


def canonical(request: Request) -> str:
    """The JSON text under which a page looks a request up; `canonical` of front/wire.js gives the same."""
    return json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def groups(about: Mapping[str, Any], language: str = "en") -> Iterator[Group]:
    """All requests that a page may make, the most needed first.

    Args:
        about: the meta of the reply to {"request": "about"}.
    """
    yield Group(choices=(tuple(_items(about)),), needed=True)
    yield Group(choices=(tuple(_statistics(about)),), needed=True)
    yield Group(choices=(tuple(_predictions(about)),))
    if about["lesson"]:
        asked: _NewRequest = {"request": "lesson", **({} if language == "en" else {"language": language})}
        yield Group(choices=((asked,),), needed=True)
    yield from _picture(about)
    for merge, specials in _variants(about):
        plain = (merge, specials) == ("tokens", "show")
        opens = (merge, specials) == ((about["start"] or {}).get("merge", "tokens"), "show")
        variant = {"merge": merge, "specials": specials}
        yield Group(choices=(tuple(_overviews(about, {"pooling": "sum", **variant})),), needed=plain or opens)
        yield Group(choices=(tuple(_labels(about, variant)),), needed=plain or opens)
        yield Group(choices=_whole_maps(about, "sum", variant), needed=plain or opens)
        if plain:
            yield Group(choices=(tuple(_overviews(about, {"pooling": "max", **variant})),))
            yield Group(choices=_whole_maps(about, "max", variant))


def exact_requests(about: Mapping[str, Any], exact: Exact) -> list[_NewRequest]:
    """The requests for the exact weights of a head of the first side, or of a block of it.

    Args:
        about: the meta of the reply to {"request": "about"}.
        exact: (kind, layer, head), or (kind, layer, head, rows, columns) with ranges (start, stop) of queries and keys; a
            request is returned as it is.

    Raises:
        ValueError: heads or tokens that do not exist, or more weights than a page may hold.
    """
    if isinstance(exact, Mapping):
        return [dict(exact)]
    if len(exact) not in (3, 5):
        rule = "(kind, layer, head) or (kind, layer, head, rows, columns)"
        raise ValueError(f"view: exact must be {rule}, not {exact!r}")
    kind, layer, head, *ranges = exact
    side = about["sides"][0]
    heads = {(each["kind"], each["layer"]): each["heads"] for each in side["maps"]}
    if not 0 <= head < heads.get((kind, layer), 0):
        raise ValueError(f"view: exact: there is no head {head} of {kind} layer {layer}")
    where = {"side": side["id"], "kind": kind, "layer": layer, "head": head, "merge": "tokens", "specials": "show"}
    sizes = _sizes(side, kind, where)
    rows, columns = (
        _tile_range(f"{kind} layer {layer}", name, *span, size, about["tile"])
        for name, span, size in zip(("queries", "keys"), ranges or [(0, size) for size in sizes], sizes, strict=True)
    )
    if len(rows) * len(columns) * about["tile"] ** 2 > max(_MAX_EXACT, about["tile"] ** 2):
        raise ValueError(
            f"view: exact: head {head} of {kind} layer {layer} has more weights than the limit of {_MAX_EXACT:,} per page; "
            "give ranges of queries and keys"
        )
    return [_tile(where, "sum", 0, row, column) for row in rows for column in columns]


def _tile_range(where: str, name: str, start: int, stop: int, size: int, tile: int) -> range:
    if not 0 <= start < stop <= size:
        raise ValueError(f"view: exact: {name} {start}:{stop} of {where} are out of range: there are {size}")
    return range(start // tile, (stop - 1) // tile + 1)


def _items(about: Mapping[str, Any]) -> Iterator[_NewRequest]:
    for side in about["sides"]:
        for stack, counts in side["stacks"].items():
            for merge, specials in _variants(about):
                count = counts[merge] - (counts["specials"] if specials == "hide" else 0)
                for first in range(0, max(count, 1), _ITEMS):
                    where = {"side": side["id"], "stack": stack, "merge": merge, "specials": specials}
                    yield {"request": "items", **where, "first": first, "count": _ITEMS}


def _statistics(about: Mapping[str, Any]) -> Iterator[_NewRequest]:
    for where in _layers(about):
        yield {"request": "statistics", **where}


def _picture(about: Mapping[str, Any]) -> Iterator[Group]:
    """What a model of pictures saw, and rows of its tokens in every head: of the layer that the page opens with, then of the others, then its
    columns. What is too much for all patches is stored for every second, fourth, ... row and column of them."""
    if (picture := about.get("picture")) is None:
        return
    yield Group(choices=(({"request": "picture"},),), needed=True)
    start = {name: about["start"][name] for name in ("side", "kind", "layer")}
    layers = [each for each in _layers(about) if each["kind"] in picture["grids"]]
    for of, axis, needed in (([start], "row", True), (layers[::-1], "row", False), ([start], "column", False)):
        yield Group(choices=tuple(tuple(_heads(about, of, axis, stride)) for stride in _STRIDES), needed=needed)


def _heads(
    about: Mapping[str, Any], layers: Sequence[Mapping[str, object]], axis: str, stride: int
) -> Iterator[_NewRequest]:
    side = about["sides"][0]
    for where in layers:
        kind = str(where["kind"])
        grid, tokens = about["picture"]["grids"][kind], side["stacks"][kind]["tokens"]
        first, columns, count = grid["first"], grid["columns"], grid["rows"] * grid["columns"]
        for item in range(tokens):
            row, column = divmod(item - first, columns)
            if not 0 <= item - first < count or (row % stride == 0 and column % stride == 0):
                yield {"request": "heads", **where, "axis": axis, "item": item}


def _predictions(about: Mapping[str, Any]) -> Iterator[_NewRequest]:
    """Those of the first tokens of each side, in the blocks that the page asks for."""
    for side, values in about.get("predictions", {}).items():
        for first in range(0, min(values["tokens"], _PREDICTED), MAX_PREDICTED):
            yield {"request": "predictions", "side": side, "first": first, "count": MAX_PREDICTED}


def _labels(about: Mapping[str, Any], variant: Mapping[str, str]) -> Iterator[_NewRequest]:
    for where in _layers(about):
        if where["side"] != "difference":
            yield {"request": "labels", **where, **variant}


def _overviews(about: Mapping[str, Any], pooling: Mapping[str, object]) -> Iterator[_NewRequest]:
    for where in _layers(about):
        yield {"request": "overview", **where, **pooling}


def _whole_maps(
    about: Mapping[str, Any], pooling: str, variant: Mapping[str, str]
) -> tuple[tuple[_NewRequest, ...], ...]:
    """Every head's whole map as one tile, in several sizes."""
    results: list[tuple[_NewRequest, ...]] = []
    for cells in _CELLS:
        requests = tuple(_whole_map_tiles(about, pooling, variant, min(cells, about["tile"])))
        if requests and requests not in results:
            results.append(requests)
    return tuple(results)


def _whole_map_tiles(
    about: Mapping[str, Any], pooling: str, variant: Mapping[str, str], cells: int
) -> Iterator[_NewRequest]:
    for side in about["sides"]:
        for each in side["maps"]:
            level = _level(max(_sizes(side, each["kind"], variant)), cells)
            if level == 0 and pooling == "max":
                continue  # the weights themselves, which are requested as "sum"
            for head in range(each["heads"]):
                where = {"side": side["id"], "kind": each["kind"], "layer": each["layer"], "head": head, **variant}
                yield _tile(where, pooling, level, 0, 0)


def _tile(where: Mapping[str, object], pooling: str, level: int, row: int, column: int) -> _NewRequest:
    return {"request": "tile", **where, "pooling": pooling, "level": level, "row": row, "column": column}


def _level(size: int, cells: int) -> int:
    """The finest zoom level at which an axis has at most so many cells."""
    return max(0, ((size - 1) // cells).bit_length()) if size > 0 else 0


def _sizes(side: Mapping[str, Any], kind: str, variant: Mapping[str, object]) -> tuple[int, int]:
    """Queries and keys of a kind's maps, in items."""
    axes = side["kinds"][kind]
    counts = [side["stacks"][axes[axis]] for axis in ("queries", "keys")]
    hidden = variant["specials"] == "hide"
    queries, keys = (each[variant["merge"]] - (each["specials"] if hidden else 0) for each in counts)
    return queries, keys


def _layers(about: Mapping[str, Any]) -> Iterator[_NewRequest]:
    for side in about["sides"]:
        for each in side["maps"]:
            yield {"side": side["id"], "kind": each["kind"], "layer": each["layer"]}


def _variants(about: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The distinct ways to show the axes, (merge, specials), plain tokens first."""
    stacks = [counts for side in about["sides"] for counts in side["stacks"].values()]
    merges = ["tokens", *(["words"] if any(each["words"] != each["tokens"] for each in stacks) else [])]
    specials = ["show", *(["hide"] if any(each["specials"] for each in stacks) else [])]
    return [(merge, special) for merge in merges for special in specials]
