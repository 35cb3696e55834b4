"""Pictures, and image processors of models, that cannot be read."""

import json
from pathlib import Path

import pytest
from PIL import Image
from tiny_vision import write_vision

from uwaga.inspect import images


def strip(folder: Path) -> object:
    """A long one, which a shorter side of more pixels would make longer."""
    reader = images.load_vision(str(write_vision(folder / "model")), "float32")
    return images.record_image(reader, Image.new("RGB", (1, 60_000)))


def sized(folder: Path, size: dict[str, object], resolution: int | None = None) -> object:
    """A picture for an image processor of these sizes."""
    model = write_vision(folder / "model")
    described = json.loads((model / "preprocessor_config.json").read_text())
    (model / "preprocessor_config.json").write_text(json.dumps(described | {"size": size}))
    reader = images.load_vision(str(model), "float32")
    return images.record_image(reader, Image.new("RGB", (40, 40)), resolution=resolution)


def without_processor(folder: Path) -> object:
    model = write_vision(folder / "model")
    (model / "preprocessor_config.json").unlink()
    return images.load_vision(str(model), "float32")


def large(folder: Path, patch: pytest.MonkeyPatch) -> object:
    (folder / "a.png").write_bytes(bytes(100))
    patch.setattr(images, "MAX_FILE_BYTES", 99)
    return images.read_image(folder / "a.png")
