"""Weights of a patch in every head, as a page asks for them: those of PatchGrid, to the bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import complete

pytest.importorskip("PIL", reason="Pillow is not installed: transformers' image processors need it")
from PIL import Image

import uwaga
from uwaga.inspect import PatchGrid, images
from uwaga.inspect.run_text import RecordError
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View

GRID = PatchGrid(rows=5, columns=7, special=("[CLS]", "[REG 0]"))
LAYER = {"side": "0", "kind": "encoder", "layer": 1}


def maps_of(tokens: int, heads: int = 3, **options: Any) -> dict[tuple[str, int], uwaga.AttentionMap]:
    torch.manual_seed(0)
    return {("encoder", layer): uwaga.AttentionMap(*torch.randn(2, 1, heads, tokens, 8), **options) for layer in (0, 1)}


@pytest.fixture
def shown() -> View:
    picture = torch.rand(20, 28, generator=torch.Generator().manual_seed(0))
    return View.of(Maps(maps_of(37), tokens=GRID.tokens, picture=picture))


def test_a_row_and_a_column_of_every_head(shown: View) -> None:
    service, m = ViewService(shown), shown.sides[0].maps["encoder", 1]
    for cell in ((0, 0), (3, 5), (4, 6)):
        item = GRID.position(*cell)
        row = complete(service, request="heads", **LAYER, axis="row", item=item).arrays[0]
        assert np.array_equal(row[:, 2:].reshape(3, 5, 7), GRID.looks_at(m, cell).numpy())
        assert np.array_equal(row[:, :2], GRID.on_special(m, cell).numpy())
        column = complete(service, request="heads", **LAYER, axis="column", item=item).arrays[0]
        assert np.array_equal(column[:, 2:].reshape(3, 5, 7), GRID.looked_at(m, cell).numpy())
    assert np.array_equal(
        complete(service, request="heads", **LAYER, axis="row", item=0).arrays[0][:, 2:].reshape(3, 5, 7),
        GRID.looks_at(m, 0).numpy(),
    )


def test_what_a_page_is_told(shown: View) -> None:
    service = ViewService(shown)
    about = service.answer({"request": "about"}).meta
    assert about["picture"] == {"width": 28, "height": 20, "grids": {"encoder": {"rows": 5, "columns": 7, "first": 2}}}
    assert about["start"] == {"side": "0", "kind": "encoder", "layer": 1, "head": 0, "merge": "tokens"}
    (pixels,) = service.answer({"request": "picture"}).arrays
    assert (pixels.shape, pixels.dtype) == ((20, 28), np.uint8)
    where = {"side": "0", "stack": "encoder", "merge": "tokens", "specials": "show", "first": 0, "count": 99}
    assert service.answer({"request": "items", **where}).meta["specials"] == [0, 1]  # registers, too


def test_a_picture_of_pil_is_read_as_its_file_is(tmp_path: Path) -> None:
    """Turned as its EXIF says, and 16 bits as such."""
    exif = Image.Exif()
    exif[0x0112] = 6
    grey = (np.arange(6 * 4).reshape(6, 4) * 10).astype(np.uint8)
    Image.fromarray(grey).save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    for name, expected in (("turned.png", np.rot90(grey, -1)), ("deep.png", grey)):
        opened = Image.open(tmp_path / name)
        for read in (images.read_image(tmp_path / name), images.in_rgb(lambda opened=opened: opened, "picture")):
            assert np.array_equal(np.asarray(read)[..., 0], expected)
    (tmp_path / "cut.png").write_bytes((tmp_path / "deep.png").read_bytes()[:60])
    rule = pytest.raises(RecordError, match="view: picture cannot be read as an image: ")
    with Image.open(tmp_path / "cut.png") as cut, rule:
        uwaga.view(cut, model="model", browser=False, block=False)
