"""Pictures and image processors made to harm: each is read right, or refused by name, before memory of the size that it claims is taken."""

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow is not installed: transformers' image processors need it")
pytest.importorskip("transformers", reason="transformers is not installed: the extra `test` brings it")
from PIL import Image
from tiny_vision import write_photo, write_vision

from uwaga._base.errors import CheckpointError
from uwaga.inspect import images
from uwaga.inspect.run_text import RecordError

FORMATS = {"png": {}, "jpg": {}, "webp": {"lossless": True}, "gif": {}, "bmp": {}, "tiff": {}}


def said(path: Path) -> str:
    with pytest.raises(RecordError) as caught:
        images.read_image(path)
    return str(caught.value)


def png(width: int, height: int, *more: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        *more,
        (b"IDAT", zlib.compress(b"\0" * 99)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_is_read(tmp_path: Path, ending: str) -> None:
    exact = np.asarray(Image.open(write_photo(tmp_path / "exact.png")))
    path = write_photo(tmp_path / f"photo.{ending}", **FORMATS[ending])
    assert images.is_image(path)
    read = images.read_image(path)
    assert (read.mode, read.size) == ("RGB", (80, 60))
    assert np.abs(np.asarray(read).astype(int) - exact).mean() < 12  # of a palette, and of what JPEG loses
    # Whatever it is called.
    for name in ("other.png", "other.txt", "other"):
        other = tmp_path / name
        other.write_bytes(path.read_bytes())
        assert images.is_image(other)
        assert images.read_image(other).tobytes() == read.tobytes()


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (b"", False),
        (b"BM is short for Bayern Munich", False),
        (b"GIF89a is a format", False),
        (b"RIFFs and chords", False),
        (b"a text", False),
    ],
)
def test_a_text_is_no_picture_but_by_its_name(tmp_path: Path, data: bytes, is_one: bool) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    assert images.is_image(tmp_path / "a.txt") == is_one
    (tmp_path / "a.JPG").write_bytes(data)
    assert images.is_image(tmp_path / "a.JPG")
    name = f"{tmp_path / 'a.JPG'} cannot be read as an image: "
    if not data.startswith(b"BM"):
        assert said(tmp_path / "a.JPG") == name + "it is not one of BMP, GIF, JPEG, PNG, TIFF, WEBP"
    assert said(tmp_path / "a.JPG").startswith(name)


TOO_MANY = "pixels (width by height); at most 67,108,864 are read"
NO_FORMAT = "cannot be read as an image: it is not one of BMP, GIF, JPEG, PNG, TIFF, WEBP"
# The bytes of a file, and what is said of it: bombs, and formats that run a program or read other files.
HOSTILE_FILES = {
    "a pixel too many": (png(8193, 8192), f"has 8,193 by 8,192 {TOO_MANY}"),
    "wide": (png(12_000, 8_000), f"has 12,000 by 8,000 {TOO_MANY}"),
    "Pillow's limit": (png(60_000, 60_000), "cannot be read as an image: Image size (3600000000 pixels) exceeds limit"),
    "as large as a PNG can be": (png(2**31 - 1, 2**31 - 1), "cannot be read as an image: Image size"),
    "a compressed comment": (png(8, 8, (b"zTXt", b"Comment\0\0" + zlib.compress(bytes(300_000_000), 9))), "cannot be read as an image: "),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", NO_FORMAT),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>", NO_FORMAT),
    "PDF": (b"%PDF-1.4\n", NO_FORMAT),
    "XBM": (b"#define a_width 9\n#define a_height 9\nstatic char a_bits[] = {0};\n", NO_FORMAT),
    "FITS": (b"SIMPLE  =                    T", NO_FORMAT),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_a_hostile_picture_is_refused_by_its_header(tmp_path: Path, name: str) -> None:
    data, reason = HOSTILE_FILES[name]
    (tmp_path / "a.png").write_bytes(data)
    assert reason in said(tmp_path / "a.png")
    assert "a.png" in said(tmp_path / "a.png")


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path, tmp_path / "pipe.png", Path("/dev/zero"), tmp_path / "missing.png"):
        with pytest.raises(RecordError, match=f"^{path} cannot be read: "):
            images.is_image(path)
        assert said(path).startswith(f"{path} cannot be read: ")


@pytest.mark.parametrize("ending", FORMATS)
def test_what_is_cut_or_spoiled_is_read_or_refused_by_name(tmp_path: Path, ending: str) -> None:
    data = write_photo(tmp_path / f"a.{ending}", **FORMATS[ending]).read_bytes()
    chance = np.random.default_rng(0)
    damaged = [data[: int(at)] for at in np.linspace(4, len(data) - 1, 60)]
    for _ in range(200):
        changed = np.frombuffer(data, np.uint8).copy()
        # The header more often than the pixels.
        changed[chance.integers(0, len(data) if chance.random() < 0.5 else 64, 3)] = chance.integers(0, 256, 3)
        damaged.append(changed.tobytes())
    path = tmp_path / f"b.{ending}"
    reasons: list[str] = []
    for content in damaged:
        path.write_bytes(content)
        try:
            read = images.read_image(path)
        except RecordError as error:
            reasons.append(str(error))
        else:
            assert read.mode == "RGB"
            assert read.width * read.height <= images.MAX_PIXELS
    assert len(reasons) > 10
    assert all(reason.startswith(f"{path} ") and reason.isprintable() for reason in reasons)


@pytest.mark.parametrize("ending", ["gif", "webp", "png", "tiff"])
def test_the_first_frame_of_an_animation_is_read(tmp_path: Path, ending: str) -> None:
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "green", "blue")]
    frames[0].save(tmp_path / f"a.{ending}", save_all=True, append_images=frames[1:], **FORMATS[ending])
    read = images.read_image(tmp_path / f"a.{ending}")
    assert (read.size, read.getpixel((5, 5))) == ((20, 10), (255, 0, 0))


def test_a_picture_is_upright(tmp_path: Path) -> None:
    """What a camera that was turned writes is turned back."""
    upright = Image.open(write_photo(tmp_path / "upright.png"))
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.png", exif=exif)
    assert images.read_image(tmp_path / "a.png").tobytes() == upright.tobytes()


@pytest.mark.parametrize(("scale", "white"), [(1 / 255, 255), (257, 255), (2.0**20, None), (-1.0, None)])
def test_floats_are_of_0_to_1_or_of_16_bits(tmp_path: Path, scale: float, white: int | None) -> None:
    Image.fromarray((np.arange(256, dtype=np.float32) * scale).reshape(16, 16)).save(tmp_path / "a.tiff")
    if white is None:
        assert "a.tiff cannot be read as an image: its pixels are numbers of 32 bits" in said(tmp_path / "a.tiff")
    else:
        read = np.asarray(images.read_image(tmp_path / "a.tiff"))[..., 0].ravel().astype(int)
        assert np.abs(read - np.arange(256)).max() <= 1


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "I", "F"])
def test_every_mode_becomes_colours(tmp_path: Path, mode: str) -> None:
    grey = np.arange(16 * 16).reshape(16, 16)
    if mode in ("I;16", "I", "F"):
        pixels = (grey * 257).astype({"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode])
        made = Image.fromarray(pixels)
    else:
        made = Image.fromarray(grey.astype(np.uint8)).convert(mode if mode != "LA" else "RGBA").convert(mode)
    made.save(tmp_path / "a.tiff")
    read = np.asarray(images.read_image(tmp_path / "a.tiff"))
    assert read.shape == (16, 16, 3)
    if mode != "1":
        assert np.abs(read.mean(-1) - grey).max() <= 1


HOSTILE: dict[str, tuple[Callable[[dict], dict], str]] = {
    "large": (lambda it: it | {"size": {"height": 10**9, "width": 10**9}}, ": 1000000000 is more than 4096, the most pixels of a side"),
    "large inside": (lambda it: it | {"x": [{"crop": [-1e300]}]}, ": -1e+300 is more than 4096, the most pixels of a side"),
    "a word": (lambda it: it | {"size": "large"}, ""),
    "no scale": (lambda it: it | {"image_std": [0.0, 0.0, 0.0]}, ""),
    "another class": (lambda it: it | {"image_processor_type": "Pix2StructImageProcessor"}, ""),
    "code": (
        lambda it: {**it, "image_processor_type": None, "auto_map": {"AutoImageProcessor": "hostile.Hostile"}},
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_image_processor_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = write_vision(tmp_path / "model")
    (folder / "hostile.py").write_text("raise SystemExit('code of the directory was run')\n")
    file = folder / "preprocessor_config.json"
    change, reason = HOSTILE[name]
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    photo = images.read_image(write_photo(tmp_path / "a.png"))
    with pytest.raises((CheckpointError, RecordError)) as caught:
        images.record_image(images.load_vision(str(folder), "float32"), photo)
    assert reason in str(caught.value)
    assert str(folder) in str(caught.value)
