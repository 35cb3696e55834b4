"""The widget of a notebook: its messages, and what it says where anywidget is not."""

from pathlib import Path
from typing import Any

import pytest
import torch

import uwaga
from uwaga.viewer.desk import Desk, Reply
from uwaga.viewer.exhibit import Exhibit
from uwaga.viewer.notebook import heard

FAILED = "the program failed at this question; the notebook's log says how"


@pytest.fixture
def desk() -> Desk:
    torch.manual_seed(0)
    return Desk(Exhibit.of(uwaga.AttentionMap(*torch.randn(2, 2, 4, 8)), tokens=list("abcd")))


class Sent(list[tuple[dict[str, Any], list[bytes]]]):
    """Messages that go to the page."""

    def send(self, message: dict[str, Any], buffers: list[bytes]) -> None:
        self.append((message, buffers))


@pytest.fixture
def sent() -> Sent:
    return Sent()


def test_a_reply_is_a_header_and_a_buffer(desk: Desk, sent: Sent) -> None:
    question = {"ask": "row", "side": "0", "kind": "encoder", "layer": 0, "head": 1, "query": 2}
    question |= {"merge": "tokens", "specials": "show"}
    heard(desk, {"id": "x-1", "question": question}, sent.send)
    ((message, (body,)),) = sent
    expected = desk.answer(question)
    assert message == {"id": "x-1", "header": expected.header()}
    assert body == expected.body()
    # Both together are what a server sends.
    assert Reply.from_bytes(expected.to_bytes()).arrays[0].tobytes() == body[:16]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"id": 1}, "a question is an object"),
        ({"id": 1, "question": "about"}, "a question is an object"),
        ({"id": 1, "question": {"ask": "about", "more": 1}}, "about: there is no argument 'more'"),
    ],
)
def test_what_is_wrong_is_said(desk: Desk, sent: Sent, message: object, error: str) -> None:
    heard(desk, message, sent.send)
    assert sent == [({"id": 1, "error": error}, [])]


def test_messages_of_others_are_left_alone(desk: Desk, sent: Sent) -> None:
    for message in ("about", None, [], {"question": {"ask": "about"}}):
        heard(desk, message, sent.send)
    assert sent == []


def test_a_defect_is_told_to_the_page_and_raised_in_the_notebook(sent: Sent) -> None:
    class Broken:
        def answer(self, question: object) -> Reply:
            raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        heard(Broken(), {"id": 1, "question": {"ask": "about"}}, sent.send)
    assert sent == [({"id": 1, "error": FAILED}, [])]


@pytest.mark.usefixtures("small_front")
def test_the_widget_carries_the_front_end_and_answers(desk: Desk, tmp_path: Path) -> None:
    pytest.importorskip("anywidget")
    from uwaga.viewer.notebook import widget

    made: Any = widget(desk)
    assert made._esm.endswith("export default { render };\n")
    assert made._css == "/* main.css */\n.uwaga { color: black; }\n"
    assert {"_esm", "_css"} <= set(made.get_state())
    sent = Sent()
    made.send = sent.send
    # What the kernel does with a message from the page.
    made._handle_custom_msg({"id": 7, "question": {"ask": "about"}}, [])
    ((message, buffers),) = sent
    assert message["header"]["meta"]["title"] == "a b c d"
    assert buffers == [b""]
    made.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes().startswith(b"<!doctype html>")
    made.close()


def test_without_anywidget_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> None:
    import sys

    from uwaga.viewer import notebook

    notebook._kind.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        notebook.widget(desk)
    assert str(caught.value) == (
        "uwaga.view in a notebook needs anywidget, which is not installed: pip install 'uwaga[view]'"
    )
