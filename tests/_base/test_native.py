"""The native library: where it is looked for, what is told of one that is incomplete, its structs, and the layers of its sources."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import uwaga
from uwaga._base import native, native_layout
from uwaga._base.native import default_path

NATIVE = Path(__file__).parents[2] / "native"
HEADER = NATIVE / "include/uwaga/c_api.h"
needs_native = pytest.mark.skipif(native.reason_unavailable() is not None, reason="there is no native library")


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
@needs_native
def test_a_library_that_is_cut_short_is_told_before_it_is_loaded(
    other_library: Path, monkeypatch: pytest.MonkeyPatch, load_again: Callable[[], None]
) -> None:
    """The loader would map pages that are not there: the process ended by SIGBUS."""
    whole = default_path().read_bytes()
    with monkeypatch.context() as unloaded:
        unloaded.setattr(native.ctypes, "CDLL", lambda path: pytest.fail("it was loaded"))
        for size in (10, 64, 300, 5000, len(whole) // 2, len(whole) - 1):
            other_library.write_bytes(whole[:size])
            load_again()
            assert f"is incomplete, with {size:,} bytes" in native.reason_unavailable()
    other_library.write_bytes(whole)
    load_again()
    assert native.reason_unavailable() is None


def test_what_is_no_elf_file_is_left_to_the_loader(other_library: Path, load_again: Callable[[], None]) -> None:
    for content in (b"", b"not a library", b"\xcf\xfa\xed\xfe" + bytes(100)):
        other_library.write_bytes(content)
        load_again()
        assert f"the native library at {other_library} cannot be loaded: " in str(native.reason_unavailable())


# The structs of the C interface are laid out here as the compiler laid them out.


@needs_native
def test_a_struct_is_as_long_as_its_fields() -> None:
    """The loader compares their offsets with those of the compiler."""
    for name in native_layout.STRUCTS:
        assert native_layout.struct_of(name).size == native_layout.layout(name)[0]


@needs_native
def test_every_struct_and_field_of_the_header_is_there() -> None:
    results = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", HEADER.read_text(), re.DOTALL):
        declarations = re.sub(r"//.*", "", body).replace("const ", "").split(";")
        fields = [field for line in declarations for field in line.split(None, 1)[1:]]
        results[name] = [field.strip().lstrip("*") for line in fields for field in line.split(",")]
    assert results == {
        name: [field.split(":")[0] for field in fields.split()] for name, fields in native_layout.STRUCTS.items()
    }


@needs_native
def test_a_library_with_another_layout_is_refused(
    monkeypatch: pytest.MonkeyPatch, load_again: Callable[[], None]
) -> None:
    fields = native_layout.STRUCTS["uwaga_start"].replace(
        "value:q starts:uwaga_integers", "starts:uwaga_integers value:q"
    )
    monkeypatch.setitem(native_layout.STRUCTS, "uwaga_start", fields)
    load_again()
    assert "has another layout of struct uwaga_start" in str(native.reason_unavailable())
    monkeypatch.undo()
    load_again()
    assert native.reason_unavailable() is None


@needs_native
def test_fields_can_be_packed_in_parts() -> None:
    whole = native_layout.codes("uwaga_problem")
    parts = [
        native_layout.codes("uwaga_problem", "sequences", "key_offsets"),
        native_layout.codes("uwaga_problem", "query", "value"),
        native_layout.codes("uwaga_problem", "mask", "normalize"),
        native_layout.codes("uwaga_problem", "threads"),
    ]
    assert "".join(parts) == whole


# The folders of native/ are layers: base below kernels, kernels below drivers; no file includes from a layer above its own.

# What the files of a folder may include from native/; the C interface alone, native/c_api.cc, includes all.
ALLOWED = {
    "base": {"base"},
    # uwaga/c_api.h names the element types; tests: AVX-512 by emulation
    "kernels": {"base", "kernels", "uwaga", "tests"},
    "drivers": {"base", "kernels", "drivers", "uwaga"},
}


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_layer_includes_none_above_it(folder: str) -> None:
    files = [path for path in (NATIVE / folder).iterdir() if path.suffix in (".h", ".cc")]
    assert files
    results = {
        (path.name, included)
        for path in files
        for included in re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE)
    }
    assert [pair for pair in sorted(results) if pair[1].split("/")[0] not in ALLOWED[folder]] == []


def test_only_the_emulation_is_included_from_the_tests() -> None:
    kernels = [path for path in (NATIVE / "kernels").iterdir() if '#include "tests/' in path.read_text()]
    assert sorted(path.name for path in kernels) == ["simd_amx.h", "simd_avx512.h"]
    for path in kernels:
        name = path.stem.removeprefix("simd_")
        assert f'#ifdef UWAGA_EMULATE_AVX512\n#include "tests/emulate_{name}.h"\n#e' in path.read_text()
