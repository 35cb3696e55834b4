"""Weights of a patch in every head, as a page asks for them: those of PatchGrid, to the bit."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow is not installed: transformers' image processors need it")
from PIL import Image

import uwaga
from uwaga.inspect import images
from uwaga.inspect.run_text import RecordError


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
