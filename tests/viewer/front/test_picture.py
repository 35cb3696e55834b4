"""The picture of a model that reads pictures: a patch under the pointer, where it looks, to the bit; keys, heads, layers, a saved page."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import MakeMaps, Open, Serve
from saved_pages import read_reply

import uwaga
from uwaga.inspect import PatchGrid
from uwaga.viewer import ServedView

pytestmark = pytest.mark.slow

GRID = PatchGrid(rows=8, columns=8, special=("[CLS]", "[REG 0]", "[REG 1]", "[REG 2]"))
Maps = dict[tuple[str, int], uwaga.AttentionMap]


def pictured(serve: Serve, maps: Maps, grid: PatchGrid) -> ServedView:
    picture = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    return serve(maps, tokens=grid.tokens, picture=picture, grid=grid, title="photo.png")


@pytest.fixture
def maps(make_maps: MakeMaps) -> Maps:
    return make_maps(len(GRID.tokens), heads=4)


@pytest.fixture
def served(maps: Maps, serve: Serve) -> ServedView:
    return pictured(serve, maps, GRID)


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
    return response.ok and read_reply(response.body()).meta["complete"] == 1


def percent(weight: float) -> str:
    number = f"{100 * weight:.1f}".removesuffix(".0")
    return "<0.1%" if 0 < 100 * weight < 0.05 else ">99.9%" if 0.9995 <= weight < 1 else f"{number}%"


def chips(page: Any) -> dict[str, str]:
    """Return the shares of tokens that are no patch, by their names."""
    shown = page.locator(".uwaga-picture .uwaga-chips button").evaluate_all(
        "all => all.map((one) => [one.children[0].textContent, one.children[1].textContent])"
    )
    return dict(shown)


def assert_says(page: Any, weights: torch.Tensor, grid: PatchGrid, item: int) -> None:
    """The sentence about a token, the line below it and the shares of tokens that are no patch are of its row of weights."""
    names = [*(name.strip("[]") for name in grid.special), *(f"patch {name}" for name in grid.tokens[grid.first :])]
    best = int(weights.argmax())
    headline = page.locator(".uwaga-picture .uwaga-headline").inner_text()
    assert headline.startswith(f"{names[item]} ")
    assert names[best] in headline or " spreads evenly over " in headline
    assert percent(float(weights[best])) in headline
    story = page.locator(".uwaga-picture .uwaga-sub").nth(1).inner_text()
    assert story.endswith(f" {percent(float(weights[: grid.first].sum()))} on tokens that are no patch.")
    assert item < grid.first or story.startswith(f"{percent(float(weights[item]))} on itself, ")
    assert chips(page) == {names[at]: percent(float(weights[at])) for at in range(grid.first)}


def row_of(maps: Maps, layer: int, item: int, grid: PatchGrid = GRID) -> torch.Tensor:
    """(H, K) in float64; its patches are those of `PatchGrid.looks_at`."""
    m = maps["encoder", layer]
    row = m[0, :, item]
    assert isinstance(row, torch.Tensor)
    assert torch.equal(row[:, grid.first :], grid.looks_at(m, item).flatten(1))
    return row.double()


def test_figures_are_those_of_the_grid(served: ServedView, maps: Maps, open_page: Open) -> None:
    grid = GRID
    m = maps["encoder", 1]
    page = open_page(served.address)
    shown(page, "CLS ")
    assert page.get_by_role("tab", name="Picture").get_attribute("aria-selected") == "true"
    assert_says(page, row_of(maps, 1, 0).mean(0), grid, 0)
    for row, column in ((0, 0), (3, 5), (7, 7), (5, 0)):
        hover(page, row, column, grid)
        item = grid.position(row, column)
        assert_says(page, row_of(maps, 1, item).mean(0), grid, item)
    page.mouse.click(**at(page, 4, 4, grid))
    shown(page, "patch 4,4 looks")
    page.get_by_role("button", name="Is looked at by").click()
    shown(page, "patch 4,4 gets most from ")
    column = m[0, :, :, grid.position(4, 4)].double().mean(0)
    assert page.locator(".uwaga-picture .uwaga-headline").inner_text().endswith(f": {percent(float(column.max()))}")
    page.get_by_role("button", name="Looks at").click()
    # A head, picked among the small pictures; and another layer.
    page.locator(".uwaga-patch-heads button").nth(3).click()
    page.locator(".uwaga-dots button").first.click()
    page.locator(".uwaga-picture .uwaga-sub", has_text="layer 0, head 2").wait_for()
    hover(page, 2, 6, grid)
    item = grid.position(2, 6)
    assert_says(page, row_of(maps, 0, item)[2], grid, item)
    box = page.locator(".uwaga-patch-mark[data-role=asks]").bounding_box()
    spot = at(page, 2, 6, grid)
    assert abs(box["x"] + box["width"] / 2 - spot["x"]) < 1
    assert abs(box["y"] + box["height"] / 2 - spot["y"]) < 1
    # The address keeps the patch, the head and the layer; the same token is picked where patches are read as words.
    page.mouse.click(**at(page, 6, 1, grid))
    page.wait_for_function("() => /query=53/.test(location.hash) && /mean=no/.test(location.hash)")
    page.reload()
    shown(page, "patch 6,1 ")
    page.locator(".uwaga-sub", has_text="layer 0, head 2").wait_for()
    page.get_by_role("tab", name="Explore").click()
    page.locator(".uwaga-explore:not(.uwaga-picture) .uwaga-headline", has_text="6,1").wait_for()


@pytest.mark.stress
def test_the_overlay_is_in_one_colour(served: ServedView, maps: Maps, open_page: Open) -> None:
    """Grey where nothing looks, the colour of what is looked at where the most does; and the other one when the direction is turned."""
    grid = GRID
    page = open_page(served.address, color_scheme="light")
    hover(page, 3, 3, grid)
    weights = grid.looks_at(maps["encoder", 1], (3, 3)).double().mean(0)
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


def test_a_saved_page_has_the_picture_and_the_keyboard_alone_moves_the_patch(
    maps: Maps, served: ServedView, open_page: Open, tmp_path: Path
) -> None:
    served.save(tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri())
    grid = GRID
    shown(page, "CLS ")
    for layer in (1, 0):
        page.locator(".uwaga-dots button").nth(layer).click()
        hover(page, 3, 5, grid)
        item = grid.position(3, 5)
        assert_says(page, row_of(maps, layer, item).mean(0), grid, item)
        page.mouse.move(0, 0)
        shown(page, "CLS ")
    page.locator(".uwaga-dots button").nth(1).click()
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


@pytest.mark.stress
def test_touch_moves_the_patch(served: ServedView, open_page: Open) -> None:
    page = open_page(served.address, width=390, height=844, has_touch=True, is_mobile=True)
    shown(page, "CLS ")
    page.touchscreen.tap(**at(page, 1, 6, GRID))
    shown(page, "patch 1,6 ")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


@pytest.mark.stress
def test_a_picture_of_4096_patches(open_page: Open, serve: Serve, make_maps: MakeMaps) -> None:
    """Rows are asked as the pointer goes, each once; what is no longer asked for is dropped."""
    grid = PatchGrid(rows=64, columns=64, special=("[CLS]",))
    maps = make_maps(len(grid.tokens))
    page = open_page(pictured(serve, maps, grid).address)
    shown(page, "CLS ")
    asked: list[str] = []
    answered: list[Any] = []
    page.on("request", lambda request: asked.append(request.post_data or ""))
    page.on("requestfinished", lambda request: answered.append(request))
    for step in range(64):
        page.mouse.move(**at(page, step, 63 - step, grid))
    hover(page, 20, 40, grid)
    item = grid.position(20, 40)
    assert_says(page, row_of(maps, 1, item, grid).mean(0), grid, item)
    # A server that is busy answers with a part, and is asked again: once with the whole.
    heads = [one.post_data for one in answered if '"heads"' in (one.post_data or "") and is_whole(one)]
    assert len(heads) == len(set(heads)) <= 65
    hover(page, 20, 41, grid)
    before = len(asked)
    hover(page, 20, 40, grid)  # from the cache
    assert not [body for body in asked[before:] if '"heads"' in body]


@pytest.mark.stress
def test_a_saved_page_of_many_patches_has_some(
    open_page: Open, serve: Serve, make_maps: MakeMaps, tmp_path: Path
) -> None:
    """What is too much is stored for some rows and columns: the pointer and the keys go to patches that there are."""
    grid = PatchGrid(rows=40, columns=40, special=("[CLS]",))
    maps = make_maps(len(grid.tokens), layers=1, heads=5)
    pictured(serve, maps, grid).save(tmp_path / "page.html", seconds=0)
    page = open_page((tmp_path / "page.html").as_uri())
    page.mouse.move(**at(page, 6, 3, grid))
    shown(page, "patch 4,0 ")
    item = grid.position(4, 0)
    assert_says(page, row_of(maps, 0, item, grid).mean(0), grid, item)
    page.mouse.click(**at(page, 6, 3, grid))
    page.mouse.move(0, 0)
    page.locator(".uwaga-photo").focus()
    page.keyboard.press("ArrowRight")
    shown(page, "patch 4,4 ")


@pytest.mark.stress
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
    assert [chips(page)[name] for name in ("red", "see")] == [percent(float(row[item])) for item in (9, 1)]
    story = page.locator(".uwaga-picture .uwaga-sub").nth(1).inner_text()
    assert story.startswith(f"{percent(float(row[2:8].sum()))} on patches, ")
    page.get_by_role("button", name="encoder").first.click()
    shown(page, "CLS ")
