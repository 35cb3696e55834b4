"""A snapshot: a page that is one file, with the front end and the replies to all requests that it will make.

Requests come in groups, the most needed first; each is answered by the service, rounded where it is only shown as a picture,
compressed, and stored under its canonical JSON. Every stored reply is whole: needed ones are asked for until nothing in them is missing, and
of the others those are stored that fit into the size and the time. `Snapshot.left_out` says in words what did not fit.
"""

import base64
import gzip
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from uwaga._base.arguments import check
from uwaga._base.durable import atomic_replace
from uwaga._base.languages import tr, using
from uwaga.viewer.messages import Reply, Request, RequestError, Service
from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.page.html import saved_html

# (kind, layer, head), or (kind, layer, head, rows, columns) with ranges of tokens.
Exact = tuple[str, int, int] | tuple[str, int, int, tuple[int, int], tuple[int, int]]
Answer = Callable[[Request], Reply]
_NewRequest = dict[str, object]

SECONDS = 8.0  # for what a page can do without
MAX_BYTES = 19_000_000  # of a page, without exact weights that were asked for
_ITEMS = 200_000  # per request, as the page asks for them
_CELLS = (256, 128, 64, 32)  # along an axis of a head's whole map, the finest first; at most those of a tile
_MAX_EXACT = 1 << 24  # weights, so that the page opens at once
# Bits of the mantissa of a coarse cell's float32: 3 digits, and half the bytes after compression. Exact weights keep all 23.
_COARSE_BITS = 10
_GZIP_LEVEL = 3  # the usual 6 saves 2 % more of such numbers, in four times the time
MAX_PREDICTED = 256  # positions of a reply
_PREDICTED = 1024  # tokens of a side whose predictions come before everything else that is not needed
_STRIDES = (1, 2, 4, 8, 16, 32)  # of patches whose rows are stored: the smallest that fits
_GROUP_SHARE = 0.6  # of the bytes that are left, for one group: others follow


class SavedPage(NamedTuple):
    """A page that is one file.

    html: in UTF-8.
    left_out: a sentence on what the limits of time and size left out; "" where nothing was.
    """

    html: bytes
    left_out: str


def save_snapshot(
    service: Service, path: str | os.PathLike[str], *, exact: Sequence[Exact] = (), **options: Any
) -> str:
    """Write a snapshot, atomically, and return what was left out. Raises ValueError, OSError."""
    about = service.answer({"request": "about"}).meta
    requests = [request for block in exact for request in exact_requests(about, block)]
    snapshot = make_snapshot(service.answer, exact=requests, **options)
    with atomic_replace(Path(path)) as file:
        file.write(snapshot.html)
    return snapshot.left_out


def make_snapshot(
    answer: Answer,
    *,
    exact: Sequence[Request] = (),
    seconds: float = SECONDS,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    language: str = "en",
    lesson: bool = False,
    opens: str = "",
) -> SavedPage:
    """Return a snapshot as HTML, which needs no server and no network.

    It holds tokens, statistics, an overview of every layer and the whole map of every head in the finest cells that fit, over tokens and as the
    page opens; and if they fit, the other ways to show them. Cells of more than one weight are rounded to three digits.

    Args:
        answer: that of a service.
        exact: requests whose replies are stored unrounded, whatever their size.
        seconds: time for what a page can do without: other ways to show the maps, then the exact cells of maps that were sampled first. It
            begins when everything else is stored.
        max_bytes: size that the page aims at.
        progress: called with the completed fraction, from 0 to 1.
        clock: gives the seconds that `seconds` are counted by.
        language: of the page, a code of uwaga._base.languages.
        lesson: with the lesson, also where "about" says that the view opened without it.
        opens: what the page shows first, as the fragment of a served page's address; "": what it chooses.

    Raises:
        RequestError: from `exact`.
    """
    about = answer({"request": "about"})
    about = Reply(meta={**about.meta, "lesson": lesson or about.meta["lesson"]}, arrays=about.arrays)
    front = bundle(lesson=about.meta["lesson"])
    script = front.script("saved")
    builder = SnapshotBuilder(
        answer=answer,
        max_bytes=max_bytes - len(script.encode()) - len(front.css.encode()),
        seconds=seconds,
        progress=progress or (lambda done: None),
        clock=clock,
    )
    with using(language):
        builder.add(list(groups(about.meta, language)))
        builder.request([dict(request) for request in exact])
        builder.progress(1.0)
        left_out = builder.left_out()
    builder.store({"request": "about"}, Reply(meta={**about.meta, "live": False, "left_out": left_out, "opens": opens}))
    data = json.dumps({"replies": builder.replies}, separators=(",", ":")).replace("<", "\\u003c")
    html = saved_html(str(about.meta["title"]), script=script, css=front.css, data=data, language=language)
    return SavedPage(html.encode(), left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroup:
    """Requests whose replies are stored together or not at all.

    choices: alternatives of falling size, of which the first that fits is taken.
    needed: the last choice is taken in any case.
    name: what it is to a reader; "" if nobody would miss it.
    """

    choices: tuple[tuple[_NewRequest, ...], ...]
    needed: bool = False
    name: str = ""


@dataclass(kw_only=True)
class SnapshotBuilder:
    """Makes requests and stores the replies, within a size and a time; arguments as in `make_snapshot`.

    max_bytes bounds the stored replies alone, and needed groups may exceed it.
    """

    answer: Answer
    max_bytes: int
    seconds: float
    progress: Callable[[float], None] = lambda done: None
    clock: Callable[[], float] = time.monotonic
    replies: dict[str, str] = field(default_factory=dict)  # by canonical request, base64 of the bytes, plain or gzip
    _incomplete: dict[str, _NewRequest] = field(default_factory=dict)  # by canonical request; whole, with samples in it
    _parts: int = 0  # groups with a name
    _missing: list[str] = field(default_factory=list)  # names of those that are not stored
    _limits: set[str] = field(default_factory=set)  # that left something out: "time", "size"
    _total: int = 1  # requests of all groups in their largest choices, and one
    _done: int = 0  # of them, those of groups that were offered
    _told: float = 0.0  # the progress

    def store(self, request: Request, reply: Reply) -> None:
        """Store a reply."""
        data = stored_reply(request, reply).to_bytes()
        packed = gzip.compress(data, _GZIP_LEVEL, mtime=0)
        self.replies[canonical(request)] = base64.b64encode(min(data, packed, key=len)).decode()

    def add(self, offered: Sequence[RequestGroup]) -> None:
        """Store what is needed; then, while there is time, what fits of the others, and exact cells in place of samples.

        Raises RequestError.
        """
        self._total = sum(len(group.choices[0]) for group in offered) + 1
        for group in offered:
            if group.needed:
                self._offer(group, math.inf)
        until = self.clock() + self.seconds
        for group in offered:
            if not group.needed:
                self._offer(group, until)
        for name, request in list(self._incomplete.items()):
            self._refine(name, request, until)

    def request(self, requests: Sequence[_NewRequest], until: float = math.inf) -> bool:
        """Make requests and store the whole replies; False if time was over. Raises RequestError."""
        for request in requests:
            name, reply = canonical(request), None
            while name not in self.replies:
                if reply is not None and self.clock() >= until:
                    return False
                if (reply := self._ask(request)) is None:
                    break
                if _is_whole(request, reply):
                    self.store(request, reply)
                    if reply.meta.get("complete", 1) < 1:
                        self._incomplete[name] = request
            self._done += 1
            self._told = max(self._told, min(self._done / self._total, 1.0))
            self.progress(self._told)
        return True

    def left_out(self) -> str:
        """Return what is missing or a sample, and what to do, in the current language; "" for nothing."""
        maps = sum('"request":"tile"' in name for name in self.replies)
        sentences = []
        if self._missing:
            values = {
                "stored": self._parts - len(self._missing),
                "total": self._parts,
                "names": ", ".join(self._missing),
            }
            sentences.append(tr("{stored} of {total} parts are stored. Left out: {names}.", **values))
        if count := len(self._incomplete):
            text = tr("{count} of {total} maps are means over a sample of their rows.", count=count, total=maps)
            sentences.append(text)
        if "time" in self._limits or self._incomplete:
            limit = f"{self.seconds:g}"
            sentences.append(tr("{option} allows more than {seconds} seconds.", option="--seconds", seconds=limit))
        if "size" in self._limits:
            sentences.append(tr("A page has at most about {size} MB.", size=MAX_BYTES // 1_000_000))
        return " ".join(sentences)

    def _offer(self, group: RequestGroup, until: float) -> None:
        """Store the largest choice of a group that fits."""
        before, done, limit = (dict(self.replies), dict(self._incomplete)), self._done, ""
        for requests in group.choices:
            must = group.needed and requests is group.choices[-1]
            limit = "" if must else self._limit_of(requests, until)
            self._done = done
            if not limit and not self.request(requests, until):
                limit = "time"
            if not limit:
                break
            self.replies, self._incomplete = dict(before[0]), dict(before[1])
        self._done = done + len(group.choices[0])
        self._parts += bool(group.name)
        if limit and group.name:
            self._missing.append(group.name)
            self._limits.add(limit)

    def _limit_of(self, requests: Sequence[_NewRequest], until: float) -> str:
        """Return the limit that the replies exceed, by one of each kind: "size", "time" or ""."""
        taken, began = sum(map(len, self.replies.values())), self.clock()
        size, end = 0, began
        for kind in dict.fromkeys(request["request"] for request in requests):
            alike = [request for request in requests if request["request"] == kind]
            sample, start = alike[len(alike) // 2], self.clock()
            if not self.request([sample], until):
                return "time"
            size += len(self.replies.get(canonical(sample), "")) * len(alike)
            end += (self.clock() - start) * len(alike)
        if size > _GROUP_SHARE * (self.max_bytes - taken):
            return "size"
        return "time" if end > until else ""

    def _refine(self, name: str, request: _NewRequest, until: float) -> None:
        """Store what is known of a reply when it is complete, or the time is over."""
        reply = None
        while (reply is None or reply.meta["complete"] < 1) and self.clock() < until:
            reply = self._ask(request)
        if reply is not None and _is_whole(request, reply):
            self.store(request, reply)
            if reply.meta["complete"] == 1:
                del self._incomplete[name]

    def _ask(self, request: _NewRequest) -> Reply | None:
        """Return the reply; None if a difference does not exist, as of texts of other words."""
        try:
            return self.answer(dict(request))
        except RequestError:
            if request.get("side") != "difference":
                raise
            return None


def _is_whole(request: Request, reply: Reply) -> bool:
    """Return whether nothing is missing: a tile with a number in each cell may be a sample."""
    is_sample = request["request"] == "tile" and not any(np.isnan(array).any() for array in reply.arrays)
    return is_sample or reply.meta.get("complete", 1) == 1


def stored_reply(request: Request, reply: Reply) -> Reply:
    """Return a reply for a page without a program: `complete` is 1, and `reached` what it was."""
    meta: dict[str, Any] = dict(reply.meta)
    if "complete" in meta:
        meta |= {"complete": 1, "reached": meta["complete"]}
    # These are pictures; all other arrays are numbers to read, and so are the cells of a short text, each of them a weight.
    is_overview = request["request"] == "overview" and not reply.meta.get("single")
    coarse = is_overview or (request["request"] == "tile" and request["level"] != 0)
    arrays = tuple(_rounded(array) if coarse and array.dtype == np.float32 else array for array in reply.arrays)
    return Reply(meta=meta, arrays=arrays)


def _rounded(array: NDArray[Any]) -> NDArray[Any]:
    """Round to the nearest float32 of _COARSE_BITS bits; NaN and infinity stay."""
    drop = 23 - _COARSE_BITS
    bits = np.ascontiguousarray(array).view(np.uint32)
    nearest = ((bits + np.uint32(1 << (drop - 1))) & np.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)).view(np.float32)
    return np.where(np.isfinite(array) & np.isfinite(nearest), nearest, array).astype(np.float32)


def canonical(request: Request) -> str:
    """Return the JSON text by which a page finds a reply, as `canonical` of front/wire.js does."""
    return json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def groups(about: Mapping[str, Any], language: str = "en") -> Iterator[RequestGroup]:
    """Yield all requests that a page may make, the most needed first.

    Args:
        about: the meta of the reply to {"request": "about"}.
    """
    yield RequestGroup(choices=(_by_layer(about, "statistics"),), needed=True)
    if about["lesson"]:
        asked: _NewRequest = {"request": "lesson", **({} if language == "en" else {"language": language})}
        yield RequestGroup(choices=((asked,),), needed=True)
    yield from _picture(about)
    first = tuple(_predictions(about, 0, _PREDICTED))
    if first:
        yield RequestGroup(choices=(first,), name=tr("predictions"))
    names = {
        ("tokens", "show"): tr("tokens"),
        ("tokens", "hide"): tr("tokens without special ones"),
        ("words", "show"): tr("words"),
        ("words", "hide"): tr("words without special ones"),
    }
    for variant in _variants(about) if about["sides"] else []:
        shown = dict(zip(("merge", "specials"), variant, strict=True))
        needed = variant in (("tokens", "show"), (about["start"]["merge"], "show"))
        labels = (asked for asked in _by_layer(about, "labels", **shown) if asked["side"] != "difference")
        fixed = (*_items(about, shown), *_by_layer(about, "overview", pooling="sum", **shown), *labels)
        yield RequestGroup(choices=_with_maps(fixed, about, "sum", shown), needed=needed, name=names[variant])
        if variant == ("tokens", "show"):
            largest = _by_layer(about, "overview", pooling="max", **shown)
            yield RequestGroup(choices=_with_maps(largest, about, "max", shown), name=tr("largest weights"))
    if more := tuple(_predictions(about, _PREDICTED, math.inf)):
        yield RequestGroup(choices=(more,), name=tr("predictions after {count} tokens", count=_PREDICTED))


def exact_requests(about: Mapping[str, Any], exact: Exact) -> list[_NewRequest]:
    """Return the requests for the exact weights of a head of the first side, or of a block.

    Args:
        about: the meta of the reply to {"request": "about"}.
        exact: (kind, layer, head), or (kind, layer, head, rows, columns) with ranges (start, stop) of queries and keys.

    Raises:
        ValueError: heads or tokens that do not exist, or more weights than a page may hold.
    """
    rule = "(kind, layer, head) or (kind, layer, head, rows, columns)"
    check(len(exact) in (3, 5), f"view: exact must be {rule}, not {exact!r}")
    kind, layer, head, *ranges = exact
    side = about["sides"][0]
    heads = {(entry["kind"], entry["layer"]): entry["heads"] for entry in side["maps"]}
    is_head = 0 <= head < heads.get((kind, layer), 0)
    check(is_head, f"view: exact: there is no head {head} of {kind} layer {layer}")
    where = {"side": side["id"], "kind": kind, "layer": layer, "head": head, "merge": "tokens", "specials": "show"}
    sizes = _sizes(side, kind, where)
    rows, columns = (
        _tile_range(f"{kind} layer {layer}", name, *span, size, about["tile"])
        for name, span, size in zip(("queries", "keys"), ranges or [(0, size) for size in sizes], sizes, strict=True)
    )
    check(
        len(rows) * len(columns) * about["tile"] ** 2 <= max(_MAX_EXACT, about["tile"] ** 2),
        f"view: exact: head {head} of {kind} layer {layer} has more weights than the limit of {_MAX_EXACT:,} per page; "
        "give ranges of queries and keys",
    )
    return [_tile(where, "sum", 0, row, column) for row in rows for column in columns]


def _tile_range(where: str, name: str, start: int, stop: int, size: int, tile: int) -> range:
    rule = f"view: exact: {name} {start}:{stop} of {where} are out of range: there are {size}"
    check(0 <= start < stop <= size, rule)
    return range(start // tile, (stop - 1) // tile + 1)


def _items(about: Mapping[str, Any], variant: Mapping[str, str]) -> Iterator[_NewRequest]:
    for side in about["sides"]:
        for stack, counts in side["stacks"].items():
            count = counts[variant["merge"]] - (counts["specials"] if variant["specials"] == "hide" else 0)
            where = {"side": side["id"], "stack": stack, **variant}
            for first in range(0, max(count, 1), _ITEMS):
                yield {"request": "items", **where, "first": first, "count": _ITEMS}


def _picture(about: Mapping[str, Any]) -> Iterator[RequestGroup]:
    """Yield what a model of pictures saw, and rows of its tokens in every head."""
    if (picture := about.get("picture")) is None:
        return
    yield RequestGroup(choices=(({"request": "picture"},),), needed=True)
    start = {name: about["start"][name] for name in ("side", "kind", "layer")}
    layers = [layer for layer in _layers(about) if layer["kind"] in picture["grids"]]
    for of, axis, name in (
        ([start], "row", ""),
        (layers[::-1], "row", tr("rows of patches in every layer")),
        ([start], "column", tr("columns of patches")),
    ):
        choices = tuple(tuple(_heads(about, of, axis, stride)) for stride in _STRIDES)
        yield RequestGroup(choices=choices, needed=not name, name=name)


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


def _predictions(about: Mapping[str, Any], start: int, stop: float) -> Iterator[_NewRequest]:
    """Yield requests for the predictions of each side, in the blocks that the page asks for."""
    for side, values in about.get("predictions", {}).items():
        for first in range(start, min(values["tokens"], stop), MAX_PREDICTED):
            yield {"request": "predictions", "side": side, "first": first, "count": MAX_PREDICTED}


def _by_layer(about: Mapping[str, Any], name: str, **more: object) -> tuple[_NewRequest, ...]:
    """Return a request for each layer of each side."""
    return tuple({"request": name, **where, **more} for where in _layers(about))


def _with_maps(
    fixed: tuple[_NewRequest, ...], about: Mapping[str, Any], pooling: str, variant: Mapping[str, str]
) -> tuple[tuple[_NewRequest, ...], ...]:
    """Return requests followed by those for every head's whole map as one tile, in several sizes."""
    results: list[tuple[_NewRequest, ...]] = []
    for cells in _CELLS:
        tiles = []
        for side in about["sides"]:
            for entry in side["maps"]:
                # The finest zoom level at which an axis has at most so many cells.
                longest = max(_sizes(side, entry["kind"], variant))
                level = max(0, (longest - 1) // min(cells, about["tile"])).bit_length()
                where = {"side": side["id"], "kind": entry["kind"], "layer": entry["layer"]}
                if level or pooling == "sum":  # the weights themselves are the same for all poolings
                    heads = range(entry["heads"])
                    tiles += [_tile({**where, "head": head, **variant}, pooling, level, 0, 0) for head in heads]
        if tiles and (choice := (*fixed, *tiles)) not in results:
            results.append(choice)
    return tuple(results) or (fixed,)


def _tile(where: Mapping[str, object], pooling: str, level: int, row: int, column: int) -> _NewRequest:
    return {"request": "tile", **where, "pooling": pooling, "level": level, "row": row, "column": column}


def _sizes(side: Mapping[str, Any], kind: str, variant: Mapping[str, object]) -> tuple[int, int]:
    """Return the queries and keys of a kind's maps, in items."""
    axes = side["kinds"][kind]
    counts = [side["stacks"][axes[axis]] for axis in ("queries", "keys")]
    hidden = variant["specials"] == "hide"
    queries, keys = (count[variant["merge"]] - (count["specials"] if hidden else 0) for count in counts)
    return queries, keys


def _layers(about: Mapping[str, Any]) -> Iterator[_NewRequest]:
    for side in about["sides"]:
        for entry in side["maps"]:
            yield {"side": side["id"], "kind": entry["kind"], "layer": entry["layer"]}


def _variants(about: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the distinct ways to show the axes, (merge, specials), plain tokens first."""
    stacks = [counts for side in about["sides"] for counts in side["stacks"].values()]
    merges = ["tokens", *(["words"] if any(stack["words"] != stack["tokens"] for stack in stacks) else [])]
    specials = ["show", *(["hide"] if any(stack["specials"] for stack in stacks) else [])]
    return [(merge, special) for merge in merges for special in specials]
