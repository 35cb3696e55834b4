"""The view in a notebook: an anywidget whose front end sends requests as messages."""

import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from uwaga._base import install
from uwaga._base.languages import page_table
from uwaga.viewer.messages import RequestError, Service
from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.page.snapshot import SECONDS, save_snapshot


class Widget:
    """The view in a notebook; the class that `widget_class` makes is also an anywidget.AnyWidget."""

    _service: Service
    _language: str

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        seconds: float = SECONDS,
        progress: Callable[[float], None] | None = None,
    ) -> str:
        """As `ServedView.save`."""
        return save_snapshot(self._service, path, seconds=seconds, progress=progress, language=self._language)

    def close(self) -> None:
        """Remove the widget from the notebook."""
        raise NotImplementedError


def widget(service: Service, language: str = "en") -> Widget:
    """Return a widget whose requests the service answers.

    Raises ImportError: the extra `uwaga[view]` is not installed.
    """
    made: Widget = widget_class()(service, language)
    return made


def handle_message(service: Service, message: object, send: Callable[[dict[str, Any], list[bytes]], None]) -> None:
    """Answer a message {id, request} with {id, header} and the arrays' bytes, or {id, error}.

    Other messages are ignored. Any exception of the service except RequestError is sent to the page as a failure and
    raised, so that the notebook logs it.
    """
    if not isinstance(message, Mapping) or "id" not in message:
        return
    content: dict[str, Any] = {"error": "internal error; the notebook's log has the traceback"}
    buffers: list[bytes] = []
    try:
        request = message.get("request")
        if not isinstance(request, Mapping):
            raise RequestError("a request must be a JSON object")
        reply = service.answer(dict(request))
        content, buffers = {"header": reply.header()}, [reply.body()]
    except RequestError as error:
        content = {"error": str(error)}
    finally:
        send({"id": message["id"], **content}, buffers)


@cache
def widget_class() -> type[Any]:
    """Make the class, whose base comes with the extra. Raises ModuleNotFoundError without it."""
    rule = "uwaga.view in a notebook needs anywidget, which is not installed: pip install 'uwaga[view]'"
    anywidget = install.optional("anywidget", "anywidget", rule)

    class AttentionView(anywidget.AnyWidget, Widget):  # type: ignore[misc, name-defined]
        """Answers in the kernel's own thread, one request at a time: each takes a fraction of a second."""

        def __init__(self, service: Service, language: str = "en") -> None:
            about = service.answer({"request": "about"}).meta
            self._title, front = about["title"], bundle(lesson=about["lesson"])
            table = json.dumps(page_table(language), ensure_ascii=False)
            self._esm = f"globalThis.uwagaLanguage = {table};\n{front.script('widget')}"
            self._css, self._service, self._language = front.css, service, language
            super().__init__()
            self.on_msg(lambda _, message, buffers: handle_message(service, message, self.send))

        def __repr__(self) -> str:
            """Return what a saved notebook shows while no kernel runs it."""
            advice = "run the notebook to use it, or open a page that its save(path) wrote"
            return f"AttentionView({self._title!r}): {advice}"

    return AttentionView
