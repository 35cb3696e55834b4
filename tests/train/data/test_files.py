"""Files in lines and in pieces, and the place of every error."""

import gzip
from pathlib import Path

import pytest

from uwaga.train.data import files
from uwaga.train.data.files import Pieces, lines
from uwaga.train.errors import DataError


def _both(path: Path) -> list[str]:
    """The messages of reading by lines and in pieces."""
    found = []
    for read in (lines, Pieces):
        with pytest.raises(DataError) as raised:
            list(read(path))
        found.append(str(raised.value))
    return found


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 2**20])
@pytest.mark.parametrize("packed", [False, True])
def test_the_text_is_what_is_in_the_file(
    piece: int, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PIECE", piece)
    text = "naïve\r\n\n東京 🐷\nthe end"
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert "".join(Pieces(path)) == text
    assert [line.text for line in lines(path)] == ["naïve", "", "東京 🐷", "the end"]
    assert [line.place for line in lines(path)][3] == f"{path}:4"


def test_a_mark_of_byte_order_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfyes")
    assert "".join(Pieces(path)) == "yes"
    assert next(lines(path)).text == "yes"


@pytest.mark.parametrize("piece", [3, 4, 5, 2**20])
@pytest.mark.parametrize(
    ("written", "place"),
    [
        (b"abc\xff", "1: is not UTF-8: byte 0xff at byte 4"),
        ("ä\nöü".encode() + b"\xc3(", "2: is not UTF-8: byte 0xc3 at byte 5"),
        (b"one\ntwo\n\x80\n", "3: is not UTF-8: byte 0x80 at byte 1"),
        (b"one\ntwo \xe6\x9d", "2: is not UTF-8: byte 0xe6 at byte 5"),
    ],
)
def test_what_is_no_utf8_is_named_by_line_and_byte(
    written: bytes, place: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PIECE", piece)
    path = tmp_path / "a.txt"
    path.write_bytes(written)
    assert _both(path) == [f"{path}:{place}"] * 2


def test_a_file_must_be_there_and_hold_something(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    assert _both(path) == [f"{path}: there is no such file"] * 2
    assert _both(tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"] * 2
    path.write_bytes(b"")
    assert _both(path) == [f"{path}: is empty"] * 2
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(b""))
    assert _both(packed) == [f"{packed}: is empty"] * 2


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"plain")
    assert _both(path) == [f"{path}: the gzip file is damaged: Not a gzipped file (b'pl')"] * 2
    path.write_bytes(gzip.compress(b"a" * 1000)[:-9])
    assert _both(path)[0].startswith(f"{path}: the gzip file is damaged: ")


def test_a_line_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    path = tmp_path / "a.txt"
    path.write_text("short\n" + "x" * 1001)
    with pytest.raises(DataError) as raised:
        list(lines(path))
    assert str(raised.value) == f"{path}:2: the line is longer than 1,000 bytes"
