"""A long text as prose: what the picked word looks at carries its exact share, the rest is folded, and all parts add up to 1."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pages import HOSTILE, MakeMaps, Open, Serve, words
from written import number_of

import uwaga
from uwaga.viewer import ServedView

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright")

# What the text says: the words with a share, the rest of each paragraph, and the folded strips.
_READ = """() => {
  const text = [...document.querySelectorAll(".uwaga-reading:not([hidden])")].at(-1);
  const all = (selector) => [...text.querySelectorAll(selector)];
  return {
    words: all(".uwaga-word").filter((one) => one.querySelector("sup")).map((one) => [Number(one.dataset.item), one.querySelector("sup").textContent]),
    rests: all(".uwaga-rest").map((one) => one.textContent),
    folds: all(".uwaga-fold").map((one) => [Number(one.dataset.first), Number(one.dataset.end), one.textContent]),
    shown: [...new Set(all("[data-item]").map((one) => Number(one.dataset.item)))],
  };
}"""


def read(page: Any) -> dict[str, Any]:
    page.wait_for_function("() => document.querySelector('.uwaga-reading sup')")
    return page.evaluate(_READ)  # type: ignore[no-any-return]


def share(text: str) -> float:
    """A share as it is written: in percent, to a tenth; what a mask hides has none."""
    if text.strip() == "masked":
        return 0.0
    return number_of(re.search(r"[<>]?[\d.,\u2212+]+", text)[0].lstrip("<>+"))  # type: ignore[index]


def assert_is_row(page: Any, row: torch.Tensor, rests: set[int] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
    """Every share on the page is that of the row, each token is on the page or in a strip, and all is 100 %."""
    said, weights = read(page), row.double().numpy()
    for item, written in said["words"]:
        assert share(written) == pytest.approx(100 * weights[item], abs=0.051)
    folded = [item for first, end, _ in said["folds"] for item in range(first, end)]
    assert sorted([*said["shown"], *folded]) == list(range(len(weights)))
    for first, end, written in said["folds"]:
        inside = [item for item in range(first, end) if item in rests]
        shares = [
            weights[first:end].sum() - weights[inside].sum(),
            *([weights[inside].sum()] if weights[inside].sum() >= 0.0005 else []),
        ]
        assert list(map(share, written.split("\u00b7")[1:])) == pytest.approx(
            [100 * weight for weight in shares], abs=0.051
        )
        assert number_of(written.split()[0]) == end - first
    off = np.setdiff1d(np.arange(len(weights)), list(rests))
    largest = weights[off].max()
    assert {item for item, _ in said["words"]} >= {
        int(item) for item in said["shown"] if weights[item] >= min(0.01, largest / 8) and item in off
    }
    parts = [*(share(text) for _, text in said["words"]), *map(share, said["rests"])]
    parts += [share(part) for *_, text in said["folds"] for part in text.split("\u00b7")[1:]]
    assert sum(parts) == pytest.approx(100, abs=0.051 * len(parts) + 0.1)
    return said


def opened(open_page: Open, view: ServedView, more: str = "", **options: Any) -> Any:
    page = open_page(f"{view.address}{'&' if '#' in view.address else '#'}tab=explore&layer=0&head=0{more}", **options)
    page.locator(".uwaga-reading:visible").first.wait_for()
    return page


def bars(page: Any, title: str) -> dict[int, float]:
    place = page.locator(".uwaga-links", has_text=title)
    place.locator("[data-weight]").first.wait_for()
    return {
        int(item): float(weight)
        for item, weight in place.locator("[data-weight]").evaluate_all(
            "all => all.map((one) => [one.dataset.key, one.dataset.weight])"
        )
    }


def strongest(weights: torch.Tensor, count: int = 8) -> dict[int, float]:
    return {int(item): float(weights[item]) for item in torch.argsort(weights, descending=True, stable=True)[:count]}


@pytest.mark.stress
@pytest.mark.parametrize("count", [90, 20_000])
def test_a_picked_word_has_its_row_with_every_share_exact(serve: Serve, open_page: Open, count: int) -> None:
    torch.manual_seed(3)
    m = uwaga.AttentionMap(2 * torch.randn(1, 1, count, 16), torch.randn(1, 1, count, 16), mask=uwaga.Causal())
    query = count - 7
    page = opened(open_page, serve({("decoder", 0): m}, tokens=words(count)), f"&kind=decoder&query={query}")
    said = assert_is_row(page, m[0, 0, query], rests={0})
    assert len(said["shown"]) < 1200  # of twenty thousand
    assert bars(page, "What") == pytest.approx(strongest(m[0, 0, query]), abs=0)
    # The next word, by the keys; the text stays in view.
    page.locator(".uwaga-reading:visible").focus()
    page.keyboard.press("ArrowLeft")
    page.locator(f'.uwaga-word-picked[data-item="{query - 1}"]').wait_for()
    page.wait_for_function("() => document.querySelector('.uwaga-reading sup')")
    assert_is_row(page, m[0, 0, query - 1], rests={0})


@pytest.mark.stress
def test_links_are_walked_with_n_and_p_and_who_looks_at_a_word_is_listed(
    serve: Serve, open_page: Open, make_maps: MakeMaps
) -> None:
    maps = make_maps(300)
    page = opened(open_page, serve(maps, tokens=words(300)), "&query=150")
    row = maps["encoder", 0][0, 0, 150]
    linked = [item for item, weight in enumerate(row.tolist()) if weight >= 0.01 and item not in (0, 299)]
    read(page)
    page.locator(".uwaga-reading:visible").focus()
    following = next(item for item in linked if item > 150)
    page.keyboard.press("n")
    page.locator(f'.uwaga-word-marked[data-item="{following}"]').wait_for()
    column = maps["encoder", 0][0, 0, :, following]
    assert bars(page, "What attends to") == pytest.approx(strongest(column), abs=0)
    page.keyboard.press("p")
    page.locator(f'.uwaga-word-marked[data-item="{linked[linked.index(following) - 1]}"]').wait_for()
    # An arc for each of them, in the margin.
    arcs = page.locator(".uwaga-margin [data-key]").evaluate_all("all => all.map((one) => Number(one.dataset.key))")
    shown = {item for item, _ in page.evaluate(_READ)["words"]}
    assert {item for item in linked if item != 150 and item in shown} <= set(arcs)


@pytest.mark.stress
def test_strips_open_and_what_is_searched_is_found_in_them(serve: Serve, open_page: Open) -> None:
    torch.manual_seed(2)
    count = 100_000
    m = uwaga.AttentionMap(2 * torch.randn(1, 1, count, 16), torch.randn(1, 1, count, 16), mask=uwaga.Causal())
    tokens = words(count)
    tokens[77_777] = "needle"
    page = opened(open_page, serve({("decoder", 0): m}, tokens=tokens), "&kind=decoder&query=300")
    said = assert_is_row(page, m[0, 0, 300], rests={0})
    assert said["folds"][-1][1] == count
    page.locator(".uwaga-fold").last.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("(first) => document.querySelector(`[data-item='${first}']`)", arg=said["folds"][-1][0])
    page.keyboard.press("f")
    page.keyboard.type("needle")
    page.locator('.uwaga-word-found[data-item="77777"]').wait_for()
    assert page.locator(".uwaga-word-found").inner_text() == "needle"
    assert page.locator(".uwaga-find [role=status]").inner_text() == "1 of 1"
    assert page.locator(".uwaga-word").count() < 3000
    place = page.locator(".uwaga-word-found").bounding_box()
    assert 0 < place["y"] < 800
    page.locator(".uwaga-word-found").click()
    page.locator('.uwaga-word-picked[data-item="77777"]').wait_for()


def test_a_saved_page_opens_the_head_that_was_named_with_exact_weights_of_hostile_tokens(
    serve: Serve, open_page: Open, make_maps: MakeMaps, tmp_path: Path
) -> None:
    tokens = ["[CLS]", *HOSTILE, "\u05e9\u05dc\u05d5\u05dd", "\u65e5\u672c", "named", *["end"] * 22, "[SEP]"]
    maps = make_maps(len(tokens))
    view = serve(maps, tokens=tokens)
    view.open_at("1.2", "named")
    view.save(tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri())
    row = maps["encoder", 1][0, 2, tokens.index("named")]
    assert_is_row(page, row, rests={0, len(tokens) - 1})
    # A file has weights of 16 bits.
    assert bars(page, "What") == pytest.approx(strongest(row), rel=2**-11)
    shown = page.locator(".uwaga-word").evaluate_all("all => all.map((one) => one.firstChild.textContent)")
    assert shown[1:7] == [HOSTILE[0], HOSTILE[1], "<U+202E>evil", "a<U+0007>b", "\u2205", "=1+1"]
    assert page.evaluate("window.harmed") is None
    assert page.locator("#uwaga script, #uwaga img").count() == 0
