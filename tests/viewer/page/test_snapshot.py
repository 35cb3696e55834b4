"""Snapshots, pages saved as one file: stored replies, their precision and size, and atomic writing."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from saved_pages import replies
from waiting import HANG

import uwaga
from uwaga.viewer.messages import Reply, RequestError
from uwaga.viewer.page.snapshot import (
    StoppedError,
    canonical,
    exact_requests,
    save_snapshot,
    snapshot_html,
    stored_reply,
)
from uwaga.viewer.service import ViewService
from uwaga.viewer.view_model import ViewModel

pytestmark = pytest.mark.usefixtures("small_front")

# A page with all that fits, however busy the machine is: `seconds` is 8.0 else.
whole_page = partial(snapshot_html, seconds=HANG)


def service(tokens: int = 20, layers: int = 2, heads: int = 3, width: int = 8, **options: Any) -> ViewService:
    torch.manual_seed(0)
    names = ["[CLS]", *("un" if i % 3 else "##seen" for i in range(tokens - 2)), "[SEP]"]
    maps = {
        ("encoder", layer): uwaga.AttentionMap(*torch.randn(2, heads, tokens, width), **options)
        for layer in range(layers)
    }
    return ViewService(ViewModel.create(maps, tokens=names, title="a text"))


def tile(**what: object) -> dict[str, object]:
    plain = {"side": "0", "kind": "encoder", "layer": 0, "head": 0, "merge": "tokens", "specials": "show"}
    return {"request": "tile", **plain, "pooling": "sum", "level": 0, "row": 0, "column": 0, **what}


def test_a_short_text_is_stored_completely_and_exactly() -> None:
    asked = service()
    result = replies(whole_page(asked.answer))
    for request, reply in result.items():
        expected = asked.answer(json.loads(request))
        if request == '{"request":"about"}':
            assert reply.meta == {**expected.meta, "live": False}
            continue
        assert {**reply.meta, "reached": None} == {**expected.meta, "reached": None}
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
    for shown, given, wanted in (
        (ViewService(ViewModel.create(maps)), {}, False),
        (ViewService(ViewModel.create(maps)), {"lesson": True}, True),
        (ViewService(ViewModel.create(maps), lesson={"request": "lesson"}), {}, True),
        (ViewService(ViewModel.empty()), {}, True),
    ):
        page = snapshot_html(shown.answer, **given)
        assert ('{"request":"lesson"}' in replies(page), b"lessonView" in page) == (wanted, wanted)
        assert replies(page)['{"request":"about"}'].meta["lesson"] == wanted


def test_coarse_cells_are_rounded_and_exact_weights_are_not() -> None:
    asked = service(tokens=600, layers=1, heads=1)
    result = replies(whole_page(asked.answer, max_bytes=1_000_000, exact=[tile()]))
    whole = [json.loads(request) for request in result if json.loads(request)["request"] == "tile"]
    assert {(each["pooling"], each["level"]) for each in whole} >= {("sum", 0), ("sum", 2), ("max", 2)}
    coarse = tile(level=2)
    rounded, exact = (reply.arrays[0] for reply in (result[canonical(coarse)], asked.answer(coarse)))
    assert 0 < np.abs(rounded / exact - 1).max() <= 2.0**-11
    np.testing.assert_array_equal(result[canonical(tile())].arrays[0], asked.answer(tile()).arrays[0])


def test_replies_that_do_not_fit_are_stored_coarser_or_left_out() -> None:
    asked = service(tokens=300, layers=2, heads=4)
    sizes = {}
    for largest in (100_000, 1_000_000, 10_000_000):
        page = whole_page(asked.answer, max_bytes=largest)
        plain = [json.loads(request) for request in replies(page)]
        tiles = [each for each in plain if each["request"] == "tile"]
        assert {each["head"] for each in tiles} == {
            0,
            1,
            2,
            3,
        }  # the top level of every head is kept, whatever the size
        sizes[largest] = (len(page), min(each["level"] for each in tiles), len(plain))
    assert [level for _, level, _ in sizes.values()] == sorted({level for _, level, _ in sizes.values()}, reverse=True)
    assert sizes[100_000][2] < sizes[10_000_000][2]
    assert all(size < 1.1 * largest for largest, (size, _, _) in sizes.items() if largest > 100_000)


def test_needed_replies_are_as_fine_as_fits_with_any_time_budget() -> None:
    """Sampling a tile takes as long for coarse cells as for fine ones."""
    page = snapshot_html(service(tokens=300, layers=1, heads=2).answer, seconds=0.0)
    results = [json.loads(request) for request in replies(page)]
    tiles = [each for each in results if each["request"] == "tile"]
    assert [(each["level"], each["pooling"], each["merge"], each["specials"]) for each in tiles] == [
        (1, "sum", "tokens", "show")
    ] * 2


def test_nothing_is_requested_twice() -> None:
    asked, real = [], service(tokens=20, layers=1)

    def answer(request: dict[str, object]) -> Reply:
        asked.append(canonical(request))
        return real.answer(request)

    snapshot_html(answer)
    assert len(asked) == len(set(asked))


@pytest.mark.slow
def test_a_text_of_512_tokens_in_a_model_of_144_heads_is_under_20_megabytes(one_thread) -> None:
    """Random scores compress worse than those of a model; queries of width 64 concentrate the weights as a model does."""
    page = whole_page(service(tokens=512, layers=12, heads=12, width=64).answer)
    assert len(page) < 19_600_000  # the page of this test has no front end, which takes less than the remaining 400 kB
    tiles = [json.loads(request) for request in replies(page) if '"tile"' in request]
    plain = [
        each for each in tiles if each["merge"] == "tokens" and each["specials"] == "show" and each["pooling"] == "sum"
    ]
    assert len(plain) == 144
    assert {each["level"] for each in plain} == {2}  # 128 x 128 cells


class Slow:
    """Every overview takes three requests; nothing else does."""

    def __init__(self, service: ViewService) -> None:
        self._service, self.asked = service, dict[str, int]()

    def answer(self, request: Mapping[str, object]) -> Reply:
        name = canonical(request)
        self.asked[name] = self.asked.get(name, 0) + 1
        reply = self._service.answer(request)
        if request["request"] == "overview":
            return Reply(meta={**reply.meta, "complete": self.asked[name] / 3}, arrays=reply.arrays)
        return reply


def test_incomplete_replies_are_requested_again() -> None:
    slow, told = Slow(service()), list[float]()
    result = replies(whole_page(slow.answer, progress=told.append))
    for name, reply in result.items():
        if '"overview"' in name:
            assert slow.asked[name] == 3
            assert (reply.meta["complete"], reply.meta["reached"]) == (1, 1)
    assert told == sorted(told)
    assert told[-1] == 1


def test_replies_cut_off_by_the_time_budget_hold_the_completed_fraction() -> None:
    """`complete` is 1, so that a page does not wait for more."""
    slow = Slow(service())
    result = replies(snapshot_html(slow.answer, seconds=0))
    reached = {reply.meta["reached"] for name, reply in result.items() if '"overview"' in name}
    assert reached <= {1 / 3, 2 / 3}
    assert {reply.meta["complete"] for name, reply in result.items() if '"overview"' in name} == {1}


def test_stop_ends_a_snapshot() -> None:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 5

    with pytest.raises(StoppedError):
        snapshot_html(service().answer, stop=stop)
    assert asked == 6


def test_closing_the_view_ends_a_snapshot() -> None:
    closed = service()
    closed.close()
    with pytest.raises(RequestError) as caught:
        snapshot_html(closed.answer)
    assert str(caught.value) == "the view is closed"


def test_rounding_keeps_nan_and_infinity() -> None:
    numbers = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1, 1.0001, 3.4e38, 1e-42], np.float32)
    rounded = stored_reply({"request": "overview"}, Reply(meta={}, arrays=(numbers,))).arrays[0]
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded[:6], numbers[:6])
    assert rounded[6] == 1
    assert np.isfinite(rounded[7])


@pytest.mark.parametrize(("tokens", "is_exact"), [(12, True), (64, True), (65, False)])
def test_cells_of_one_weight_are_stored_as_they_are(tokens: int, is_exact: bool) -> None:
    """A page shows them as weights: 0.2815174 is not to become 0.2815."""
    m = uwaga.AttentionMap(torch.randn(2, tokens, 4), torch.randn(2, tokens, 4))
    request = {"request": "overview", "side": "0", "kind": "encoder", "layer": 0, "pooling": "sum"}
    asked = {**request, "merge": "tokens", "specials": "show"}
    reply = ViewService(ViewModel.create(m)).answer(asked)
    stored = stored_reply(asked, reply).arrays[0]
    assert np.array_equal(stored, reply.arrays[0]) == is_exact
    assert np.allclose(stored, reply.arrays[0], rtol=1e-3)


def test_the_content_security_policy_allows_only_the_pages_own_script_and_style() -> None:
    page = snapshot_html(service().answer).decode()
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


def test_exact_heads_are_named_by_kind_layer_and_head() -> None:
    about = service(tokens=600).answer({"request": "about"}).meta
    whole = exact_requests(about, ("encoder", 1, 2))
    assert [(each["layer"], each["head"], each["row"], each["column"]) for each in whole] == [
        (1, 2, row, column) for row in range(3) for column in range(3)
    ]
    assert exact_requests(about, ("encoder", 1, 2, (255, 256), (0, 257))) == [whole[0], whole[1]]
    assert exact_requests(about, tile(row=2)) == [tile(row=2)]


@pytest.mark.parametrize(
    ("exact", "message"),
    [
        (("encoder", 2, 0), "view: exact: there is no head 0 of encoder layer 2"),
        (("cross", 0, 0), "view: exact: there is no head 0 of cross layer 0"),
        (("encoder", 0, 3), "view: exact: there is no head 3 of encoder layer 0"),
        (
            ("encoder", 0, 0, (0, 21), (0, 1)),
            "view: exact: queries 0:21 of encoder layer 0 are out of range: there are 20",
        ),
        (("encoder", 0, 0, (0, 1), (5, 5)), "view: exact: keys 5:5 of encoder layer 0 are out of range: there are 20"),
        (
            ("encoder", 0),
            "view: exact must be (kind, layer, head) or (kind, layer, head, rows, columns), not ('encoder', 0)",
        ),
    ],
    ids=lambda x: "",
)
def test_exact_heads_that_do_not_exist_are_refused(exact: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        save_snapshot(service(), tmp_path / "page.html", exact=[exact])
    assert str(caught.value) == message
    assert list(tmp_path.glob("*.html*")) == []


def test_more_exact_weights_than_the_limit_are_refused() -> None:
    about = {**service().answer({"request": "about"}).meta}
    about["sides"][0]["stacks"]["encoder"]["tokens"] = 5000
    with pytest.raises(ValueError) as caught:
        exact_requests(about, ("encoder", 0, 0))
    assert str(caught.value) == (
        "view: exact: head 0 of encoder layer 0 has more weights than the limit of 16,777,216 per page; "
        "give ranges of queries and keys"
    )


def test_a_page_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("the page before")
    with pytest.raises(ValueError, match="there is no head 0 of encoder layer 9"):
        save_snapshot(service(), path, exact=[("encoder", 9, 0)])
    assert path.read_text() == "the page before"
    save_snapshot(service(), path)
    assert path.read_bytes().startswith(b"<!doctype html>")
    with pytest.raises(FileNotFoundError):
        save_snapshot(service(), tmp_path / "nowhere" / "page.html")
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == ["page.html"]


def test_a_file_or_link_beside_the_page_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "page.html.unfinished").symlink_to(tmp_path / "mine")
    save_snapshot(service(), tmp_path / "page.html")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "page.html.unfinished").is_symlink()
