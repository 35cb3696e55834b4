"""Exported files: their numbers are those of the map."""

import csv
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from pages import MakeMaps, Open, Serve, save, words
from PIL import Image

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright")


@pytest.fixture
def open_page(open_page: Open) -> Open:
    """Opens a page at the first head with nothing picked: "Explore" would open at the most distinctive head and pick a link."""
    where = "tab=overview&layer=0"
    return lambda address, **options: open_page(f"{address}{'&' if '#' in address else '#'}{where}", **options)


def tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def test_exported_files_have_the_numbers(serve: Serve, open_page: Open, make_maps: MakeMaps, tmp_path: Path) -> None:
    maps, tokens = make_maps(30), words(30)
    tokens[3] = '=cmd("x")'
    page = open_page(serve(maps, tokens=tokens, model="org/tiny").address + "&map=wide", accept_downloads=True)
    tab(page, "Explore")
    page.locator(".uwaga-status-text", has_text="Exact weights").wait_for()
    head = maps["encoder", 0][0, 0].numpy()

    table = save(page, "csv", tmp_path)
    assert table.name == "uwaga_tiny_encoder_layer0_head0_weights_0-30x0-30.csv"
    lines = list(csv.reader(io.StringIO(table.read_text(encoding="utf-8-sig"), newline="")))
    assert lines[0][1:] == [f"{i} {token}" for i, token in enumerate(token.removeprefix("##") for token in tokens)]
    assert np.array_equal(np.array([line[1:] for line in lines[1:]], dtype=np.float32), head)

    with np.load(save(page, "npz", tmp_path)) as arrays:
        assert np.array_equal(arrays["weights"], head)

    image = Image.open(save(page, "png", tmp_path))
    assert image.width > 1000
    assert len(image.convert("RGB").getcolors(1 << 20) or []) > 20

    root = ElementTree.parse(save(page, "svg", tmp_path)).getroot()
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "org/tiny, encoder layer 0, head 0"
    assert {"quick", "brown", "fox"} <= set(texts)


@pytest.mark.stress
def test_a_picture_to_share_has_the_words_and_their_arcs(
    serve: Serve, open_page: Open, make_maps: MakeMaps, tmp_path: Path
) -> None:
    view = serve(make_maps(14), tokens=words(14), title="The quick brown fox", model="org/tiny")
    page = open_page(
        f"{view.address}&tab=explore&map=wide&layer=0&head=2&query=5&key=3", accept_downloads=True, width=1600
    )
    page.locator(".uwaga-status-text", has_text="Exact weights").wait_for()

    shared = save(page, "share", tmp_path)
    assert shared.name == "uwaga_tiny_encoder_layer0_head2_share.png"
    picture = Image.open(shared).convert("RGB")
    assert picture.size == (1200, 630)
    looks, looked_at = ((np.asarray(picture) == colour).all(-1) for colour in ((0xC4, 0x3E, 0x0A), (0x15, 0x56, 0xB0)))
    assert looks[470:530].any(), "the word that looks"
    assert looked_at[470:530].any(), "the word that it looks at"
    assert looks[380:452].any(), "its bar, from which the arcs come"
