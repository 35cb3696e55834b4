"""The native library: where it is looked for, what is told of one that is incomplete, its structs, and the layers of its sources."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from uwaga._base import native, native_layout
from uwaga._base.native import default_path

NATIVE = Path(__file__).parents[2] / "native"
HEADER = NATIVE / "include/uwaga/c_api.h"
needs_native = pytest.mark.skipif(native.reason_unavailable() is not None, reason="there is no native library")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads ELF, the format of Linux")
@needs_native
def test_a_library_that_is_cut_short_or_none_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load_again: Callable[[], None]
) -> None:
    """The loader would map pages that are not there: the process would end by SIGBUS."""
    whole, path = default_path().read_bytes(), tmp_path / "libuwaga_native.so"
    monkeypatch.setenv("UWAGA_LIBRARY", str(path))
    cases = {
        size: f"is incomplete, with {size:,} bytes" for size in (10, 64, 300, 5000, len(whole) // 2, len(whole) - 1)
    }
    contents = {whole[:size]: said for size, said in cases.items()}
    for content in (b"", b"not a library", b"\xcf\xfa\xed\xfe" + bytes(100)):
        contents[content] = "cannot be loaded: "
    for content, said in contents.items():
        path.write_bytes(content)
        load_again()
        assert f"the native library at {path} {said}" in str(native.reason_unavailable())
    path.write_bytes(whole)
    load_again()
    assert native.reason_unavailable() is None


# The structs of the C interface are laid out here as the compiler laid them out.


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
