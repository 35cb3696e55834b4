"""uwaga.view: browser, notebook and saved page, what it prints, and when it blocks."""

import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import uwaga
from uwaga.viewer import Maps, ServedView, api


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


def test_a_recording_has_its_own_tokens_and_title(one_thread: None) -> None:
    from tiny_transformer import tiny

    with uwaga.watch(model := tiny("gpt2")) as recording, torch.no_grad():
        model(torch.tensor([[5, 6, 7, 8]]))
    with uwaga.view(recording, model="tiny", browser=False, block=False) as view:
        (side,) = view.service.answer({"request": "about"}).meta["sides"]
        assert (side["model"], side["title"]) == ("tiny", "5 6 7 8")
        assert side["maps"] == [{"kind": "decoder", "layer": layer, "heads": 4, "sees": [None, 0]} for layer in (0, 1)]


def test_two_texts_side_by_side(attention: uwaga.AttentionMap) -> None:
    with uwaga.view(attention, Maps(attention, title="again"), browser=False, block=False) as view:
        sides = view.service.answer({"request": "about"}).meta["sides"]
        assert [side["id"] for side in sides] == ["0", "1", "difference"]
        assert sides[1]["title"] == "again"


def test_a_view_is_saved(attention: uwaga.AttentionMap, small_front: Path, tmp_path: Path) -> None:
    told: list[float] = []
    with uwaga.view(attention, browser=False, block=False) as view:
        view.save(tmp_path / "page.html", exact=[("encoder", 0, 1)], progress=told.append)
    assert (tmp_path / "page.html").read_bytes().startswith(b"<!doctype html>")
    assert told[-1] == 1


@pytest.mark.parametrize(
    ("prompt", "block", "waits"), [(False, None, 1), (True, None, 0), (True, True, 1), (False, False, 0)]
)
def test_it_blocks_in_a_program_and_not_at_a_prompt(
    attention: uwaga.AttentionMap, monkeypatch: pytest.MonkeyPatch, prompt: bool, block: bool | None, waits: int
) -> None:
    waited: list[ServedView] = []
    monkeypatch.setattr(api, "at_prompt", lambda: prompt)
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


def test_in_terminal_ipython_the_view_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert not api.in_notebook()
    assert api.at_prompt()
