"""Any JSON value in any field of any request: the answer is a reply, or 400 with the field's name, and never an internal error.

The requests go through the whole ASGI application, without sockets, to a view of the bundled encoder-decoder, which runs texts.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import served
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import uwaga
from uwaga._base.options import field_rules
from uwaga.inspect.patches import PatchGrid
from uwaga.viewer import service as view_service
from uwaga.viewer.page.snapshot import SavedPage
from uwaga.viewer.server.access import AccessControl
from uwaga.viewer.server.app import application
from uwaga.viewer.server.limits import ConcurrencyLimiter
from uwaga.viewer.service import TABLE, ViewService
from uwaga.viewer.shown import Text
from uwaga.viewer.texts import RunRequest, TextRunner

Answer = tuple[int, str]  # status, and the error's message
Ask = Callable[[list[bytes]], list[Answer]]
PORT = 4000

LAYER = {"side": "0", "kind": "encoder", "layer": 0}
HEAD = {**LAYER, "head": 0, "merge": "tokens", "specials": "show"}
LINKS = {"kind": "encoder", "layer": 0, "head": 0, "queries": [0, 1], "keys": None}
EDITS = {
    "heads": [{"kind": "decoder", "layer": 1, "head": None, "value": 0.5}],
    "scores": [LINKS],
    "weights": [{**LINKS, "factor": 0.5}],
}
# One valid request of each kind, with all of its fields.
VALID: Mapping[str, dict[str, Any]] = {
    "about": {},
    "items": {"side": "0", "stack": "encoder", "merge": "tokens", "specials": "show", "first": 0, "count": 9},
    "overview": {**LAYER, "merge": "tokens", "specials": "show", "pooling": "sum"},
    "tile": {**HEAD, "pooling": "sum", "level": 0, "row": 0, "column": 0},
    "entry": {**HEAD, "query": 0, "key": 0},
    "row": {**HEAD, "query": 0},
    "column": {**HEAD, "key": 0},
    "heads": {**LAYER, "axis": "row", "item": 0},
    "picture": {},
    "statistics": LAYER,
    "labels": {**LAYER, "merge": "tokens", "specials": "show"},
    "why": {**HEAD, "query": 0, "key": 0, "than": 1},
    "predictions": {"side": "0", "first": 0, "count": 1},
    "run": {"text": "cat", "second": None, "target": "K AE", "edits": EDITS, "long": "first"},
    "stop": {},
    "page": {"exact": [{"request": "row", **HEAD, "query": 0}, {"request": "lesson", "text": "a pen"}], "language": "en", "lesson": False},
    "lesson": {
        "language": "pl",
        "text": "a pen",
        "tokens": ["a", "pen"],
        "x": [[1.0, 0.0], None],
        "settings": {
            "wq": [[1.0, 0.5], [0.5, 1.0]], "wk": [[1.0, 0.5], [0.5, 1.0]], "wv": [[1.0], [0.5]], "wo": [[1.0, 2.0]],
            "heads": 1, "scaled": True, "window": 1, "length": 2, "sharpness": 1.0, "payload": [[1.0], [2.0]],
            "sentences": ["a pen", ["a"]], "limit": 2, "order": [1, 0], "seed": 1, "w1": [[1.0], [1.0]], "w2": [[1.0, 1.0]],
            "norm": "pre", "written": ["a"], "steps": 1, "rate": 0.5,
        },
    },
}  # fmt: skip


def nested(depth: int, key: str | None) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value] if key is None else {key: value}
    return value


KEYS = st.sampled_from(
    ["request", "kind", "layer", "head", "queries", "value", "factor", "__class__", "", "tokens", "run"]
)
NUMBERS = st.one_of(
    st.integers(-3, 12),
    st.sampled_from([2**31 - 1, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**300, 10**400, -(10**4000)]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1e308, -1e308, 5e-324, -0.0, 0.5]),
)
STRINGS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=12),  # lone surrogates too
    st.sampled_from(
        ["", "0", "1", "difference", "decoder", "cross", "words", "hide", "max", "Tokens", "en", "ja", "mean", "\0"]
    ),
    st.sampled_from([65, 781, 60_000, 60_001]).map(lambda size: "\ud800" + "x" * (size - 1)),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, STRINGS)
VALUES = st.one_of(
    SCALARS,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | STRINGS, inner, max_size=4),
        max_leaves=8,
    ),
    st.builds(nested, st.sampled_from([1, 5, 98, 99, 100, 101, 300, 900]), st.none() | KEYS),
    st.builds(lambda scalar, count: [scalar] * count, SCALARS.filter(lambda x: len(str(x)) < 40), st.sampled_from([13, 65, 513, 3000])),
    st.sampled_from([[{}], [[]], [LINKS], [LINKS] * 300, [EDITS], EDITS, {}, []]),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values inside."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def requests_of(draw: st.DrawFn, ask: str) -> tuple[tuple[Any, ...], bytes]:
    """A valid request with one value exchanged, left out or added, and the path of that value."""
    request = json.loads(json.dumps({"request": ask, "run": 0, **VALID[ask]}))
    path = draw(st.sampled_from(list(places(request))))
    *above, last = path
    inner = request
    for key in above:
        inner = inner[key]
    how = draw(st.sampled_from(["exchange"] * 8 + ["leave out", "add"]))
    if how == "leave out":
        del inner[last]
    elif how == "exchange" or isinstance(inner, list):
        inner[last] = draw(VALUES)
    else:
        path = (*above, "more")
        inner["more"] = draw(VALUES)
    return path, json.dumps(request).encode()


@pytest.fixture(scope="module")
def ask_all() -> Iterator[Ask]:
    """Sends bodies to the application and returns its answers."""
    runner = TextRunner(Text("", model=uwaga.models.open("speller", dtype="float32"), new_tokens=3))
    typed = RunRequest("cat", "bat")
    run = runner.run(typed)
    run = replace(run, pixels=np.zeros((4, 4), np.uint8), grids={"encoder": PatchGrid(rows=1, columns=2)})
    service = ViewService(run, runner=runner, typed=typed)
    with application_of(service) as ask:
        yield ask
    service.close()


@contextmanager
def application_of(service: ViewService) -> Iterator[Ask]:
    access, limiter = AccessControl(PORT), ConcurrencyLimiter()
    app = application(service, title="a text", access=access, limiter=limiter)
    sent = {
        "host": f"127.0.0.1:{PORT}",
        "x-uwaga-token": access.token,
        "content-type": "application/json",
    }

    async def answer(body: bytes) -> Answer:
        got = await served.request(app, "POST", "/ask", [body], sent)
        return got.status, "" if got.status == 200 else got.json["error"]

    with asyncio.Runner() as loop:
        yield lambda bodies: [loop.run(answer(body)) for body in bodies]
    limiter.close()


@pytest.fixture(autouse=True)
def _short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a page that is saved, only the replies that it is asked for: the others take seconds, and are the same each time."""

    def page(answer: Any, *, exact: Any, language: str, lesson: bool) -> SavedPage:
        for request in exact:
            answer(dict(request))
        return SavedPage(language.encode(), "")

    monkeypatch.setattr(view_service, "make_snapshot", page)


def check(path: tuple[Any, ...], body: bytes, answer: Answer) -> None:
    status, message = answer
    assert status in (200, 400, 413), (path, body[:300], message)
    assert len(message) < 500
    if status == 400 and not message.startswith(("the request is not valid JSON", "the request is nested too deeply")):
        assert names(path) & set(re.findall(r"\w+", message)), (path, body[:300], message)


def names(path: tuple[Any, ...]) -> set[str]:
    """What an error may name: a field on the path; in a lesson, where shapes depend on each other, another one of it; in a request
    within a page that request's own."""
    results = {key for key in path if isinstance(key, str)}
    if "exact" in results:
        results |= set(TABLE)
    if results & VALID["lesson"].keys():
        results |= VALID["lesson"].keys() | VALID["lesson"]["settings"].keys()
    return results


@pytest.mark.slow
def test_the_valid_requests_are_all_there_are_and_valid(ask_all: Ask) -> None:
    assert {ask: set(fields) for ask, fields in VALID.items()} == {
        ask: set(field_rules(kind)) - {"run"} for ask, (_, _, kind, *_) in TABLE.items()
    }
    bodies = [json.dumps({"request": ask, **fields}).encode() for ask, fields in VALID.items()]
    assert dict(zip(VALID, ask_all(bodies), strict=True)) == dict.fromkeys(VALID, (200, ""))


def test_thousands_of_links_are_cut(ask_all: Ask) -> None:
    """More than Python has frames for, one within another."""
    links = [{**LINKS, "queries": [n % 60], "keys": [n * 7 % 60]} for n in range(2500)]
    request = {"request": "run", "text": "a" * 60, "second": None, "target": "K", "edits": {"scores": links}}
    assert ask_all([json.dumps(request).encode()]) == [(200, "")]


@pytest.mark.parametrize(
    ("examples", "size"), [pytest.param(10, 6, marks=pytest.mark.slow), pytest.param(250, 20, marks=pytest.mark.stress)]
)
@pytest.mark.parametrize("ask", TABLE)
def test_any_value_in_any_field(ask_all: Ask, ask: str, examples: int, size: int) -> None:
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(st.lists(requests_of(ask), min_size=size, max_size=size))
    def try_some(made: list[tuple[tuple[Any, ...], bytes]]) -> None:
        for (path, body), answer in zip(made, ask_all([body for _, body in made]), strict=True):
            check(path, body, answer)

    try_some()
