"""The notebook widget in a browser: its script and styles, with messages in place of a server."""

import base64
from typing import Any

import pytest
from pages import MakeMaps, Open

from uwaga.viewer.notebook import handle_message, widget
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View

pytestmark = pytest.mark.slow

pytest.importorskip("anywidget")

# As anywidget does: imports the script, calls render of its default export, and sends messages to all listeners.
RUN = """async ([script, styles]) => {
  const sheet = document.createElement("style");
  sheet.textContent = styles;
  document.head.append(sheet);
  const listeners = new Set();
  const model = {
    on: (event, listener) => event === "msg:custom" && listeners.add(listener),
    off: (event, listener) => listeners.delete(listener),
    async send(message) {
      for (const [answer, buffers] of await window.kernel(message)) {
        const views = buffers.map((text) => new DataView(Uint8Array.from(atob(text), (x) => x.charCodeAt(0)).buffer));
        for (const listener of [...listeners]) listener(answer, views);
      }
    },
  };
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const { default: made } = await import(address);
  window.end = await made.render({ model, el: document.body });
  window.listeners = listeners;
}"""


@pytest.fixture
def shown(open_page: Open, make_maps: MakeMaps) -> Any:
    """A page that contains the widget, as in a notebook."""
    service = ViewService(View.of(Maps(make_maps(11), tokens=list("abcdefghijk"), title="a text")))
    made: Any = widget(service)

    def kernel(message: object) -> list[Any]:
        said: list[Any] = []
        handle_message(
            service,
            message,
            lambda answer, buffers: said.append([answer, [base64.b64encode(x).decode() for x in buffers]]),
        )
        return said

    page = open_page("about:blank")
    page.expose_function("kernel", kernel)
    page.evaluate(RUN, [made.get_state()[name] for name in ("_esm", "_css")])
    return page


def test_the_widget_shows_the_table_and_is_removed_when_the_cell_runs_again(shown: Any) -> None:
    shown.get_by_role("tab", name="Explore").wait_for()
    assert shown.locator(".uwaga").first.is_visible()
    assert shown.get_by_role("tab", name="Lesson").count() == 0  # it was not opened for the lesson
    shown.get_by_role("tab", name="All heads").click()
    shown.get_by_role("button", name="Table").click()
    shown.get_by_role("row").nth(6).wait_for()  # six heads and the header row
    assert shown.evaluate("listeners.size") == 1
    shown.evaluate("end()")
    assert shown.evaluate("listeners.size") == 0
