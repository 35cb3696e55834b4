"""uwaga.view: browser, notebook and saved page, what it prints, and when it blocks."""

import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from waiting import HANG

import uwaga
from uwaga.viewer import Maps
from uwaga.viewer.api import at_prompt


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


def test_it_does_not_block_at_a_prompt(attention: uwaga.AttentionMap, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not at_prompt()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=SimpleNamespace))
    assert at_prompt()
    uwaga.view(attention, browser=False).close()


@pytest.mark.parametrize(("browser", "opens"), [(None, True), (True, True), (False, False)])
def test_it_opens_a_browser_unless_browser_is_false(
    attention: uwaga.AttentionMap, default_browser: Any, browser: bool | None, opens: bool
) -> None:
    with uwaga.view(attention, browser=browser, block=False):
        assert default_browser.opened.wait(HANG if opens else 0) == opens


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
