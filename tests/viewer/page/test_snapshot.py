"""Snapshots, pages saved as one file: stored replies, their precision and size, and atomic writing."""

import base64
import hashlib
import json
import re
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from saved_pages import about, replies
from waiting import HANG

import uwaga
from uwaga.viewer.messages import Reply
from uwaga.viewer.page.snapshot import canonical, make_snapshot, save_snapshot, stored_reply
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View

pytestmark = pytest.mark.usefixtures("small_front")

# A page with all that fits, however busy the machine is: `seconds` is 8.0 else.
whole_snapshot = partial(make_snapshot, seconds=HANG)


def whole_page(*arguments: Any, **options: Any) -> bytes:
    return whole_snapshot(*arguments, **options).html


def service(tokens: int = 20, layers: int = 2, heads: int = 3, width: int = 8, **options: Any) -> ViewService:
    torch.manual_seed(0)
    names = ["[CLS]", *("un" if i % 3 else "##seen" for i in range(tokens - 2)), "[SEP]"]
    maps = {
        ("encoder", layer): uwaga.AttentionMap(*torch.randn(2, heads, tokens, width), **options)
        for layer in range(layers)
    }
    return ViewService(View.of(Maps(maps, tokens=names, title="a text")))


def tile(**what: object) -> dict[str, object]:
    plain = {"side": "0", "kind": "encoder", "layer": 0, "head": 0, "merge": "tokens", "specials": "show"}
    return {"request": "tile", **plain, "pooling": "sum", "level": 0, "row": 0, "column": 0, **what}


def test_a_short_text_is_stored_completely_and_exactly() -> None:
    asked = service()
    result = replies(whole_page(asked.answer))
    for request, reply in result.items():
        expected = asked.answer(json.loads(request))
        if request == '{"request":"about"}':
            assert reply.meta == {**expected.meta, "live": False, "opens": "", "left_out": ""}
            continue
        assert reply.meta == expected.meta
        if json.loads(request)["request"] != "overview":
            for ours, theirs in zip(reply.arrays, expected.arrays, strict=True):
                np.testing.assert_array_equal(ours, theirs)
    kinds = [json.loads(request)["request"] for request in result]
    variants = 4  # words merged or not, special tokens hidden or not
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "about": 1,
        "items": variants,
        "statistics": 2,
        "labels": 2 * variants,
        "overview": 2 * (variants + 1),  # and the largest weights, without merging or hiding
        "tile": 2 * 3 * variants,
    }


def test_the_lesson_is_stored_with_its_script_or_not_at_all() -> None:
    maps = uwaga.AttentionMap(*torch.randn(2, 1, 4, 8))
    for shown, options, is_stored in (
        (ViewService(View.of(maps)), {}, False),
        (ViewService(View.of(maps)), {"lesson": True}, True),
        (ViewService(View.of(maps), lesson={"request": "lesson"}), {}, True),
        (ViewService(View()), {}, True),
    ):
        page = make_snapshot(shown.answer, **options).html
        assert ('{"request":"lesson"}' in replies(page), b"lessonView" in page) == (is_stored, is_stored)
        assert replies(page)['{"request":"about"}'].meta["lesson"] == is_stored


def test_coarse_cells_are_rounded_and_exact_weights_are_not() -> None:
    asked = service(tokens=600, layers=1, heads=1)
    result = replies(whole_page(asked.answer, max_bytes=1_000_000, exact=[tile()]))
    whole = [json.loads(request) for request in result if json.loads(request)["request"] == "tile"]
    assert {(request["pooling"], request["level"]) for request in whole} >= {("sum", 0), ("sum", 2), ("max", 2)}
    coarse = tile(level=2)
    rounded, exact = (reply.arrays[0] for reply in (result[canonical(coarse)], asked.answer(coarse)))
    assert 0 < np.abs(rounded / exact - 1).max() <= 2.0**-11
    np.testing.assert_array_equal(result[canonical(tile())].arrays[0], asked.answer(tile()).arrays[0])


def test_replies_that_do_not_fit_are_stored_coarser_or_left_out() -> None:
    asked = service(tokens=300, layers=1, heads=2)
    sizes = {}
    for largest in (100_000, 1_000_000, 10_000_000):
        page, left_out = whole_snapshot(asked.answer, max_bytes=largest)
        assert missing(page) == []
        assert ("Left out: " in left_out) == (largest == 100_000)
        plain = [json.loads(request) for request in replies(page)]
        tiles = [tile for tile in plain if tile["request"] == "tile"]
        assert {tile["head"] for tile in tiles} == set(range(2))  # the top level of each is kept, whatever the size
        sizes[largest] = (len(page), min(tile["level"] for tile in tiles), len(plain))
    assert [level for _, level, _ in sizes.values()] == sorted({level for _, level, _ in sizes.values()}, reverse=True)
    assert sizes[100_000][2] < sizes[10_000_000][2]
    assert all(size < 1.1 * largest for largest, (size, _, _) in sizes.items() if largest > 100_000)


def test_needed_replies_are_as_fine_as_fits_with_any_time_budget() -> None:
    """Sampling a tile takes as long for coarse cells as for fine ones."""
    page = make_snapshot(service(tokens=300, layers=1, heads=2).answer, seconds=0.0).html
    results = [json.loads(request) for request in replies(page)]
    tiles = [result for result in results if result["request"] == "tile"]
    assert [(tile["level"], tile["pooling"], tile["merge"], tile["specials"]) for tile in tiles] == [
        (1, "sum", "tokens", "show")
    ] * 2


@pytest.mark.stress
@pytest.mark.slow
def test_a_text_of_512_tokens_in_a_model_of_144_heads_is_under_20_megabytes(one_thread) -> None:
    """Random scores compress worse than those of a model; queries of width 64 concentrate the weights as a model does."""
    page = whole_page(service(tokens=512, layers=12, heads=12, width=64).answer)
    assert len(page) < 19_600_000  # the page of this test has no front end, which takes less than the remaining 400 kB
    tiles = [json.loads(request) for request in replies(page) if '"tile"' in request]
    plain = [
        tile for tile in tiles if tile["merge"] == "tokens" and tile["specials"] == "show" and tile["pooling"] == "sum"
    ]
    assert len(plain) == 144
    assert {tile["level"] for tile in plain} == {2}  # 128 x 128 cells


class Slow:
    """Every reply takes three requests: before, statistics and labels are empty, and cells of a head are NaN."""

    def __init__(self, service: ViewService, samples: bool = False) -> None:
        self.service, self.samples, self.asked = service, samples, dict[str, int]()

    def answer(self, request: Mapping[str, object]) -> Reply:
        name = canonical(request)
        self.asked[name] = self.asked.get(name, 0) + 1
        reply, part = self.service.answer(request), self.asked[name] / 3
        if "complete" not in reply.meta or part >= 1:
            return reply
        arrays = reply.arrays
        if not (self.samples and request["request"] == "tile"):
            arrays = tuple(np.full_like(array, np.nan) for array in arrays)
        empty = {"columns": {"peak": [None] * 3}} if request["request"] == "statistics" else {"labels": []}
        return Reply(meta={**reply.meta, **({} if arrays else empty), "complete": part}, arrays=arrays)


class Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def missing(page: bytes) -> list[str]:
    """The replies of a page in which a head or a row is missing, and the heads without one."""
    stored = replies(page)
    wrong = []
    for name, reply in stored.items():
        rows = zip(*reply.meta.get("columns", {}).values(), strict=True)
        if any(array.dtype == np.float32 and np.isnan(array).any() for array in reply.arrays):
            wrong.append(f"cells of {name}")
        if any(set(row) == {None} for row in rows) or reply.meta.get("labels") == []:
            wrong.append(f"rows of {name}")
    plain = {"merge": "tokens", "specials": "show", "pooling": "sum"}
    for side in about(stored)["sides"]:
        for layer_map in side["maps"]:
            where = {"side": side["id"], "kind": layer_map["kind"], "layer": layer_map["layer"]}
            needed = [{"request": "statistics", **where}, {"request": "overview", **where, **plain}]
            wrong += [canonical(request) for request in needed if canonical(request) not in stored]
            tiles = [json.loads(name) for name in stored if '"request":"tile"' in name]
            heads = {tile["head"] for tile in tiles if tile == {**tile, **where, **plain}}
            wrong += [f"{where} head {head}" for head in set(range(layer_map["heads"])) - heads]
    return wrong


@pytest.mark.parametrize("seconds", [0, 40, HANG])
def test_every_head_and_row_is_stored_whole_however_slow_the_replies_are(seconds: float) -> None:
    """The first replies hold nothing; what a limit leaves out is said, and is not stored in part."""
    slow = Slow(service())
    page, left_out = make_snapshot(slow.answer, seconds=seconds, clock=Clock())
    assert missing(page) == []
    stored = replies(page)
    assert about(stored)["left_out"] == left_out
    shown = {(tile["merge"], tile["specials"]) for name in stored if (tile := json.loads(name))["request"] == "tile"}
    variants = {"words": "words", "hide": "tokens without special ones"}
    expected = {
        0: "1 of 5 parts are stored. Left out: largest weights, tokens without special ones, words, words without special ones. "
        "--seconds allows more than 0 seconds.",
        HANG: "",
    }
    if seconds in expected:
        assert left_out == expected[seconds]
    assert (("words", "show") in shown) == (f" {variants['words']}" not in left_out)
    assert (("tokens", "hide") in shown) == (variants["hide"] not in left_out)
    needed = [name for name in slow.asked if '"specials":"show"' in name and '"merge":"tokens"' in name]
    assert {slow.asked[name] for name in needed if '"tile"' in name or '"labels"' in name} == {3}


def test_maps_that_stayed_samples_are_counted() -> None:
    """Their cells are known from the first reply on, and computed in full while there is time."""
    for seconds, counted in ((0, 3), (HANG, 0)):
        slow = Slow(service(tokens=70, layers=1, heads=3), samples=True)
        told: list[float] = []
        page, left_out = make_snapshot(
            slow.answer, seconds=seconds, progress=told.append, clock=Clock() if not seconds else time.monotonic
        )
        tiles = {name: reply for name, reply in replies(page).items() if '"request":"tile"' in name}
        assert {reply.meta["complete"] for reply in tiles.values()} == {1}  # so that a page does not wait for more
        sampled = f"{counted} of 3 maps are means over a sample of their rows. --seconds allows more than 0 seconds."
        assert left_out.endswith(sampled if counted else "")
        assert bool(counted) == bool(left_out)
        assert missing(page) == []
        assert told == sorted(told)
        assert told[-1] == 1


def test_texts_of_other_words_are_stored_without_the_difference_of_their_words() -> None:
    torch.manual_seed(0)
    maps = [uwaga.AttentionMap(*torch.randn(2, 2, 4, 8)) for _ in range(2)]
    texts = ["[CLS]", "un", "##seen", "[SEP]"], ["[CLS]", "the", "cat", "[SEP]"]
    both = View.of(Maps(maps[0], tokens=texts[0]), Maps(maps[1], tokens=texts[1]))
    page, left_out = whole_snapshot(ViewService(both).answer)
    assert (missing(page), left_out) == ([], "")
    sides = {request["side"] for name in replies(page) if (request := json.loads(name)).get("merge") == "words"}
    of_words = {
        request["side"]
        for name in replies(page)
        if (request := json.loads(name)).get("merge") == "words" and request["request"] == "tile"
    }
    assert (sides, of_words) == ({"0", "1", "difference"}, {"0", "1"})


def test_an_overview_of_few_tokens_has_their_exact_weights() -> None:
    """The page shows a cell of it as the weight of a word, with all its digits, as a served page does."""
    for tokens, is_exact in ((20, True), (64, True), (65, False)):
        asked = service(tokens=tokens, layers=1)
        where = {"side": "0", "kind": "encoder", "layer": 0, "merge": "tokens", "specials": "show"}
        request = {"request": "overview", **where, "pooling": "sum"}
        ours, theirs = (
            reply.arrays[0] for reply in (replies(whole_page(asked.answer))[canonical(request)], asked.answer(request))
        )
        assert np.array_equal(ours, theirs) == is_exact


def test_rounding_keeps_nan_and_infinity() -> None:
    numbers = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1, 1.0001, 3.4e38, 1e-42], np.float32)
    rounded = stored_reply({"request": "overview"}, Reply(meta={}, arrays=(numbers,))).arrays[0]
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded[:6], numbers[:6])
    assert rounded[6] == 1
    assert np.isfinite(rounded[7])


def test_the_content_security_policy_allows_only_the_pages_own_script_and_style() -> None:
    page = make_snapshot(service().answer).html.decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert policy[1] == (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; style-src 'sha256-{digest(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    # The policy stands before every element that it applies to.
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script")
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page


def test_a_page_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("the page before")
    with pytest.raises(ValueError, match="there is no encoder layer 9"):
        save_snapshot(service(), path, exact=[tile(layer=9)])
    assert path.read_text() == "the page before"
    save_snapshot(service(), path)
    assert path.read_bytes().startswith(b"<!doctype html>")
