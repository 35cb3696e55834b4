"""`uwaga view picture.jpg --model DIR`, and the same in Python: what is read, saved, printed, and what is said of bad input."""

from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed: the extra `test` brings it")
pytest.importorskip("PIL", reason="Pillow is not installed: transformers' image processors need it")
from PIL import Image
from saved_pages import about, replies
from tiny_vision import write_photo, write_vision

import uwaga
from uwaga.inspect import images
from uwaga.viewer.messages import Reply

pytestmark = pytest.mark.usefixtures("small_front", "one_thread")


@pytest.fixture(scope="module")
def registers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision(tmp_path_factory.mktemp("models") / "registers")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision(tmp_path_factory.mktemp("models") / "clip", "clip", tokenizer=True)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    return write_photo(tmp_path / "photo.jpg")


def saved(path: Path, *arguments: object) -> dict[str, Reply]:
    """The replies in the page that a command writes, by their question."""
    commands.run("view", *arguments, "--save", path)
    return replies(path.read_bytes())


def test_a_saved_page_holds_the_picture_and_every_patch(registers: Path, photo: Path, tmp_path: Path) -> None:
    page = saved(tmp_path / "page.html", photo, "--model", registers, "--head", "1.2", "--pick", "2,3")
    assert about(page)["opens"] == "kind=encoder&layer=1&head=2&mean=no&query=15"
    (side,) = about(page)["sides"]
    assert (side["model"], side["title"]) == ("registers", "photo.jpg")
    grids = {"encoder": {"rows": 4, "columns": 4, "first": 4}}
    assert about(page)["picture"] == {"width": 32, "height": 32, "grids": grids}
    assert about(page)["start"] == {"side": "0", "kind": "encoder", "layer": 1, "head": 0, "merge": "tokens"}
    reading = images.record_image(images.load_vision(str(registers), "float32"), images.read_image(photo))
    assert np.array_equal(page['{"request":"picture"}'].arrays[0], reading.pixels)
    for layer in (0, 1):
        m = reading.recording.maps["encoder", layer]
        for item in range(20):
            where = f'"item":{item},"kind":"encoder","layer":{layer},"request":"heads","side":"0"'
            row = page[f'{{"axis":"row",{where}}}'].arrays[0]
            assert np.array_equal(row[:, 4:].reshape(4, 4, 4), reading.grid.looks_at(m, item).numpy())
    column = page['{"axis":"column","item":7,"kind":"encoder","layer":1,"request":"heads","side":"0"}'].arrays[0]
    assert np.array_equal(column[:, 4:].reshape(4, 4, 4), reading.grid.looked_at(m, 7).numpy())


def test_another_resolution_and_half_precision(registers: Path, photo: Path, tmp_path: Path) -> None:
    page = saved(tmp_path / "page.html", photo, "--model", registers, "--resolution", 48, "--dtype", "bfloat16")
    assert about(page)["picture"]["grids"]["encoder"] == {"rows": 6, "columns": 6, "first": 4}


def test_of_clip_a_picture_is_read_by_one_tower_and_a_text_by_the_other(
    clip: Path, photo: Path, tmp_path: Path
) -> None:
    page = saved(tmp_path / "picture.html", photo, "--model", clip)
    assert about(page)["picture"]["grids"]["encoder"]["first"] == 1
    page = saved(tmp_path / "text.html", "a red cat", "--model", clip)
    assert "picture" not in about(page)
    assert about(page)["sides"][0]["stacks"]["encoder"]["tokens"] == len("a red cat")


def test_in_python(registers: Path, photo: Path) -> None:
    picture: Any
    for picture in (photo, Image.open(photo)):
        with uwaga.view(picture, model=registers, browser=False, block=False) as view:
            told = view.service.answer({"request": "about"}).meta
            assert told["picture"]["grids"] == {"encoder": {"rows": 4, "columns": 4, "first": 4}}
            assert told["title"] == ("photo.jpg" if picture is photo else "Picture")
