"""uwaga.view: attention in a browser, in a notebook, or in a file."""

import sys
from typing import TYPE_CHECKING

from uwaga._base.arguments import check
from uwaga._base.languages import LANGUAGES
from uwaga.inspect.run_text import RecordError
from uwaga.viewer.inputs import open_view
from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import AnyModel

if TYPE_CHECKING:
    from uwaga.viewer.inputs import Shown
    from uwaga.viewer.notebook import Widget
    from uwaga.viewer.server.server import ServedView


def view(
    shown: "Shown",
    beside: "Shown | None" = None,
    *,
    model: AnyModel | None = None,
    title: str | None = None,
    port: int = 0,
    browser: bool | None = None,
    block: bool | None = None,
    language: str | None = None,
) -> "ServedView | Widget":
    """Show attention: every layer and head as an overview, each map down to its exact weights, the text, and the statistics.

        with uwaga.watch(model, tokenizer=tokenizer) as recording:
            model(ids)
        uwaga.view(recording)

        uwaga.view("The animal didn't cross the street because it was too tired.", model="minilm")
        uwaga.view("Four score", model=uwaga.models.open(model, tokenizer=tokenizer))      # of transformers, or of uwaga.models

    A model reads a text, and the page shows its attention and predictions. Readers can type further texts into the page and switch
    heads off. In a notebook (Jupyter, VS Code, Colab, marimo) the view is a widget. Elsewhere a server on this machine (loopback
    only) shows it in a browser, and its URL is printed.

    Args:
        shown: a text; a `uwaga.viewer.Text`, which says how to read it; a recording; a map or several; a `uwaga.viewer.Maps`, which
            adds tokens, a row and a title; a PIL image; the path of a text, a picture or a saved recording; or a
            `uwaga.viewer.Question` to a soft database.
        beside: a second side of the same types, to compare with the first. To compare two models, give two `Text`.
        model: the model that reads the text: "minilm" or another bundled model, a directory, a Hugging Face Hub id, a model of
            `uwaga.models.open`, or a model in evaluation mode that was read from a directory. Default: minilm if installed, else
            copyist. For a picture, the directory of a model that reads pictures. For maps, the model's name. For a recording with
            values, the model itself, which adds *Why?* to the page.
        title: the title of the page; default: the beginning of the text, or the model of a recording.
        port: the TCP port to serve on; 0: any free port.
        browser: whether to open a browser; default: if there is a graphical one.
        block: whether to wait for Ctrl-C before returning; default: in a program, but not at Python's prompt.
        language: the language of the page, "en", "pl", "pt", "ja" or "zh"; default: the browser's, in a notebook English.

    Returns:
        A widget in a notebook. Elsewhere a ServedView, which is already closed if this call waited for Ctrl-C.

    Raises:
        ValueError: the language is unknown; there are no maps, or they are of different texts; a row is out of range; the number of
            tokens differs from the maps'; the text has no tokens, or more than the model takes; the model cannot be read
            (CheckpointError) or watched, reads no text, is in training mode, or has no tokenizer.
        ImportError: `uwaga[view]` is not installed; it is needed in a notebook.
        OSError: the port is not available.
    """
    check_language("view", language)
    try:
        service = open_view(shown, beside, model=model, title=title)
    except RecordError as error:
        error.args = (f"view: {error}",)
        raise
    return display(service, port=port, browser=browser, block=block, language=language)


def display(
    service: ViewService,
    name: str = "view",
    *,
    port: int,
    browser: bool | None,
    block: bool | None,
    fragment: str = "",
    language: str | None = None,
) -> "ServedView | Widget":
    """Return a widget in a notebook; elsewhere serve the view, print its URL, open a browser and wait.

    port, browser and block are those of `view`, the other arguments those of `serve`.
    """
    if in_notebook():
        from uwaga.viewer.notebook import widget

        return widget(service, language or "en")

    served = serve(service, port=port, name=name, fragment=fragment, language=language)
    print(f"uwaga.{name}: {served.address}", flush=True)  # noqa: T201  # if no browser opens, this is the only way to the page
    if browser or browser is None:
        served.browse()
    if block or (block is None and not at_prompt()):
        served.wait()
    return served


def serve(
    service: ViewService,
    *,
    port: int = 0,
    name: str = "view",
    fragment: str = "",
    language: str | None = None,
) -> "ServedView":
    """Start a server for a view; `port` and `fragment` as in `ServedView`.

    Args:
        name: "view" or "lesson"; a lesson's page has it as its title.
        language: of the page, a code of uwaga._base.languages; None: what the browser prefers.

    Raises:
        OSError: the port is not available.
    """
    from uwaga.viewer.server.server import ServedView

    lesson = service.opens_with_lesson
    bundle(lesson=lesson)  # now, so that the first request of a page does not wait for it
    return ServedView(
        service,
        title=service.view.title if name == "view" else name,
        port=port,
        fragment=fragment,
        lesson=lesson,
        language=language,
    )


def check_language(name: str, language: str | None) -> None:
    """Check the language of a page. Raises ValueError: there is no table of it."""
    is_known = language is None or language in LANGUAGES
    check(is_known, f"{name}: language must be one of {', '.join(LANGUAGES)}, not {language!r}")


def in_notebook() -> bool:
    """Return whether a cell's value is displayed as a widget: in a Jupyter kernel or in marimo."""
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return True
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def at_prompt() -> bool:
    """Return whether this is an interactive session, of Python or of IPython."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)
