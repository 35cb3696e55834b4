"""Images that are read from files: the pixels that a model reads, and its maps."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: the extra `test` brings it")
import transformers
from tiny_vision import SIDE, write_photo, write_vision

import uwaga
from uwaga.inspect import PatchGrid, images, patch_grid, run_text
from uwaga.inspect.patches import grid_of_tokens
from uwaga.inspect.vision import vision_models

FAMILIES = ("registers", "clip", "siglip")


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory):
    return images.read_image(write_photo(tmp_path_factory.mktemp("photo") / "photo.png"))


@pytest.mark.parametrize("resolution", [None, 44])
def test_maps_are_those_of_the_model_and_pixels_those_that_it_saw(folder: Path, photo, resolution: int | None) -> None:
    reader = images.load_vision(str(folder), "float32")
    done: list[float] = []

    reading = images.record_image(reader, photo, resolution=resolution, report=done.append)
    assert done == [0.5, 1.0]
    whole = transformers.AutoModel.from_pretrained(folder).eval()
    (tower,) = vision_models(whole)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    side = resolution or SIDE
    sizes = {} if resolution is None else {"size": {"height": side, "width": side}}
    if "shortest_edge" in processor.size and resolution:
        sizes = {"size": {"shortest_edge": round(36 * side / SIDE)}, "crop_size": {"height": side, "width": side}}
    read = processor(images=photo, return_tensors="pt", **sizes)["pixel_values"]
    assert read.shape[-2:] == (side, side)
    named = {} if resolution is None or folder.name == "registers" else {"interpolate_pos_encoding": True}
    with uwaga.watch(tower) as recording, torch.no_grad():
        tower(read, **named)
    assert reading.grid == patch_grid(tower, read)
    assert reading.recording.tokens["encoder"] == [reading.grid.tokens]
    assert reading.recording.model == folder.name
    for name, m in recording.maps.items():
        assert torch.equal(reading.recording.maps[name].to_dense(), m.to_dense())
    # Without the normalization, in grey, and without what is behind the last patch.
    mean, std = (torch.tensor(getattr(processor, name))[:, None, None] for name in ("image_mean", "image_std"))
    seen = (read[0] * std + mean)[:, : reading.grid.rows * 8, : reading.grid.columns * 8]
    grey = torch.tensordot(torch.tensor([0.2126, 0.7152, 0.0722]), seen, 1) * 255
    assert reading.pixels.dtype == np.uint8
    assert reading.pixels.shape == tuple(grey.shape)
    assert np.abs(reading.pixels - grey.numpy()).max() <= 0.51


def test_a_directory_of_clip_has_two_towers(tmp_path: Path, photo) -> None:
    folder = write_vision(tmp_path / "clip", "clip", tokenizer=True)
    reading = images.record_image(images.load_vision(str(folder), "float32"), photo)
    assert reading.grid.special == ("[CLS]",)
    reader = uwaga.models.open(str(folder), dtype="float32")
    assert type(reader.model).__name__.startswith("CLIPText")
    recording = run_text.record_text(reader, "a cat")
    assert list(recording.maps) == [("encoder", 0), ("encoder", 1)]
    ids = torch.tensor([reader.tokenizer.backend.encode("a cat").ids])
    with uwaga.watch(reader.model) as expected, torch.no_grad():
        reader.model(input_ids=ids)
    assert torch.equal(recording.maps["encoder", 1].to_dense(), expected.maps["encoder", 1].to_dense())


def test_half_precision_and_some_layers(tmp_path: Path, photo) -> None:
    reader = images.load_vision(str(write_vision(tmp_path / "vit", "vit")), "bfloat16")
    reading = images.record_image(reader, photo, layers=[1])
    assert list(reading.recording.maps) == [("encoder", 1)]
    assert reading.recording.maps["encoder", 1].shape == (1, 4, 17, 17)


def test_a_grid_is_known_by_the_names_of_its_tokens() -> None:
    for grid in (PatchGrid(rows=2, columns=3, special=("[CLS]", "[REG 0]")), PatchGrid(rows=1, columns=1)):
        assert grid_of_tokens(grid.tokens) == grid
    for others in ("", "a b", "0,0 0,1 1,0", "0,0 1,0 0,1 1,1", "[CLS] 0,1", "0,0 999999,999999", "0,0 0,0"):
        assert grid_of_tokens(others.split()) is None, others
