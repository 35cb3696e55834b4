"""What tests of the viewer share."""

from pathlib import Path

import pytest


@pytest.fixture
def small_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A front end of one module that shows what "about" says, in place of the real one."""
    pytest.importorskip("uwaga.viewer.page.bundle")
    folder = tmp_path / "front"
    folder.mkdir()
    (folder / "main.js").write_text(
        "export function startPage(root) { root.textContent = document.title; }\n"
        "export function render({ model, el }) { return () => {}; }\n"
    )
    (folder / "main.css").write_text(".uwaga { color: black; }\n")
    monkeypatch.setattr("uwaga.viewer.page.bundle.FRONT", folder)
    return folder
