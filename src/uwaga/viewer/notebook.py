"""The view in a notebook: a widget whose front end asks by messages, and a desk that answers them."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from uwaga.viewer.desk.reply import QuestionError
from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.page.saved import Desk, save_page
from uwaga.viewer.page.wanted import Exact


class Widget(Protocol):
    """What `widget` gives: an anywidget.AnyWidget with `save`."""

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        exact: Sequence[Exact] = (),
        seconds: float = 8.0,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """As `View.save`."""
        ...

    def close(self) -> None:
        """Take the widget away."""
        ...


def widget(desk: Desk) -> Widget:
    """The widget that shows what a desk knows. Raises ImportError without the extra `uwaga[view]`."""
    made: Widget = _kind()(desk)
    return made


def heard(desk: Desk, message: object, send: Callable[[dict[str, Any], list[bytes]], None]) -> None:
    """Answer a message {id, question} by {id, header} and the arrays' bytes, or by {id, error}; others are not for us.

    Whatever a desk raises beside QuestionError goes on to the notebook, which logs it; the page is told that there was
    something.
    """
    if not isinstance(message, Mapping) or "id" not in message:
        return
    said: dict[str, Any] = {"error": "the program failed at this question; the notebook's log says how"}
    buffers: list[bytes] = []
    try:
        question = message.get("question")
        if not isinstance(question, Mapping):
            raise QuestionError("a question is an object")
        reply = desk.answer(dict(question))
        said, buffers = {"header": reply.header()}, [reply.body()]
    except QuestionError as error:
        said = {"error": str(error)}
    finally:
        send({"id": message["id"], **said}, buffers)


@cache
def _kind() -> type:
    """The class, made when it is first used: its base comes with the extra."""
    try:
        import anywidget
    except ModuleNotFoundError as error:
        rule = "uwaga.view in a notebook needs anywidget, which is not installed: pip install 'uwaga[view]'"
        raise ModuleNotFoundError(rule, name="anywidget") from error

    class AttentionView(anywidget.AnyWidget):
        """Answers in the kernel's own thread, one question after the other: a desk takes no longer for one than a blink."""

        def __init__(self, desk: Desk) -> None:
            front = bundle()
            self._esm, self._css, self._desk = front.script("widget"), front.css, desk
            super().__init__()
            self.on_msg(lambda _, message, buffers: heard(desk, message, self.send))

        def save(
            self,
            path: str | os.PathLike[str],
            *,
            exact: Sequence[Exact] = (),
            seconds: float = 8.0,
            progress: Callable[[float], None] | None = None,
        ) -> None:
            """As `View.save`."""
            save_page(self._desk, path, exact=exact, seconds=seconds, progress=progress)

    return AttentionView
