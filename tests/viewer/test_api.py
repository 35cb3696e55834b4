"""uwaga.view: browser, notebook and saved page, what it prints, and when it blocks."""

import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import uwaga
from uwaga.viewer import Maps, ServedView


@pytest.fixture
def attention() -> uwaga.AttentionMap:
    torch.manual_seed(0)
    return uwaga.AttentionMap(*torch.randn(2, 2, 4, 8))


def test_it_serves_and_prints_the_address(attention: uwaga.AttentionMap, capsys: pytest.CaptureFixture[str]) -> None:
    with uwaga.view(Maps(attention, tokens=list("abcd")), browser=False, block=False) as view:
        assert capsys.readouterr().out == f"uwaga.view: {view.address}\n"
        assert repr(view) == f"ServedView({view.address})"
        page = urllib.request.urlopen(view.address.partition("#")[0]).read().decode()
        assert "<title>a b c d - uwaga</title>" in page
    assert repr(view) == f"ServedView({view.address}, closed)"
    view.close()


@pytest.mark.parametrize(
    ("prompt", "block", "waits"), [(False, None, 1), (True, None, 0), (True, True, 1), (False, False, 0)]
)
def test_it_blocks_in_a_program_and_not_at_a_prompt(
    attention: uwaga.AttentionMap, monkeypatch: pytest.MonkeyPatch, prompt: bool, block: bool | None, waits: int
) -> None:
    waited: list[ServedView] = []
    if prompt:
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=SimpleNamespace))
    monkeypatch.setattr(ServedView, "wait", lambda view: waited.append(view))
    with uwaga.view(attention, browser=False, block=block):
        assert len(waited) == waits


@pytest.mark.parametrize(("browser", "opened"), [(None, 1), (True, 1), (False, 0)])
def test_it_opens_a_browser_unless_browser_is_false(
    attention: uwaga.AttentionMap, monkeypatch: pytest.MonkeyPatch, browser: bool | None, opened: int
) -> None:
    asked: list[ServedView] = []
    monkeypatch.setattr(ServedView, "browse", lambda view: asked.append(view))
    with uwaga.view(attention, browser=browser, block=False):
        assert len(asked) == opened


def test_in_a_notebook_the_view_is_a_widget(
    attention: uwaga.AttentionMap, monkeypatch: pytest.MonkeyPatch, small_front: Path
) -> None:
    anywidget = pytest.importorskip("anywidget")
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert isinstance(uwaga.view(attention), anywidget.AnyWidget)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(running_in_notebook=lambda: True))
    assert isinstance(uwaga.view(attention), anywidget.AnyWidget)
