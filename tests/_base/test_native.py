"""Where the native library is looked for."""

import sys

import uwaga
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
