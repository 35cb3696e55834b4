"""The text view and exported files: numbers equal those of the map, and tokens are never markup."""

import csv
import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import uwaga
from uwaga.viewer.api import View

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright")

Serve = Callable[..., View]
Open = Callable[..., Any]
Maps = Callable[..., dict[tuple[str, int], uwaga.AttentionMap]]

HOSTILE = [
    "<script>window.harmed=1</script>",
    '"><img src=x onerror="window.harmed=1">',
    "\u202eevil",
    "a\x07b",
    "",
    "=1+1",
]


def words(count: int) -> list[str]:
    text = ["the", "quick", "brown", "fox", "jump", "##s", "over", "a", "lazy", "dog", ",", "and", "looks", "back", "."]
    return ["[CLS]", *(text[i % len(text)] for i in range(count - 2)), "[SEP]"]


@pytest.fixture
def open_page(open_page: Open) -> Open:
    """Opens a page at the first head with nothing picked: "Explore" would open at the most distinctive head and pick a link."""
    where = "tab=overview&layer=0"
    return lambda address, **options: open_page(f"{address}{'&' if '#' in address else '#'}{where}", **options)


def tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def titled(page: Any, place: str, item: int) -> None:
    page.locator(place).filter(has_text=f"({item:,})").wait_for()


def counted(page: Any, place: str, count: int) -> None:
    playwright.expect(page.locator(place)).to_have_count(count)


def listed(page: Any, hue: str) -> dict[int, float]:
    """The list of the largest weights on the page: position and weight."""
    place = page.locator(f'.uwaga-text-strongest[data-hue="{hue}"]')
    place.locator("li").first.wait_for()
    buttons = place.locator("[data-weight]")
    return buttons.evaluate_all(
        "all => Object.fromEntries(all.map(e => [Number(e.dataset.goes), Number(e.dataset.weight)]))"
    )


def strongest(weights: torch.Tensor, count: int) -> dict[str, float]:
    order = torch.argsort(weights, descending=True, stable=True)[:count]
    return {str(int(i)): float(weights[i]) for i in order}


def drag(page: Any, first: str, last: str) -> None:
    start, stop = (page.locator(f"#uwaga-text-{each}").bounding_box() for each in (first, last))
    page.mouse.move(start["x"] + 3, start["y"] + 8)
    page.mouse.down()
    page.mouse.move(stop["x"] + 3, stop["y"] + 8, steps=5)
    # The drag is handled once per animation frame.
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    page.mouse.up()


def masses(page: Any) -> np.ndarray:
    page.locator("td[data-mass]").first.wait_for()
    rows = page.locator(".uwaga-text-span-table tbody tr")
    return np.array(
        rows.evaluate_all(
            "all => all.map(r => [...r.querySelectorAll('[data-mass]')].map(e => Number(e.dataset.mass)))"
        )
    )


def test_a_selected_token_shows_its_row_and_its_column(serve: Serve, open_page: Open, make_maps: Maps) -> None:
    maps = make_maps(90)
    page = open_page(serve(maps, tokens=words(90)).address)
    tab(page, "Text")
    page.click("#uwaga-text-both-12")
    head = maps["encoder", 0][0, 0]
    assert listed(page, "query") == strongest(head[12], 20)
    page.get_by_role("button", name="attended by").click()
    assert listed(page, "key") == strongest(head[:, 12], 20)
    page.keyboard.press("x")  # both
    page.keyboard.press("ArrowRight")
    titled(page, "[data-hue=query] h3", 13)
    counted(page, ".uwaga-text-list li", 20)
    assert listed(page, "query") == strongest(head[13], 10)
    assert listed(page, "key") == strongest(head[:, 13], 10)


def test_tokens_are_shaded_by_weight_and_hovering_shows_it(serve: Serve, open_page: Open, make_maps: Maps) -> None:
    maps = make_maps(40)
    page = open_page(serve(maps, tokens=words(40)).address)
    tab(page, "Text")
    page.click("#uwaga-text-both-7")
    listed(page, "query")
    row = maps["encoder", 0][0, 0, 7]
    bands = page.locator(".uwaga-text-token").evaluate_all("all => all.map(e => Number(e.dataset.row))")
    expected = np.searchsorted([0.01, 0.03, 0.08, 0.2, 0.5], row.numpy(), side="right")
    expected[[0, -1]] = 0  # special tokens are grey bars
    assert bands == expected.tolist()
    assert len(set(bands)) > 3
    page.hover("#uwaga-text-both-9")
    assert f"{float(row[9]):.6g}" in page.locator(".uwaga-text-tooltip").inner_text()


def test_spans_and_their_masses(serve: Serve, open_page: Open, make_maps: Maps) -> None:
    maps = make_maps(120)
    page = open_page(serve(maps, tokens=words(120)).address)
    tab(page, "Text")
    page.wait_for_selector("#uwaga-text-both-30")
    drag(page, "both-20", "both-24")
    drag(page, "both-40", "both-41")
    counted(page, "td[data-mass]", 4)
    expected = maps["encoder", 0].select(0, 0).between([(20, 25), (40, 42)])
    assert np.allclose(masses(page), expected.numpy(), rtol=1e-5)
    page.click("#uwaga-text-both-60")
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    page.locator('tbody .uwaga-text-span-name[title="items 60 to 63"]').wait_for()
    counted(page, "td[data-mass]", 9)
    expected = maps["encoder", 0].select(0, 0).between([(20, 25), (40, 42), (60, 64)])
    assert np.allclose(masses(page), expected.numpy(), rtol=1e-5)
    page.locator(".uwaga-text-span-remove").first.click()
    counted(page, "td[data-mass]", 4)
    assert np.allclose(masses(page), expected[1:, 1:].numpy(), rtol=1e-5)


def test_cross_attention_has_both_texts(serve: Serve, open_page: Open) -> None:
    torch.manual_seed(1)
    sizes = {"encoder": (30, 30), "decoder": (12, 12), "cross": (12, 30)}
    maps = {
        (kind, 0): uwaga.AttentionMap(2 * torch.randn(1, 2, queries, 16), torch.randn(1, 2, keys, 16))
        for kind, (queries, keys) in sizes.items()
    }
    page = open_page(serve(maps, tokens={"encoder": words(30), "decoder": words(12)}).address)
    page.get_by_role("button", name="cross-attention").click()
    tab(page, "Text")
    page.click("#uwaga-text-query-5")
    page.click("#uwaga-text-key-20")
    counted(page, ".uwaga-text-list li", 20)
    head = maps["cross", 0][0, 0]
    assert listed(page, "query") == strongest(head[5], 10)
    assert listed(page, "key") == strongest(head[:, 20], 10)
    drag(page, "query-2", "query-4")
    drag(page, "key-10", "key-11")
    counted(page, "td[data-mass]", 1)
    assert np.allclose(masses(page), float(head[2:5, 10:12].sum(-1).mean()), rtol=1e-5)


def test_without_special_tokens_the_weights_are_renormalised(serve: Serve, open_page: Open, make_maps: Maps) -> None:
    maps = make_maps(40)
    page = open_page(serve(maps, tokens=words(40)).address)
    tab(page, "Text")
    page.click("#uwaga-text-both-7")
    listed(page, "query")
    page.get_by_role("button", name="View").click()
    page.get_by_role("button", name="Left out").click()
    titled(page, "[data-hue=query] h3", 6)  # the same token
    row = maps["encoder", 0][0, 0, 7, 1:-1]
    result, expected = listed(page, "query"), strongest(row / row.sum(), 20)
    assert list(result) == sorted(expected, key=int)
    assert np.allclose([result[i] for i in expected], list(expected.values()), rtol=1e-5)


def test_hostile_tokens_are_shown_as_text_everywhere(
    serve: Serve, open_page: Open, make_maps: Maps, tmp_path: Path
) -> None:
    tokens = ["[CLS]", *HOSTILE, "\u05e9\u05dc\u05d5\u05dd", "\u65e5\u672c", "end"]
    page = open_page(serve(make_maps(len(tokens)), tokens=tokens).address, accept_downloads=True)
    tab(page, "Text")
    page.click("#uwaga-text-both-1")
    listed(page, "query")
    shown = page.locator(".uwaga-text-token").all_inner_texts()
    assert shown[1:7] == [HOSTILE[0], HOSTILE[1], "<U+202E>evil", "a<U+0007>b", "\u2205", "=1+1"]
    drag(page, "both-1", "both-3")
    masses(page)
    root = ElementTree.parse(save(page, "svg", tmp_path)).getroot()
    assert HOSTILE[0][:20] in "".join(root.itertext())
    tags = {each.tag.rpartition("}")[2] for each in root.iter()}
    assert tags <= {"svg", "title", "rect", "path", "text", "line"}
    assert page.evaluate("window.harmed") is None
    assert page.locator("#uwaga script, #uwaga img").count() == 0


def strongest_passages(row: torch.Tensor, count: int) -> list[tuple[int, float]]:
    """The peak and the mass of the passages of 17 tokens with the largest mass, none over another."""
    weights = row.double().numpy()
    masses, result = np.convolve(weights, np.ones(17), "same"), []
    for _ in range(count):
        middle = int(masses.argmax())
        first, stop = max(0, middle - 8), middle + 9
        result.append((first + int(weights[first:stop].argmax()), float(weights[first:stop].sum())))
        masses[max(0, first - 8) : stop + 8] = 0
    return result


def test_a_text_of_a_hundred_thousand_tokens_scrolls_and_is_searched(serve: Serve, open_page: Open) -> None:
    torch.manual_seed(2)
    count = 100_000
    m = uwaga.AttentionMap(2 * torch.randn(1, 1, count, 16), torch.randn(1, 1, count, 16), mask=uwaga.Causal())
    tokens = words(count)
    tokens[77_777] = "needle"
    page = open_page(serve({("decoder", 0): m}, tokens=tokens).address)
    tab(page, "Text")
    page.click("#uwaga-text-both-12")
    listed(page, "query")
    page.keyboard.press("Control+End")
    page.wait_for_selector(f"#uwaga-text-both-{count - 1}")
    titled(page, "[data-hue=query] h3", 99999)
    counted(page, ".uwaga-text-list li", 20)
    passages = strongest_passages(m[0, 0, count - 1], 20)
    assert listed(page, "query") == pytest.approx({str(peak): mass for peak, mass in passages}, rel=1e-9)
    peaks = page.locator(".uwaga-text-peak")
    assert peaks.count() == 5
    peaks.first.click()
    highest = passages[0][0]
    assert f"at {highest:,}:" in peaks.first.get_attribute("aria-label")
    page.wait_for_selector(f"#uwaga-text-both-{highest}")
    page.keyboard.press("/")
    page.keyboard.type("needle")
    page.wait_for_selector(".uwaga-text-found")
    assert page.locator(".uwaga-text-found").inner_text() == "needle"
    assert page.locator(".uwaga-text-token").count() < 3000  # only lines near the viewport are in the DOM
    strip = page.locator(".uwaga-text-minimap").bounding_box()
    page.mouse.click(strip["x"] + 5, strip["y"] + 2)
    page.wait_for_selector("#uwaga-text-both-0")


def save(page: Any, kind: str, folder: Path) -> Path:
    page.get_by_role("button", name="Share", exact=True).click()
    with page.expect_download() as download:
        page.click(f'[data-export="{kind}"]')
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_exported_files_have_the_numbers(serve: Serve, open_page: Open, make_maps: Maps, tmp_path: Path) -> None:
    maps, tokens = make_maps(30), words(30)
    tokens[3] = '=cmd("x")'
    page = open_page(serve(maps, tokens=tokens, model="org/tiny").address, accept_downloads=True)
    tab(page, "Text")
    page.click("#uwaga-text-both-12")
    listed(page, "query")
    head = maps["encoder", 0][0, 0].numpy()

    table = save(page, "csv", tmp_path)
    assert table.name == "uwaga_tiny_encoder_layer0_head0_weights_0-30x0-30.csv"
    lines = list(csv.reader(io.StringIO(table.read_text(encoding="utf-8-sig"), newline="")))
    assert lines[0][1:] == [f"{i} {token}" for i, token in enumerate(each.removeprefix("##") for each in tokens)]
    assert np.array_equal(np.array([line[1:] for line in lines[1:]], dtype=np.float32), head)

    with np.load(save(page, "npz", tmp_path)) as arrays:
        assert np.array_equal(arrays["weights"], head)

    image = Image.open(save(page, "png", tmp_path))
    assert image.width > 1000
    assert len(image.convert("RGB").getcolors(1 << 20) or []) > 20

    root = ElementTree.parse(save(page, "svg", tmp_path)).getroot()
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "org/tiny, encoder layer 0, head 0"
    assert texts[-len(tokens) :] == [each.removeprefix("##") for each in tokens]


def test_pictures_are_filled_titled_and_named(serve: Serve, open_page: Open, make_maps: Maps, tmp_path: Path) -> None:
    view = serve(make_maps(14), tokens=words(14), title="The quick brown fox", model="org/tiny")
    page = open_page(f"{view.address}&tab=map&head=2&query=5&key=3", accept_downloads=True, width=1600)
    page.locator(".uwaga-status-text", has_text="Exact weights").wait_for()

    drawn = np.asarray(Image.open(save(page, "png", tmp_path)).convert("L"))
    used = np.flatnonzero((drawn != drawn[0, 0]).any(0))
    assert drawn.shape[1] - used[-1] < 60, "nothing is blank at the right"
    root = ElementTree.parse(save(page, "svg", tmp_path)).getroot()
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:2] == ["org/tiny, encoder layer 0, head 2", "The quick brown fox"]

    shared = save(page, "share", tmp_path)
    assert shared.name == "uwaga_tiny_encoder_layer0_head2_share.png"
    picture = Image.open(shared).convert("RGB")
    assert picture.size == (1200, 630)
    looks, looked_at = ((np.asarray(picture) == colour).all(-1) for colour in ((0xC4, 0x3E, 0x0A), (0x15, 0x56, 0xB0)))
    assert looks[470:530].any(), "the word that looks"
    assert looked_at[470:530].any(), "the word that it looks at"
    assert looks[380:452].any(), "its bar, from which the arcs come"

    assert save(page, "page", tmp_path).name == "uwaga_tiny_The-quick-brown-fox.html"
    with np.load(save(page, "npz", tmp_path)) as arrays:
        assert {name: arrays[name].item() for name in ("model", "text", "layer", "head")} == {
            "model": "org/tiny",
            "text": "The quick brown fox",
            "layer": 0,
            "head": 2,
        }


def test_the_csv_of_the_table_is_the_table(serve: Serve, open_page: Open, make_maps: Maps, tmp_path: Path) -> None:
    page = open_page(
        f"{serve(make_maps(20), tokens=words(20), model='org/tiny').address}&tab=table", accept_downloads=True
    )
    page.get_by_text("6 heads").wait_for()
    table = save(page, "csv", tmp_path)
    assert table.name == "uwaga_tiny_heads.csv"
    lines = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [(line["layer"], line["head"]) for line in lines] == [(str(i), str(j)) for i in range(2) for j in range(3)]
    assert all(0 <= float(line["peak"]) <= 1 for line in lines)


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="there is no poppler")
def test_exported_pdfs_are_read_by_poppler(serve: Serve, open_page: Open, make_maps: Maps, tmp_path: Path) -> None:
    tokens = words(30)
    tokens[5] = "\u65e5\u672c"  # not in Helvetica: a picture
    page = open_page(serve(make_maps(30), tokens=tokens).address, accept_downloads=True)
    tab(page, "Text")
    page.click("#uwaga-text-both-12")
    listed(page, "query")
    path = save(page, "pdf", tmp_path)
    text = subprocess.run(["pdftotext", path, "-"], capture_output=True, text=True, check=True)
    assert text.stderr == ""
    assert "quick" in text.stdout
    assert "[CLS]" in text.stdout
    drawn = subprocess.run(
        ["pdftoppm", "-png", "-singlefile", path, path.with_suffix("")], capture_output=True, text=True, check=True
    )
    assert drawn.stderr == ""
    assert len(Image.open(path.with_suffix(".png")).convert("RGB").getcolors(1 << 20) or []) > 20


def test_a_saved_page_has_exact_weights(serve: Serve, open_page: Open, make_maps: Maps, tmp_path: Path) -> None:
    maps = make_maps(60)
    page = open_page(serve(maps, tokens=words(60)).address, accept_downloads=True)
    path = save(page, "page", tmp_path)
    kept = open_page(path.as_uri())
    tab(kept, "Text")
    kept.click("#uwaga-text-both-12")
    head = maps["encoder", 0][0, 0]
    assert listed(kept, "query") == strongest(head[12], 20)
    drag(kept, "both-20", "both-24")
    assert masses(kept).item() == pytest.approx(float(head[20:25, 20:25].sum(-1).mean()), rel=1e-5)


def test_two_texts_side_by_side_share_the_selection(serve: Serve, open_page: Open, make_maps: Maps) -> None:
    first = make_maps(30)
    second = {name: uwaga.AttentionMap(2 * torch.randn(1, 3, 30, 64), torch.randn(1, 3, 30, 64)) for name in first}
    other = ["[CLS]", *(f"w{i}" for i in range(28)), "[SEP]"]
    page = open_page(serve(first, tokens=words(30), second=second, second_tokens=other).address)
    tab(page, "Text")
    page.keyboard.press("c")  # only the second text
    page.keyboard.press("c")
    page.click("#uwaga-text-both-7")
    halves = page.locator(".uwaga-half")
    counted(page, ".uwaga-half:visible", 2)
    titles = halves.locator('[data-hue="query"] h3').all_inner_texts()
    assert titles == [f"What {words(30)[7]} (7) attends to", "What w6 (7) attends to"]
    for half, maps in enumerate((first, second)):
        result = halves.nth(half).locator("li [data-weight]").first
        row = maps["encoder", 0][0, 0, 7]
        assert int(result.get_attribute("data-goes")) == int(row.argmax())
        assert float(result.get_attribute("data-weight")) == float(row.max())
    page.keyboard.press("x")
    counted(page, '.uwaga-half [data-hue="key"]:visible', 2)
    page.keyboard.press("c")  # the difference: one text again
    counted(page, ".uwaga-half:visible", 1)


def test_an_exported_overview_has_the_layers_outside_the_viewport_too(
    serve: Serve, open_page: Open, make_maps: Maps, tmp_path: Path
) -> None:
    page = open_page(
        f"{serve(make_maps(24, layers=12, heads=2)).address}&tab=overview", accept_downloads=True, height=400
    )
    page.locator(".uwaga-overview").wait_for()
    root = ElementTree.parse(save(page, "svg", tmp_path)).getroot()
    pictures = [each for each in root.iter() if each.tag.endswith("image")]
    assert len(pictures) == 24
