"""Read an image file, run the vision transformer of a directory once over it, and record its attention.

Files are untrusted: their first bytes decide the format, few formats are read, and sizes are bounded before anything is decoded.
"""

import inspect
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from uwaga._base import install, untrusted
from uwaga._base.arguments import check
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.inspect.run_text import RecordError, Report, after_each_layer, reading_file, reporting_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from uwaga.inspect.patches import PatchGrid
    from uwaga.inspect.recordings.recording import Recording

MAX_FILE_BYTES = 2**26
MAX_PIXELS = 2**26  # of an image file, and of the resized image
MAX_SIDE = 4096  # pixels of a side that a model reads
ENDINGS = ("bmp", "gif", "jpeg", "jpg", "png", "tif", "tiff", "webp")
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")  # Pillow reads PostScript by another program: it is left out.
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


class VisionModel(NamedTuple):
    """Hold a vision transformer, its title, and the image processor of its directory."""

    title: str
    model: "nn.Module"
    processor: Any
    folder: Path


class ImageReading(NamedTuple):
    """Hold the recording of an image, its grid of patches, and the grey pixels (height, width) that the model read."""

    recording: "Recording"
    grid: "PatchGrid"
    pixels: "NDArray[np.uint8]"


def is_image(path: Path) -> bool:
    """Return whether a file is an image, by its first bytes or the suffix of its name. Raises RecordError."""
    with reading_file(path), untrusted.open_regular(path) as file:
        start = file.read(32)
    return (start.startswith(_BEGINNINGS) and b"\0" in start) or path.suffix[1:].lower() in ENDINGS


def read_image(path: Path) -> Any:
    """Read a file as a PIL image in RGB, turned upright by its EXIF; of an animation, read the first frame.

    Raises:
        RecordError: the file cannot be read, is not an image, is damaged, or exceeds MAX_FILE_BYTES or MAX_PIXELS.
        ModuleNotFoundError: Pillow is not installed.
    """
    with reading_file(path):
        data = untrusted.read_file(path, MAX_FILE_BYTES)
    pil = install.optional("PIL.Image", "PIL", "an image needs Pillow, which is not installed: pip install pillow")
    return in_rgb(lambda: pil.open(io.BytesIO(data), formats=_FORMATS), str(path))


def in_rgb(opened: Callable[[], Any], name: str) -> Any:
    """Convert the image that `opened` returns, as `read_image` does. `name` begins the message of a RecordError."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings(action="ignore"):  # Pillow warns of damage outside the pixels, as in the EXIF.
            image = opened()
            width, height = image.size
            if width * height <= MAX_PIXELS:
                upright = ImageOps.exif_transpose(image)
                if upright.mode.startswith(("I", "F")):  # Pillow would cut pixels of 16 bits off at 255.
                    numbers = np.asarray(upright, np.float64)
                    check(
                        0 <= numbers.min() <= numbers.max() <= 65535,
                        "its pixels are numbers of 32 bits, and the number of white is unknown",
                    )
                    white = 1 if upright.mode == "F" and numbers.max() <= 1 else 65535
                    upright = Image.fromarray((numbers / (white / 255)).astype(np.uint8))
                return upright.convert("RGB")
    except Exception as error:  # Pillow's readers raise any exception for unexpected bytes.
        names = ", ".join(_FORMATS)
        reason = printable(str(error).strip() or type(error).__name__)
        if type(error).__name__ == "UnidentifiedImageError":
            reason = f"it is not one of {names}"
        raise RecordError(f"{name} cannot be read as an image: {reason}") from error
    raise RecordError(f"{name} has {width:,} by {height:,} pixels (width by height); at most {MAX_PIXELS:,} are read")


def load_vision(name: str, dtype: str) -> VisionModel:
    """Open the vision transformer of a directory or hub id, such as CLIP's vision tower, and its image processor.

    Raises:
        CheckpointError: as `uwaga.models.open`; not exactly one vision transformer of a family that can be watched; an image
            processor that is missing, or that transformers cannot read.
    """
    from uwaga.models.checkpoints import directories

    folder = directories.transformer(directories.find(name, None))  # before PyTorch is imported, which takes seconds
    import torch

    from uwaga.inspect.vision import vision_part
    from uwaga.models import opening
    from uwaga.models.checkpoints import transformers_directories

    described = [untrusted.read_json(folder / file, missing_ok=True) for file in _PROCESSORS]
    if not any(described):
        raise CheckpointError(f"{folder} has no {_PROCESSORS[0]}, which says how a model reads images")
    for file, numbers in zip(_PROCESSORS, described, strict=True):
        _check_numbers(folder / file, numbers)
    model = vision_part(opening.read_module(folder, getattr(torch, dtype), "whole"), folder)
    with transformers_directories.reading(folder):
        import transformers

        processor = transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    return VisionModel(Path(name).name or name, model, processor, folder)


def record_image(
    reader: VisionModel,
    image: Any,
    *,
    resolution: int | None = None,
    layers: Sequence[int] | None = None,
    report: Report = lambda fraction: None,
) -> ImageReading:
    """Record the attention of a vision transformer over a PIL image.

    Args:
        reader: the model, as `load_vision` returns it.
        image: a PIL image in RGB.
        resolution: pixels of the shorter side that the model reads; positions are interpolated. None: the model's own.
        layers: the layers to record; None: all.
        report: as in `uwaga.inspect.run_text.run_text`.

    Raises:
        RecordError: a resolution outside 1 to MAX_SIDE, or one that the model cannot read; an image so long that it would be
            resized to more than MAX_PIXELS; a layer that does not exist.
        CheckpointError: the image processor of transformers fails.
    """
    import torch

    from uwaga.inspect.vision import patch_grid
    from uwaga.inspect.watching import watch
    from uwaga.models.attention_layers import attention_layers
    from uwaga.models.checkpoints import transformers_directories

    sizes = _sizes(reader, image, resolution)
    with transformers_directories.reading(reader.folder):
        read = reader.processor(images=image, return_tensors="pt", **sizes)["pixel_values"]
        if tuple(read.shape[:-2]) != (1, 3) or not bool(torch.isfinite(read).all()):
            raise CheckpointError(
                f"{reader.folder}: its image processor makes {tuple(read.shape)}, which is not an image"
            )
    model: Any = reader.model
    height, width = read.shape[-2:]
    options = {}
    side = getattr(model.config, "image_size", None)
    if (height, width) != (side, side) and "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        options["interpolate_pos_encoding"] = True
    attentions = list(attention_layers(model))
    with reporting_errors(), torch.no_grad():
        try:
            grid = patch_grid(model, read)
        except ValueError as error:
            raise RecordError(f"{reader.folder}: {str(error).removeprefix('patch_grid: ')}") from error
        with watch(model, layers=layers) as recording, after_each_layer(attentions, report):
            model(read.to(next(model.parameters()).dtype), **options)
    recording.model = reader.title
    # The model does not read pixels after the last whole patch.
    seen = read[0, :, : grid.rows * grid.patch_size[0], : grid.columns * grid.patch_size[1]]
    return ImageReading(recording, grid, _as_bytes(seen.double().numpy(), reader.processor))


def _check_numbers(file: Path, value: Any) -> None:
    """Bound what an image processor may be asked to allocate. Raises CheckpointError."""
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        if isinstance(part, int | float) and not abs(part) <= MAX_SIDE:
            raise CheckpointError(f"{file}: {part} is more than {MAX_SIDE}, the most pixels of a side")
        _check_numbers(file, part)


def _sizes(reader: VisionModel, image: Any, resolution: int | None) -> dict[str, Any]:
    """Return the options of the image processor for a resolution. Raises RecordError."""
    processor = reader.processor
    sizes = {
        name: dict(size)
        for name, uses in (("size", "do_resize"), ("crop_size", "do_center_crop"))
        if getattr(processor, uses, None) and (size := getattr(processor, name, None))
    }
    if not all(side is None or isinstance(side, int | float) for size in sizes.values() for side in size.values()):
        raise CheckpointError(
            f"{reader.folder}: the sizes of its image processor are not numbers: {printable(str(sizes))}"
        )
    if resolution is not None:
        if not 1 <= resolution <= MAX_SIDE:
            raise RecordError(f"the resolution must be 1 to {MAX_SIDE} pixels, not {resolution}")
        base = min((side for side in (sizes.get("crop_size") or sizes.get("size") or {}).values() if side), default=0)
        if not base:
            raise RecordError(f"{reader.title} reads images at their own size, which no resolution changes")
        sizes = {
            name: {key: side and round(side * resolution / base) for key, side in size.items()}
            for name, size in sizes.items()
        }
    shortest = sizes.get("size", {}).get("shortest_edge")
    least, most = min(image.size), max(image.size)
    if shortest and shortest**2 * most > MAX_PIXELS * least:
        rule = f"resized to a shorter side of {shortest} it would have more than {MAX_PIXELS:,} pixels"
        raise RecordError(f"the image has {image.size[0]:,} by {image.size[1]:,} pixels (width by height): {rule}")
    return {} if resolution is None else sizes


def _as_bytes(seen: "NDArray[np.float64]", processor: Any) -> "NDArray[np.uint8]":
    """Return the pixels (3, height, width) that the model read as (height, width), without the processor's normalization."""
    from uwaga.inspect.patches import luminance

    if getattr(processor, "do_normalize", False):
        mean, std = (np.asarray(getattr(processor, name), np.float64) for name in ("image_mean", "image_std"))
        # Both have one number for each colour, or one for all.
        seen = seen * std.reshape(-1, 1, 1) + mean.reshape(-1, 1, 1)
    full = 255 * (processor.rescale_factor if getattr(processor, "do_rescale", False) else 1)
    return np.rint(255 * luminance(np.moveaxis(np.clip(seen / full, 0, 1), 0, 2))).astype(np.uint8)
