"""A snapshot: a page that is one file, with the front end and the replies to all requests that it will make.

Requests come in groups, the most needed first; each is answered by the service, rounded where it is only shown as a picture,
compressed, and stored under its canonical JSON. Every stored reply is whole: needed ones are asked for until nothing in them is missing, and
of the others those are stored that fit into the size and the time. `SavedPage.left_out` says in words what did not fit.
"""

import base64
import gzip
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from uwaga._base.durable import atomic_replace
from uwaga._base.languages import tr, using
from uwaga.viewer.messages import Reply, Request, RequestError, Service
from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.page.html import saved_html

Answer = Callable[[Request], Reply]
_NewRequest = dict[str, object]

SECONDS = 8.0  # for what a page can do without
MAX_BYTES = 19_000_000  # of a page, without exact weights that were asked for
_ITEMS = 200_000  # per request, as the page asks for them
_CELLS = (256, 128, 64, 32)  # along an axis of a head's whole map, the finest first; at most those of a tile
# Bits of the mantissa of a coarse cell's float32: 3 digits, and half the bytes after compression. Exact weights keep all 23.
_COARSE_BITS = 10
_GZIP_LEVEL = 3  # the usual 6 saves 2 % more of such numbers, in four times the time
MAX_PREDICTED = 256  # positions of a reply
_PREDICTED = 1024  # tokens of a side whose predictions are stored where those of all do not fit
_STRIDES = (1, 2, 4, 8, 16, 32)  # of patches whose rows are stored: the smallest that fits
_GROUP_SHARE = 0.6  # of the bytes that are left, for one group: others follow


class SavedPage(NamedTuple):
    """A page that is one file.

    html: in UTF-8.
    left_out: a sentence on what the limits of time and size left out; "" where nothing was.
    """

    html: bytes
    left_out: str


def save_snapshot(service: Service, path: str | os.PathLike[str], **options: Any) -> str:
    """Write a snapshot, atomically, and return what was left out; options as of `make_snapshot`. Raises OSError."""
    snapshot = make_snapshot(service.answer, **options)
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
    stored = _Replies(answer, max_bytes - len(script.encode()) - len(front.css.encode()), progress, clock)
    with using(language):
        stored.add(list(groups(about.meta, language)), seconds)
        stored.request([dict(request) for request in exact])
        left_out = stored.left_out(seconds)
    if progress is not None:
        progress(1.0)
    stored.store({"request": "about"}, Reply(meta={**about.meta, "live": False, "left_out": left_out, "opens": opens}))
    data = json.dumps({"replies": stored.replies}, separators=(",", ":")).replace("<", "\\u003c")
    html = saved_html(str(about.meta["title"]), script=script, css=front.css, data=data, language=language)
    return SavedPage(html.encode(), left_out)


class RequestGroup(NamedTuple):
    """Requests whose replies are stored together or not at all.

    choices: alternatives of falling size, of which the first that fits is taken; the first request of each is one of its many.
    needed: the last choice is taken in any case.
    name: what it is to a reader; "" if nobody would miss it.
    """

    choices: tuple[tuple[_NewRequest, ...], ...]
    needed: bool = False
    name: str = ""


class _Replies:
    """Makes requests and stores the replies, within a size and a time; arguments as of `make_snapshot`.

    replies: by canonical request, base64 of the bytes, plain or gzip. max_bytes bounds them alone, and needed groups may exceed it.
    """

    def __init__(
        self, answer: Answer, max_bytes: int, progress: Callable[[float], None] | None, clock: Callable[[], float]
    ) -> None:
        self._answer, self._max_bytes, self._progress, self._clock = answer, max_bytes, progress, clock
        self.replies: dict[str, str] = {}
        self._samples: dict[str, _NewRequest] = {}  # by canonical request; whole, with samples in it
        self._missing: list[str] = []  # names of groups that are not stored
        self._parts = 0  # groups with a name
        self._is_late = False  # whether time left something out
        self._done, self._total = 0, 1  # requests

    def store(self, request: Request, reply: Reply) -> None:
        """Store a reply."""
        data = stored_reply(request, reply).to_bytes()
        packed = gzip.compress(data, _GZIP_LEVEL, mtime=0)
        self.replies[canonical(request)] = base64.b64encode(min(data, packed, key=len)).decode()

    def add(self, offered: Sequence[RequestGroup], seconds: float) -> None:
        """Store what is needed; then, while there is time, what fits of the others, and exact cells in place of samples.

        Raises RequestError.
        """
        self._total = sum(len(group.choices[0]) for group in offered) + 1
        self._parts = sum(bool(group.name) for group in offered)
        for group in offered:
            if group.needed:
                self._offer(group, math.inf)
        until = self._clock() + seconds
        for group in offered:
            if not group.needed:
                self._offer(group, until)
        for name, request in list(self._samples.items()):
            reply = None
            while (reply is None or reply.meta["complete"] < 1) and self._clock() < until:
                reply = self._ask(request)
            if reply is not None and _is_whole(request, reply):
                self.store(request, reply)
                if reply.meta["complete"] == 1:
                    del self._samples[name]

    def request(self, requests: Sequence[_NewRequest], until: float = math.inf) -> bool:
        """Make requests and store the whole replies; False if time was over. Raises RequestError."""
        for request in requests:
            name, reply = canonical(request), None
            while name not in self.replies:
                if reply is not None and self._clock() >= until:
                    self._is_late = True
                    return False
                if (reply := self._ask(request)) is None:
                    break
                if _is_whole(request, reply):
                    self.store(request, reply)
                    if reply.meta.get("complete", 1) < 1:
                        self._samples[name] = request
            self._done += 1
            if self._progress is not None:
                self._progress(min(self._done / self._total, 1.0))
        return True

    def left_out(self, seconds: float) -> str:
        """Return what is missing or a sample, and what to do, in the current language; "" for nothing."""
        sentences = []
        if self._missing:
            values = {"stored": self._parts - len(self._missing), "total": self._parts}
            names = ", ".join(self._missing)
            sentences.append(tr("{stored} of {total} parts are stored. Left out: {names}.", **values, names=names))
        if count := len(self._samples):
            maps = sum('"request":"tile"' in name for name in self.replies)
            text = tr("{count} of {total} maps are means over a sample of their rows.", count=count, total=maps)
            sentences.append(text)
        if self._is_late or self._samples:
            limit = f"{seconds:g}"
            sentences.append(tr("{option} allows more than {seconds} seconds.", option="--seconds", seconds=limit))
        return " ".join(sentences)

    def _offer(self, group: RequestGroup, until: float) -> None:
        """Store the largest choice of a group that fits."""
        before = self.replies, self._samples
        for requests in group.choices:
            self.replies, self._samples = dict(before[0]), dict(before[1])
            must = group.needed and requests is group.choices[-1]
            if not must and not self._fits(requests, until):
                continue
            if self.request(requests, until) and (must or self._bytes() <= self._max_bytes):
                return
        self.replies, self._samples = before
        if group.name:
            self._missing.append(group.name)

    def _fits(self, requests: Sequence[_NewRequest], until: float) -> bool:
        """Return whether there is room and time for the replies, by the first of them."""
        taken, began = self._bytes(), self._clock()
        if not self.request(requests[:1], until):
            return False
        now = self._clock()
        if now + (now - began) * len(requests) > until:
            self._is_late = True
            return False
        return (self._bytes() - taken) * len(requests) <= _GROUP_SHARE * (self._max_bytes - taken)

    def _bytes(self) -> int:
        return sum(map(len, self.replies.values()))

    def _ask(self, request: _NewRequest) -> Reply | None:
        """Return the reply; None if a difference does not exist, as of texts of other words."""
        try:
            return self._answer(dict(request))
        except RequestError:
            if request.get("side") != "difference":
                raise
            return None


def _is_whole(request: Request, reply: Reply) -> bool:
    """Return whether nothing is missing: a tile with a number in each cell may be a sample."""
    is_sample = request["request"] == "tile" and not any(np.isnan(array).any() for array in reply.arrays)
    return is_sample or reply.meta.get("complete", 1) == 1


def stored_reply(request: Request, reply: Reply) -> Reply:
    """Return a reply for a page without a program: `complete` is 1."""
    meta = {**reply.meta, **({"complete": 1} if "complete" in reply.meta else {})}
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
    if every := tuple(_predictions(about, math.inf)):
        yield RequestGroup(choices=(every, tuple(_predictions(about, _PREDICTED))), name=tr("predictions"))
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
        (layers, "row", tr("rows of patches in every layer")),
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


def _predictions(about: Mapping[str, Any], stop: float) -> Iterator[_NewRequest]:
    """Yield requests for the predictions of each side, in the blocks that the page asks for."""
    for side, values in about.get("predictions", {}).items():
        for first in range(0, min(values["tokens"], stop), MAX_PREDICTED):
            yield {"request": "predictions", "side": side, "first": first, "count": MAX_PREDICTED}


def _by_layer(about: Mapping[str, Any], name: str, **more: object) -> tuple[_NewRequest, ...]:
    """Return a request for each layer of each side."""
    return tuple({"request": name, **where, **more} for where in _layers(about))


def _with_maps(
    fixed: tuple[_NewRequest, ...], about: Mapping[str, Any], pooling: str, variant: Mapping[str, str]
) -> tuple[tuple[_NewRequest, ...], ...]:
    """Return those for every head's whole map as one tile, in several sizes, each followed by other requests."""
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
        if tiles and (choice := (*tiles, *fixed)) not in results:
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
