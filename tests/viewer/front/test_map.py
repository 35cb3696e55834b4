"""The map view in a browser: numbers, also of exported files, are those of the map, and both renderers draw the same."""

import csv
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from factories import factory
from pages import MakeMaps, Open, Serve, save, words
from PIL import Image
from waiting import HANG
from written import number_of

from uwaga.viewer import ServedView

pytestmark = pytest.mark.slow

WORDS = ["[CLS]", "un", "##seen", "the", "<b>cat</b>", "sat", "\u202eon", "the", "mat", ".", "[SEP]"]
POINTED, PICKED = "[data-map-line=here]", "[data-map-line=picked]"
_NO_WEBGL = """
const context = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
  return kind === "webgl2" ? null : context.call(this, kind, ...rest);
};
"""


@factory
def open_map(
    open_page: Open, /, handle: ServedView, layer: int = 0, head: int = 0, more: str = "", **options: Any
) -> Any:
    """Opens the map view of a head, and waits until its weights are exact."""
    page = open_page(f"{handle.address}&tab=explore&map=wide&kind=encoder&layer={layer}&head={head}{more}", **options)
    page.locator(".uwaga-map-stage").wait_for()
    wait_until_exact(page)
    return page


def wait_until_exact(page: Any) -> None:
    """Waits until every tile in view is complete, and until the texts around the map have arrived: they move it by fractions of a pixel."""
    page.locator(".uwaga-headline", has_text="%").wait_for()
    page.locator(f"{PICKED} [data-rank]").first.wait_for(state="attached")
    page.locator(".uwaga-map-frame:not([data-sharpening])").wait_for()
    page.locator(".uwaga-status-text", has_text="Exact weights").or_(
        page.locator(".uwaga-status-text", has_text="A cell is")
    ).wait_for(state="attached")
    page.wait_for_timeout(300)


def until(page: Any, holds: Callable[[], bool]) -> None:
    """Waits until a condition holds: under load the page repaints late."""
    end = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < end
        page.wait_for_timeout(100)


def changed(page: Any, before: np.ndarray) -> np.ndarray:
    """The pixels of the stage once they differ from `before`."""
    until(page, lambda: not np.array_equal(pixels(page), before))
    return pixels(page)


def pixels(page: Any) -> np.ndarray:
    """The pixels of the stage, (height, width, 3)."""
    shot = page.locator(".uwaga-map-stage").screenshot()
    return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)


# In one call: between two calls the readout may change to another cell.
_READ = """
([line, side, at]) => {
  const pair = document.querySelector(`${line} .uwaga-map-pair`);
  const values = document.querySelector(`${line} [data-side='${side}']`);
  if (!pair || !values?.querySelector("[data-rank]")) return null;
  const place = [pair.dataset.query, pair.dataset.key].map(Number);
  if (at && String(at) !== String(place)) return null;
  return [...place, ...["weight", "score", "rank"].map((name) => values.querySelector(`[data-${name}]`)?.dataset[name])];
}
"""


def read(
    page: Any, line: str, side: str = "0", at: tuple[int, int] | None = None
) -> tuple[int, int, float, float, int]:
    """Query, key, weight, score and rank of a line of the readout, once it is at the query and key `at`."""
    shown = page.wait_for_function(_READ, arg=[line, side, at and list(at)]).json_value()
    query, key, weight, score, rank = shown
    return query, key, float(weight), float(score), int(rank)


def test_the_readout_has_the_weights_scores_and_ranks_of_the_map(
    serve: Serve, open_map: Any, make_maps: MakeMaps
) -> None:
    maps = make_maps(len(WORDS))
    page = open_map(serve(maps, tokens=WORDS), layer=1, head=2)
    m = maps["encoder", 1][0, 2]
    scores = maps["encoder", 1].scores[0, 2]
    page.locator(".uwaga-map-frame").focus()
    page.keyboard.press("Control+Home")
    for at in range(4):
        _, _, weight, score, rank = read(page, POINTED, at=(at, at))
        assert weight == float(m[at, at])
        assert rank == int((m[at] > m[at, at]).sum()) + 1
        assert score == pytest.approx(float(scores[at, at]), rel=1e-5)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")


def test_exported_files_have_the_numbers(serve: Serve, open_map: Any, make_maps: MakeMaps, tmp_path: Path) -> None:
    maps, tokens = make_maps(30), words(30)
    tokens[3] = '=cmd("x")'
    page = open_map(serve(maps, tokens=tokens, model="org/tiny"), accept_downloads=True)
    head = maps["encoder", 0][0, 0].numpy()

    table = save(page, "csv", tmp_path)
    assert table.name == "uwaga_tiny_encoder_layer0_head0_weights_0-30x0-30.csv"
    lines = list(csv.reader(io.StringIO(table.read_text(encoding="utf-8-sig"), newline="")))
    assert lines[0][1:] == [f"{i} {token}" for i, token in enumerate(token.removeprefix("##") for token in tokens)]
    assert np.array_equal(np.array([line[1:] for line in lines[1:]], dtype=np.float32), head)

    image = Image.open(save(page, "png", tmp_path))
    assert image.width > 1000
    assert len(image.convert("RGB").getcolors(1 << 20) or []) > 20

    root = ElementTree.parse(save(page, "svg", tmp_path)).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "org/tiny, encoder layer 0, head 0"
    assert {"quick", "brown", "fox"} <= set(texts)


@pytest.mark.stress
def test_the_map_is_there_as_a_table(serve: Serve, open_map: Any, make_maps: MakeMaps) -> None:
    """On a phone, too; hostile tokens are text."""
    maps = make_maps(len(WORDS))
    page = open_map(serve(maps, tokens=WORDS), layer=1, head=2, more="&query=4&key=6", width=360, height=740)
    box = page.locator(".uwaga-map-stage").bounding_box()
    assert box["width"] > 300
    assert box["height"] > 190
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    line = page.locator(f"{PICKED} .uwaga-map-pair")
    assert "<b>cat</b>" in line.inner_text()
    assert "<U+202E>on" in line.inner_text()
    assert line.locator("b").count() == 0
    page.get_by_role("button", name="As table").click()
    region = page.get_by_role("region", name="The weights in view as a table")
    until(page, lambda: region.locator("td[title]").count() == len(WORDS) ** 2)
    shown = [number_of(cell.get_attribute("title")) for cell in region.locator("td[title]").all()]
    np.testing.assert_allclose(shown, maps["encoder", 1][0, 2].to_dense().flatten(), rtol=1e-5)
    assert region.locator("th[scope=row]").count() == region.locator("th[scope=col]").count() == len(WORDS)
    page.get_by_role("button", name="As table").click()
    region.wait_for(state="hidden")


VARIANTS = ("", "&view=30.3,41.7,7.31", "&colour=grey,log,0,largest,0.001,nosink", "&theme=dark&view=3,5,44")


@pytest.mark.stress
def test_both_renderers_draw_the_same(serve: Serve, open_map: Any, make_maps: MakeMaps) -> None:
    """Four settings, given by the fragment of the URL, in one page with WebGL2 and then without it."""
    page = open_map(serve(make_maps(400)), width=1600, height=1000)
    fast = {more: variant(page, more) for more in VARIANTS}
    page.add_init_script(_NO_WEBGL)
    page.reload()
    wait_until_exact(page)
    for more in VARIANTS:
        plain = variant(page, more)
        assert fast[more].shape == plain.shape, more
        assert colours(fast[more]) > 20, more
        differing = (np.abs(fast[more] - plain).max(axis=-1) > 3).mean()
        # Where the edge of a cell is at the centre of a pixel, the renderers round differently.
        assert differing < 0.002, more


def variant(page: Any, more: str) -> np.ndarray:
    """The pixels of the stage with other settings, once they no longer change."""
    page.evaluate("hash => { location.hash = hash; }", f"tab=explore&map=wide&kind=encoder&layer=0&head=0{more}")
    wait_until_exact(page)
    shown: list[np.ndarray] = [pixels(page)]

    def is_still() -> bool:
        page.wait_for_timeout(150)
        shown.append(pixels(page))
        return np.array_equal(shown[-2], shown[-1])

    until(page, is_still)
    return shown[-1]


def colours(shown: np.ndarray) -> int:
    """The number of different colours."""
    return len(np.unique(shown @ np.array([1 << 16, 1 << 8, 1])))


@pytest.mark.stress
def test_a_webgl_context_that_is_lost_is_restored_or_replaced(serve: Serve, open_map: Any, make_maps: MakeMaps) -> None:
    page = open_map(serve(make_maps(120)))
    before = pixels(page)
    page.evaluate(
        """() => new Promise((lost) => {
      const canvas = document.querySelector(".uwaga-map-cells");
      canvas.addEventListener("webglcontextlost", () => lost());
      window.lose = canvas.getContext("webgl2").getExtension("WEBGL_lose_context");
      window.lose.loseContext();
    })"""
    )
    page.evaluate("window.lose.restoreContext()")
    until(page, lambda: (np.abs(pixels(page) - before).max(axis=-1) > 3).mean() < 0.001)
    page.evaluate("window.lose.loseContext()")
    page.wait_for_timeout(2200)  # then the canvas renderer draws
    until(page, lambda: (np.abs(pixels(page) - before).max(axis=-1) > 3).mean() < 0.002)
