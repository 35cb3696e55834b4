"""Pictures in place of recordings: a file is read, run once through the vision transformer of a directory, and recorded.

Files are untrusted: few formats, by what is in them and not by their names; sizes are bounded before anything is decoded.
"""

import inspect
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from uwaga._base import install, untrusted
from uwaga._base.arguments import check
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.inspect.run_text import RecordError, Report, after_each_layer, reporting_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from uwaga.inspect.patches import PatchGrid
    from uwaga.inspect.recordings.recording import Recording

MAX_FILE_BYTES = 2**26
MAX_PIXELS = 2**26  # of a file, and of what it is resized to
MAX_SIDE = 4096  # of what a model reads, in pixels
ENDINGS = ("bmp", "gif", "jpeg", "jpg", "png", "tif", "tiff", "webp")
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")  # none that runs another program, as that of PostScript does
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


class VisionModel(NamedTuple):
    """A vision transformer, alone or a tower of a larger model, with its title and the image processor of its directory."""

    title: str
    model: "nn.Module"
    processor: Any
    folder: Path


class PictureReading(NamedTuple):
    """What came of a picture: the recording of its attention, where its patches are, and (height, width) grey pixels that the model saw."""

    recording: "Recording"
    grid: "PatchGrid"
    pixels: "NDArray[np.uint8]"


def is_picture(path: Path) -> bool:
    """Whether a file is meant as a picture: by its first bytes, which no text has, else by the end of its name. Raises RecordError."""
    with _naming(path), untrusted.open_regular(path) as file:
        start = file.read(32)
    return (start.startswith(_BEGINNINGS) and b"\0" in start) or path.suffix[1:].lower() in ENDINGS


def read_picture(path: Path) -> Any:
    """A file as a picture of PIL in RGB, upright as its EXIF says; of an animation the first frame.

    Raises:
        RecordError: no picture, one that is damaged, or with more than MAX_PIXELS; a file that cannot be read, or of more than MAX_FILE_BYTES.
        ModuleNotFoundError: Pillow is not installed.
    """
    with _naming(path):
        data = untrusted.read_file(path, MAX_FILE_BYTES)
    pil = install.optional("PIL.Image", "PIL", "a picture needs Pillow, which is not installed: pip install pillow")
    return in_rgb(lambda: pil.open(io.BytesIO(data), formats=_FORMATS), str(path))


def in_rgb(opened: Callable[[], Any], name: str) -> Any:
    """A picture that PIL opens, in RGB, upright as its EXIF says. Raises RecordError: as `read_picture`; `name` begins its message."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings(action="ignore"):  # about what is spoiled besides the pixels, such as the EXIF
            picture = opened()
            width, height = picture.size
            if width * height <= MAX_PIXELS:
                upright = ImageOps.exif_transpose(picture)
                if upright.mode.startswith(("I", "F")):  # of 16 bits, which Pillow would cut off at 255
                    numbers = np.asarray(upright, np.float64)
                    check(
                        0 <= numbers.min() <= numbers.max() <= 65535,
                        "its pixels are numbers of 32 bits, of which white is not known",
                    )
                    white = 1 if upright.mode == "F" and numbers.max() <= 1 else 65535
                    upright = Image.fromarray((numbers / (white / 255)).astype(np.uint8))
                return upright.convert("RGB")
    except Exception as error:  # whatever Pillow's readers raise of bytes that are not what they expect
        names = ", ".join(_FORMATS)
        reason = printable(str(error).strip() or type(error).__name__)
        if type(error).__name__ == "UnidentifiedImageError":
            reason = f"it is none of {names}"
        raise RecordError(f"{name} cannot be read as a picture: {reason}") from error
    raise RecordError(f"{name} has {width:,} by {height:,} pixels (width by height); at most {MAX_PIXELS:,} are read")


def load_vision(name: str, dtype: str) -> VisionModel:
    """The vision transformer of a directory or of the hub, of a whole model such as CLIP its vision tower, and its image processor.

    Raises CheckpointError: as `uwaga.models.open`; no vision transformer of a family that can be watched, or several;
    no image processor, or one that transformers cannot read.
    """
    from uwaga.models.checkpoints import directories

    folder = directories.transformer(directories.find(name, None))  # before PyTorch is imported, which takes seconds
    import torch

    from uwaga.inspect.vision import vision_part
    from uwaga.models import opening
    from uwaga.models.checkpoints import transformers_directories

    described = [untrusted.read_json(folder / file, missing_ok=True) for file in _PROCESSORS]
    if not any(described):
        raise CheckpointError(f"{folder} has no {_PROCESSORS[0]}, which says how a model reads pictures")
    for file, numbers in zip(_PROCESSORS, described, strict=True):
        _check_numbers(folder / file, numbers)
    model = vision_part(opening.read_module(folder, getattr(torch, dtype), "whole"), folder)
    with transformers_directories.reading(folder):
        import transformers

        processor = transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    return VisionModel(Path(name).name or name, model, processor, folder)


def record_picture(
    reader: VisionModel,
    picture: Any,
    *,
    resolution: int | None = None,
    layers: Sequence[int] | None = None,
    report: Report = lambda fraction: None,
) -> PictureReading:
    """Run a vision transformer once over a picture of PIL.

    Args:
        reader: the model, as `load_vision` returns it.
        picture: in RGB.
        resolution: pixels of the shorter side of what the model reads, in place of its own; positions are interpolated.
        layers: record only these; None: all.
        report: as in `uwaga.inspect.run_text.run_text`.

    Raises:
        RecordError: a resolution that is no positive number up to MAX_SIDE, or that this model cannot read; a picture so long that it would be
            resized to more than MAX_PIXELS; a layer that does not exist.
        CheckpointError: transformers' image processor fails.
    """
    import torch

    from uwaga.inspect.vision import patch_grid
    from uwaga.inspect.watching import watch
    from uwaga.models.attention_layers import attention_layers
    from uwaga.models.checkpoints import transformers_directories

    sizes = _sizes(reader, picture, resolution)
    with transformers_directories.reading(reader.folder):
        read = reader.processor(images=picture, return_tensors="pt", **sizes)["pixel_values"]
        if tuple(read.shape[:-2]) != (1, 3) or not bool(torch.isfinite(read).all()):
            raise CheckpointError(f"{reader.folder}: its image processor makes {tuple(read.shape)}, no picture")
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
    # What is behind the last whole patch was not read.
    seen = read[0, :, : grid.rows * grid.patch_size[0], : grid.columns * grid.patch_size[1]]
    return PictureReading(recording, grid, _as_bytes(seen.double().numpy(), reader.processor))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error


def _check_numbers(file: Path, value: Any) -> None:
    """Bound what an image processor may be asked to allocate. Raises CheckpointError."""
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        if isinstance(part, int | float) and not abs(part) <= MAX_SIDE:
            raise CheckpointError(f"{file}: {part} is more than {MAX_SIDE}, the most pixels of a side")
        _check_numbers(file, part)


def _sizes(reader: VisionModel, picture: Any, resolution: int | None) -> dict[str, Any]:
    """Options of the image processor for a resolution. Raises RecordError."""
    processor = reader.processor
    sizes = {
        name: dict(size)
        for name, uses in (("size", "do_resize"), ("crop_size", "do_center_crop"))
        if getattr(processor, uses, None) and (size := getattr(processor, name, None))
    }
    if not all(side is None or isinstance(side, int | float) for size in sizes.values() for side in size.values()):
        raise CheckpointError(
            f"{reader.folder}: the sizes of its image processor are no numbers: {printable(str(sizes))}"
        )
    if resolution is not None:
        if not 1 <= resolution <= MAX_SIDE:
            raise RecordError(f"the resolution must be 1 to {MAX_SIDE} pixels, not {resolution}")
        base = min((side for side in (sizes.get("crop_size") or sizes.get("size") or {}).values() if side), default=0)
        if not base:
            raise RecordError(f"{reader.title} reads pictures at their own size, which no resolution changes")
        sizes = {
            name: {key: side and round(side * resolution / base) for key, side in size.items()}
            for name, size in sizes.items()
        }
    shortest = sizes.get("size", {}).get("shortest_edge")
    least, most = min(picture.size), max(picture.size)
    if shortest and shortest**2 * most > MAX_PIXELS * least:
        rule = f"resized to a shorter side of {shortest} it would have more than {MAX_PIXELS:,} pixels"
        raise RecordError(
            f"the picture has {picture.size[0]:,} by {picture.size[1]:,} pixels (width by height): {rule}"
        )
    return {} if resolution is None else sizes


def _as_bytes(seen: "NDArray[np.float64]", processor: Any) -> "NDArray[np.uint8]":
    """(height, width): what the model read, (3, height, width), without the processor's normalization."""
    from uwaga.inspect.patches import luminance

    if getattr(processor, "do_normalize", False):
        mean, std = (np.asarray(getattr(processor, name), np.float64) for name in ("image_mean", "image_std"))
        seen = seen * std.reshape(-1, 1, 1) + mean.reshape(-1, 1, 1)  # of each colour, or one of all
    full = 255 * (processor.rescale_factor if getattr(processor, "do_rescale", False) else 1)
    return np.rint(255 * luminance(np.moveaxis(np.clip(seen / full, 0, 1), 0, 2))).astype(np.uint8)
