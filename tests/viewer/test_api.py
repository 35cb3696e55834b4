"""uwaga.view: browser, notebook and saved page, what it prints, when it blocks; the messages of the widget."""

import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from saved_pages import read_reply
from waiting import HANG

import uwaga
from uwaga.viewer import notebook
from uwaga.viewer.api import at_prompt
from uwaga.viewer.messages import Reply
from uwaga.viewer.notebook import handle_message
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View


@pytest.fixture
def service() -> ViewService:
    torch.manual_seed(0)
    return ViewService(View.of(Maps(uwaga.AttentionMap(*torch.randn(2, 2, 4, 8)), tokens=list("abcd"))))


class Sent(list[tuple[dict[str, Any], list[bytes]]]):
    """Records the messages that are sent to the page."""

    def send(self, message: dict[str, Any], buffers: list[bytes]) -> None:
        self.append((message, buffers))


@pytest.fixture
def sent() -> Sent:
    return Sent()


def test_a_reply_is_a_header_and_a_buffer(service: ViewService, sent: Sent) -> None:
    question = {"request": "row", "side": "0", "kind": "encoder", "layer": 0, "head": 1, "query": 2}
    question |= {"merge": "tokens", "specials": "show"}
    handle_message(service, {"id": "x-1", "request": question}, sent.send)
    ((message, (body,)),) = sent
    expected = service.answer(question)
    assert message == {"id": "x-1", "header": expected.header()}
    assert body == expected.body()
    # Header and buffer together are the bytes that a server sends.
    assert read_reply(expected.to_bytes()).arrays[0].tobytes() == body[:16]


def test_errors_are_sent_to_the_page_and_messages_without_an_id_are_ignored(service: ViewService, sent: Sent) -> None:
    for message in ("about", None, [], {"request": {"request": "about"}}, {"id": 1}, {"id": 2, "request": "about"}):
        handle_message(service, message, sent.send)
    assert sent == [({"id": id, "error": "a request must be a JSON object"}, []) for id in (1, 2)]


def test_an_internal_error_is_sent_to_the_page_and_raised_in_the_notebook(sent: Sent) -> None:
    class Broken:
        def answer(self, question: object) -> Reply:
            raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        handle_message(Broken(), {"id": 1, "request": {"request": "about"}}, sent.send)
    assert sent == [({"id": 1, "error": "internal error; the notebook's log has the traceback"}, [])]


@pytest.mark.usefixtures("small_front")
def test_the_widget_has_the_front_end_and_replies(service: ViewService, tmp_path: Path) -> None:
    pytest.importorskip("anywidget")
    from IPython.core.formatters import DisplayFormatter

    made: Any = notebook.widget(service)
    state = made.get_state()
    assert state["_esm"].endswith(".render(context) };\n")
    assert state["_css"] == "/* main.css */\n.uwaga { color: black; }\n"
    shown, _ = DisplayFormatter().format(made)
    assert shown["text/plain"] == (
        "AttentionView('a b c d'): run the notebook to use it, or open a page that its save(path) wrote"
    )
    sent = Sent()
    made.send = sent.send
    asked = {"method": "custom", "content": {"id": 7, "request": {"request": "about"}}}
    made.comm.handle_msg({"content": {"data": asked}, "buffers": []})
    ((message, buffers),) = sent
    assert message["header"]["meta"]["title"] == "a b c d"
    assert buffers == [b""]
    made.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes().startswith(b"<!doctype html>")
    made.close()


def test_the_error_without_anywidget_names_the_extra(monkeypatch: pytest.MonkeyPatch, service: ViewService) -> None:
    notebook.widget_class.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs anywidget, .*: pip install 'uwaga\[view\]'"):
        notebook.widget(service)


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
