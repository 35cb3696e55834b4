"""Where the native library is looked for, and what is told of one that is incomplete."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import uwaga
from uwaga._base import native
from uwaga._base.native import default_path


def test_a_built_library_is_found_in_any_folder_of_the_package(tmp_path, monkeypatch) -> None:
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    built = tmp_path / "installed" / "_native" / f"libuwaga_native.{suffix}"
    built.parent.mkdir(parents=True)
    built.touch()
    monkeypatch.setattr(uwaga, "__path__", [str(tmp_path / "sources"), str(tmp_path / "installed")])
    assert default_path() == built
    built.unlink()
    assert default_path() == tmp_path / "sources" / "_native" / built.name


@pytest.fixture
def other_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A path that is looked at in place of the built library."""
    path = tmp_path / "libuwaga_native.so"
    monkeypatch.setenv("UWAGA_LIBRARY", str(path))
    return path


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads ELF, the format of Linux")
@pytest.mark.skipif(native.reason_unavailable() is not None, reason="no native library here")
def test_a_library_that_is_cut_short_is_told_before_it_is_loaded(
    other_library: Path, monkeypatch: pytest.MonkeyPatch, load_again: Callable[[], None]
) -> None:
    """The loader would map pages that are not there: the process ended by SIGBUS."""
    whole = default_path().read_bytes()
    monkeypatch.setattr(native.ctypes, "CDLL", lambda path: pytest.fail("it was loaded"))
    for size in (10, 64, 300, 5000, len(whole) // 2, len(whole) - 1):
        other_library.write_bytes(whole[:size])
        load_again()
        assert f"is incomplete, with {size:,} bytes" in native.reason_unavailable()
    other_library.write_bytes(whole)
    assert native._missing_bytes(other_library) is None


def test_what_is_no_elf_file_is_left_to_the_loader(other_library: Path, load_again: Callable[[], None]) -> None:
    for content in (b"", b"not a library", b"\xcf\xfa\xed\xfe" + bytes(100)):
        other_library.write_bytes(content)
        load_again()
        assert f"the native library at {other_library} cannot be loaded: " in str(native.reason_unavailable())
