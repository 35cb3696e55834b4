"""The structs of the C interface: laid out here as the compiler laid them out."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from uwaga._base import native, native_layout

HEADER = Path(__file__).parents[2] / "native/include/uwaga/c_api.h"
pytestmark = pytest.mark.skipif(native.reason_unavailable() is not None, reason="there is no native library")


def test_a_struct_is_as_long_as_its_fields() -> None:
    """The loader compares their offsets with those of the compiler."""
    for name in native_layout.STRUCTS:
        assert native_layout.struct_of(name).size == native_layout.layout(name)[0]


def test_every_struct_and_field_of_the_header_is_there() -> None:
    results = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", HEADER.read_text(), re.DOTALL):
        declarations = re.sub(r"//.*", "", body).replace("const ", "").split(";")
        fields = [field for line in declarations for field in line.split(None, 1)[1:]]
        results[name] = [field.strip().lstrip("*") for line in fields for field in line.split(",")]
    assert results == {
        name: [field.split(":")[0] for field in fields.split()] for name, fields in native_layout.STRUCTS.items()
    }


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


def test_fields_can_be_packed_in_parts() -> None:
    whole = native_layout.codes("uwaga_problem")
    parts = [
        native_layout.codes("uwaga_problem", "sequences", "key_offsets"),
        native_layout.codes("uwaga_problem", "query", "value"),
        native_layout.codes("uwaga_problem", "mask", "normalize"),
        native_layout.codes("uwaga_problem", "threads"),
    ]
    assert "".join(parts) == whole
