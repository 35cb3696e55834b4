"""The picture of a model that reads pictures: a patch under the pointer, where it looks, to the bit; keys, heads, layers, a saved page."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import Open, Serve, violations

pytest.importorskip("transformers", reason="transformers is not installed: the extra `test` brings it")
pytest.importorskip("PIL", reason="Pillow is not installed: transformers' image processors need it")
from tiny_vision import write_photo, write_vision

import uwaga
from uwaga.inspect import PatchGrid, pictures
from uwaga.inspect.pictures import PictureReading
from uwaga.viewer.api import ServedView
from uwaga.viewer.messages import Reply
from uwaga.viewer.page import snapshot

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> PictureReading:
    """8 by 8 patches of a DINOv2 with three registers."""
    folder = tmp_path_factory.mktemp("model")
    reader = pictures.load_vision(str(write_vision(folder / "dino")), "float32")
    return pictures.record_picture(reader, pictures.read_picture(write_photo(folder / "photo.png")), resolution=64)


@pytest.fixture
def served(reading: PictureReading, serve: Serve) -> ServedView:
    return serve(reading.recording, picture=reading.pixels, grid=reading.grid, title="photo.png")


def shown(page: Any, text: str) -> None:
    """Waits for the sentence about a patch, or about a token."""
    page.wait_for_function(
        "(text) => document.querySelector('.uwaga-picture .uwaga-headline')?.textContent.startsWith(text)", arg=text
    )


def at(page: Any, row: int, column: int, grid: PatchGrid) -> dict[str, float]:
    """The middle of a patch."""
    box = page.locator(".uwaga-photo").bounding_box()
    x, y = (column + 0.5) * box["width"] / grid.columns, (row + 0.5) * box["height"] / grid.rows
    return {"x": box["x"] + x, "y": box["y"] + y}


def hover(page: Any, row: int, column: int, grid: PatchGrid) -> None:
    page.mouse.move(**at(page, row, column, grid))
    shown(page, f"patch {row},{column} ")


def is_whole(request: Any) -> bool:
    """Whether its answer is of all that was asked for."""
    response = request.response()
    return response.ok and Reply.from_bytes(response.body()).meta["complete"] == 1


def percent(weight: float) -> str:
    number = f"{100 * weight:.1f}".removesuffix(".0")
    return "<0.1%" if 0 < 100 * weight < 0.05 else ">99.9%" if 0.9995 <= weight < 1 else f"{number}%"


def said(page: Any) -> dict[str, Any]:
    """What the page says of a token: the sentence, the line below it, and the shares of tokens that are no patch."""
    part = page.locator(".uwaga-picture")
    chips = part.locator(".uwaga-chips button").evaluate_all(
        "all => all.map((one) => [one.children[0].textContent, one.children[1].textContent])"
    )
    return {
        "headline": part.locator(".uwaga-headline").inner_text(),
        "story": part.locator(".uwaga-sub").nth(1).inner_text(),
        "chips": dict(chips),
    }


def expected(weights: torch.Tensor, grid: PatchGrid, item: int) -> dict[str, Any]:
    """The same, from the row of a token."""
    names = [*(name.strip("[]") for name in grid.special), *(f"patch {name}" for name in grid.tokens[grid.first :])]
    best = int(weights.argmax())
    own = None if item < grid.first else grid.cell(item)
    near = [
        grid.position(row, column)
        for row in range(grid.rows)
        for column in range(grid.columns)
        if own and max(abs(row - own[0]), abs(column - own[1])) == 1
    ]
    outside = float(weights[: grid.first].sum())
    on_near = float(weights[near].sum())
    far = float(weights.sum()) - outside - on_near - (float(weights[item]) if own else 0)
    parts = f"{percent(far)} on other patches, {percent(outside)} on tokens that are no patch."
    story = f"{percent(float(weights[item]))} on itself, {percent(on_near)} on the patches around it, {parts}"
    if not own:
        story = f"{percent(far)} on patches, {percent(outside)} on tokens that are no patch."
    most = percent(float(weights[best]))
    best_patch = grid.first + int(weights[grid.first :].argmax())
    if weights[best] <= 0.5 and weights.max() * len(weights) <= 1.5 and weights.min() * len(weights) >= 1 / 1.5:
        headline = f"{names[item]} spreads evenly over {len(weights)}: at most {most} each"
    elif best < grid.first:
        of_patches = f"of the patches, most on {names[best_patch]}: {percent(float(weights[best_patch]))}"
        headline = f"{names[item]} rests on {names[best]}: {most}; {of_patches}"
    else:
        headline = f"{names[item]} looks {'mostly' if weights[best] > 0.5 else 'most'} at {names[best]}: {most}"
    return {
        "headline": headline,
        "story": story,
        "chips": {names[at]: percent(float(weights[at])) for at in range(grid.first)},
    }


def row_of(reading: PictureReading, layer: int, item: int) -> torch.Tensor:
    """(H, K) in float64; its patches are those of `PatchGrid.looks_at`."""
    m, grid = reading.recording.maps["encoder", layer], reading.grid
    row = m[0, :, item]
    assert isinstance(row, torch.Tensor)
    assert torch.equal(row[:, grid.first :], grid.looks_at(m, item).flatten(1))
    return row.double()


def test_figures_are_those_of_the_grid(served: ServedView, reading: PictureReading, open_page: Open) -> None:
    grid = reading.grid
    page = open_page(served.address)
    shown(page, "CLS ")
    assert page.get_by_role("tab", name="Picture").get_attribute("aria-selected") == "true"
    assert said(page) == expected(row_of(reading, 1, 0).mean(0), grid, 0)
    for row, column in ((0, 0), (3, 5), (7, 7), (5, 0)):
        hover(page, row, column, grid)
        item = grid.position(row, column)
        assert said(page) == expected(row_of(reading, 1, item).mean(0), grid, item)
    # A head, picked among the small pictures; and another layer.
    page.locator(".uwaga-patch-heads button").nth(3).click()
    page.mouse.move(0, 0)
    shown(page, "CLS ")
    page.locator(".uwaga-dots button").first.click()
    page.locator(".uwaga-picture .uwaga-sub", has_text="layer 0, head 2").wait_for()
    hover(page, 2, 6, grid)
    item = grid.position(2, 6)
    assert said(page) == expected(row_of(reading, 0, item)[2], grid, item)
    # The weights that are drawn are those of the reply, to the bit: all heads of the token, as the grid reads them.
    box = page.locator(".uwaga-patch-mark[data-role=asks]").bounding_box()
    spot = at(page, 2, 6, grid)
    assert abs(box["x"] + box["width"] / 2 - spot["x"]) < 1
    assert abs(box["y"] + box["height"] / 2 - spot["y"]) < 1


def test_what_looks_at_a_patch(served: ServedView, reading: PictureReading, open_page: Open) -> None:
    grid, m = reading.grid, reading.recording.maps["encoder", 1]
    page = open_page(served.address)
    shown(page, "CLS ")
    page.mouse.click(**at(page, 4, 4, grid))
    shown(page, "patch 4,4 looks")
    page.get_by_role("button", name="Is looked at by").click()
    shown(page, "patch 4,4 gets most from ")
    column = m[0, :, :, grid.position(4, 4)].double().mean(0)
    best = int(column.argmax())
    name = f"patch {grid.tokens[best]}" if best >= grid.first else grid.tokens[best].strip("[]")
    assert said(page)["headline"] == f"patch 4,4 gets most from {name}: {percent(float(column[best]))}"
    assert (
        said(page)["story"]
        == f"All tokens together give it {percent(float(column.sum()))}; the mean over all tokens is 100%."
    )
    assert "key=" in page.evaluate("() => new Promise((done) => setTimeout(() => done(location.hash), 400))")


def test_the_overlay_is_in_one_colour(served: ServedView, reading: PictureReading, open_page: Open) -> None:
    """Grey where nothing looks, the colour of what is looked at where the most does; and the other one when the direction is turned."""
    grid = reading.grid
    page = open_page(served.address, color_scheme="light")
    hover(page, 3, 3, grid)
    weights = grid.looks_at(reading.recording.maps["encoder", 1], (3, 3)).double().mean(0)
    middles = """([rows, columns]) => {
      const { width, height } = document.querySelector(".uwaga-photo canvas");
      const { data } = document.querySelector(".uwaga-photo canvas").getContext("2d").getImageData(0, 0, width, height);
      const at = (row, column) => 4 * (Math.floor((row + 0.5) * height / rows) * width + Math.floor((column + 0.5) * width / columns));
      return Array.from({ length: rows * columns }, (_, cell) => [...data.slice(at(Math.floor(cell / columns), cell % columns)).slice(0, 3)]);
    }"""
    colours = page.evaluate(middles, [grid.rows, grid.columns])
    blue = {cell: other - red for cell, (red, _, other) in enumerate(colours)}
    order = weights.flatten().argsort(descending=True).tolist()
    assert blue[order[0]] > 100
    assert blue[order[-1]] < 20
    assert all(amount >= -1 for amount in blue.values())
    # The amount of colour grows with the weight.
    assert all(blue[one] >= blue[other] - 2 for one, other in pairwise(order))


def test_the_keyboard_alone_moves_the_patch(served: ServedView, reading: PictureReading, open_page: Open) -> None:
    page = open_page(served.address)
    shown(page, "CLS ")
    page.locator(".uwaga-photo").focus()
    page.keyboard.press("ArrowRight")
    shown(page, "patch 4,4 ")  # from the class token to the middle
    for key, patch in (
        ("ArrowRight", "4,5"),
        ("ArrowDown", "5,5"),
        ("ArrowLeft", "5,4"),
        ("ArrowUp", "4,4"),
        ("ArrowUp", "3,4"),
    ):
        page.keyboard.press(key)
        shown(page, f"patch {patch} ")
    for _ in range(9):
        page.keyboard.press("ArrowLeft")
    shown(page, "patch 3,0 ")  # it ends at the edge
    page.keyboard.press("Escape")
    shown(page, "CLS ")
    # Layers and heads: by the page's keys, and by arrows in their groups.
    page.keyboard.press("Shift+l")
    page.locator(".uwaga-sub", has_text="layer 0, mean of 4 heads").wait_for()
    page.keyboard.press("h")
    page.locator(".uwaga-sub", has_text="layer 0, head 1").wait_for()
    page.locator(".uwaga-patch-heads button[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.locator(".uwaga-sub", has_text="layer 0, head 2").wait_for()
    page.locator(".uwaga-chips button").nth(2).click()
    shown(page, "REG 1 ")


def test_the_address_keeps_patch_head_and_layer(served: ServedView, reading: PictureReading, open_page: Open) -> None:
    page = open_page(served.address)
    shown(page, "CLS ")
    page.mouse.click(**at(page, 6, 1, reading.grid))
    page.locator(".uwaga-patch-heads button").nth(2).click()
    page.locator(".uwaga-sub", has_text="layer 1, head 1").wait_for()
    page.wait_for_function("() => /query=53/.test(location.hash) && /mean=no/.test(location.hash)")
    page.reload()
    shown(page, "patch 6,1 ")
    page.locator(".uwaga-sub", has_text="layer 1, head 1").wait_for()
    # The same token is picked where patches are read as words.
    page.get_by_role("tab", name="Explore").click()
    page.locator(".uwaga-explore:not(.uwaga-picture) .uwaga-headline", has_text="6,1").wait_for()


def test_touch_moves_the_patch(served: ServedView, reading: PictureReading, open_page: Open) -> None:
    page = open_page(served.address, width=390, height=844, has_touch=True, is_mobile=True)
    shown(page, "CLS ")
    page.touchscreen.tap(**at(page, 1, 6, reading.grid))
    shown(page, "patch 1,6 ")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_a_saved_page_has_the_picture(
    reading: PictureReading, served: ServedView, open_page: Open, tmp_path: Path
) -> None:
    served.save(tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri())
    grid = reading.grid
    shown(page, "CLS ")
    assert said(page) == expected(row_of(reading, 1, 0).mean(0), grid, 0)
    for layer in (1, 0):
        page.locator(".uwaga-dots button").nth(layer).click()
        hover(page, 3, 5, grid)
        item = grid.position(3, 5)
        assert said(page) == expected(row_of(reading, layer, item).mean(0), grid, item)
        page.mouse.move(0, 0)
        shown(page, "CLS ")


def test_a_saved_page_of_many_patches_has_some(
    reading: PictureReading, served: ServedView, open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too much is stored for every other row and column: the pointer and the keys go to patches that there are."""
    monkeypatch.setattr("uwaga.viewer.page.snapshot._STRIDES", (4,))
    served.save(tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri())
    grid = reading.grid
    page.mouse.move(**at(page, 6, 3, grid))
    shown(page, "patch 4,0 ")
    item = grid.position(4, 0)
    assert said(page) == expected(row_of(reading, 1, item).mean(0), grid, item)
    page.mouse.click(**at(page, 6, 3, grid))
    page.mouse.move(0, 0)
    page.locator(".uwaga-photo").focus()
    page.keyboard.press("ArrowRight")
    shown(page, "patch 4,4 ")
    # An address may name a patch that is not there: both directions are, of the one that is shown for it.
    page = open_page(f"{(tmp_path / 'page.html').as_uri()}#tab=picture&query={grid.position(6, 3)}")
    shown(page, "patch 4,0 ")
    for name in ("Looks at", "Is looked at by"):
        assert page.get_by_role("button", name=name).is_enabled()


def test_a_layer_that_a_saved_page_does_not_hold_is_not_drawn(
    served: ServedView, open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = snapshot._heads
    monkeypatch.setattr(snapshot, "_heads", lambda about, layers, *options: whole(about, layers[:1], *options))
    served.save(tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri())
    parts = [
        page.locator(f".uwaga-picture {name}") for name in (".uwaga-photo canvas", ".uwaga-chips", ".uwaga-patch-heads")
    ]
    for layer, headline in ((1, "CLS "), (0, "This is not in the saved page."), (1, "CLS ")):
        page.get_by_role("button", name=f"layer {layer}", exact=True).click()
        shown(page, headline)
        assert [part.is_visible() for part in parts] == [layer == 1] * 3


def test_no_figure_is_of_a_part_of_the_heads(
    served: ServedView, reading: PictureReading, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column comes in steps; until it is whole, what was drawn before stays."""
    monkeypatch.setattr("uwaga.viewer.queries.heads._STEP", 300)
    monkeypatch.setattr("uwaga.viewer.queries.result._TIME_BUDGET", 0.0)
    page = open_page(served.address)
    shown(page, "CLS ")
    said = """() => { window.seen = []; new MutationObserver(() => window.seen.push(
      document.querySelector(".uwaga-picture .uwaga-headline").textContent))
      .observe(document.querySelector(".uwaga-picture"), {subtree: true, childList: true, characterData: true}); }"""
    page.evaluate(said)
    page.get_by_role("button", name="Is looked at by").click()
    page.wait_for_function("() => /^CLS gets most from .*%$/.test(window.seen.at(-1))")
    page.mouse.move(**at(page, 3, 3, reading.grid))
    page.wait_for_function("() => /^patch 3,3 gets most from .*%$/.test(window.seen.at(-1))")
    seen = [text for text in page.evaluate("window.seen") if "gets most from" in text]
    assert len(set(seen)) == 2, set(seen)


@pytest.mark.parametrize("family", ["vit", "registers"])
def test_a_picture_of_1024_pixels(family: str, open_page: Open, serve: Serve, tmp_path: Path) -> None:
    """4,096 patches: rows are asked as the pointer goes, each once; what is no longer asked for is dropped."""
    reader = pictures.load_vision(str(write_vision(tmp_path / family, family, patch_size=16)), "float32")
    reading = pictures.record_picture(
        reader, pictures.read_picture(write_photo(tmp_path / "photo.jpg", 1200, 1024)), resolution=1024
    )
    assert (reading.grid.rows, reading.grid.columns) == (64, 64)
    page = open_page(serve(reading.recording, picture=reading.pixels, grid=reading.grid, title="photo.jpg").address)
    shown(page, "CLS ")
    asked: list[str] = []
    answered: list[Any] = []
    page.on("request", lambda request: asked.append(request.post_data or ""))
    page.on("requestfinished", lambda request: answered.append(request))
    for step in range(64):
        page.mouse.move(**at(page, step, 63 - step, reading.grid))
    hover(page, 20, 40, reading.grid)
    item = reading.grid.position(20, 40)
    assert said(page) == expected(row_of(reading, 1, item).mean(0), reading.grid, item)
    # A server that is busy answers with a part, and is asked again: once with the whole.
    heads = [each.post_data for each in answered if '"heads"' in (each.post_data or "") and is_whole(each)]
    assert len(heads) == len(set(heads)) <= 65
    hover(page, 20, 41, reading.grid)
    before = len(asked)
    hover(page, 20, 40, reading.grid)  # from the cache
    assert not [each for each in asked[before:] if '"heads"' in each]


def test_words_over_a_picture(open_page: Open, serve: Serve) -> None:
    """A decoder that reads words and patches: a word's row over the picture, words beside it."""
    torch.manual_seed(0)
    x = torch.randn(2, 1, 2, 12, 8)
    maps = {
        ("encoder", 0): uwaga.AttentionMap(*torch.randn(2, 1, 2, 7, 8)),
        ("decoder", 0): uwaga.AttentionMap(*x, mask=uwaga.Causal()),
    }
    grids = {
        "encoder": PatchGrid(rows=2, columns=3, special=("[CLS]",)),
        "decoder": PatchGrid(rows=2, columns=3, start=2),
    }
    names = {"encoder": grids["encoder"].tokens, "decoder": ["<s>", "see", *["<image>"] * 6, "a", "red", "cat", "."]}
    page = open_page(serve(maps, tokens=names, picture=torch.rand(20, 30), grid=grids).address)
    page.locator(".uwaga-chips button", has_text="red").click()
    shown(page, "red ")
    row = maps["decoder", 0][0, :, 9].double().mean(0)
    chips = said(page)["chips"]
    assert chips["red"] == percent(float(row[9]))
    assert chips["see"] == percent(float(row[1]))
    assert (
        said(page)["story"]
        == f"{percent(float(row[2:8].sum()))} on patches, {percent(float(row.sum() - row[2:8].sum()))} on tokens that are no patch."
    )
    page.get_by_role("button", name="encoder").first.click()
    shown(page, "CLS ")


@pytest.mark.stress
def test_no_screen_has_a_violation(served: ServedView, reading: PictureReading, open_page: Open) -> None:
    for theme, width in (("light", 1400), ("dark", 1400), ("light", 800), ("light", 390), ("dark", 390)):
        page = open_page(served.address, width=width, height=900, color_scheme=theme)
        shown(page, "CLS ")
        assert violations(page) == [], (theme, width)
        hover(page, 0, 3, reading.grid)
        assert violations(page) == [], (theme, width)
        page.context.close()
