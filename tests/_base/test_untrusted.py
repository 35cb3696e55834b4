"""How files of strangers are opened, and the limits of what is read."""

import gzip
import re
from pathlib import Path

import pytest

from uwaga._base import untrusted
from uwaga._base.untrusted import TextFileError


def test_a_link_that_leads_nowhere_is_no_absent_file(tmp_path: Path) -> None:
    assert untrusted.read_file_if_exists(tmp_path / "a", 10) is None
    (tmp_path / "a").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        untrusted.read_file_if_exists(tmp_path / "a", 10)


def test_no_more_is_read_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 11)
    assert untrusted.read_file(path, 11) == b"x" * 11
    with path.open("rb") as file, pytest.raises(OSError) as caught:
        untrusted.read_stream(file, "stdin", 10)
    assert (caught.value.filename, caught.value.strerror) == ("stdin", "it is longer than 10 bytes")


def test_gzip_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"a" * 999 + b"\n", mtime=0) + gzip.compress((b"a" * 999 + b"\n") * 70_000, mtime=0))
    size = path.stat().st_size
    with pytest.raises(TextFileError) as caught:
        list(untrusted.read_lines(path, 1000))
    (found,) = re.findall(r"decompress to ([\d,]+)", str(caught.value))
    assert int(found.replace(",", "")) > 200 * size


def test_a_parquet_file_that_is_replaced_after_it_was_checked_is_checked_again(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["a"]}), path)
    rows = untrusted.ParquetRows(path, ["text"])
    parquet.write_table(pa.table({"text": ["a" * 70_000_000]}), path, compression="zstd")
    with pytest.raises(TextFileError) as caught:
        next(rows.rows(1))
    assert str(caught.value).endswith(": more than 200 per byte; a text does not, but an attack may")


def test_long_toml_of_short_keys_is_accepted() -> None:
    untrusted.check_toml_size("a." * 31 + "a = 1.5 # " + "and so on. " * 1000)
    untrusted.check_toml_size("a" * 200_000)
