"""uwaga.view: attention in a browser, in a notebook, or in a file."""

import os
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from uwaga.viewer.desk import Desk
from uwaga.viewer.exhibit import Exhibit, Shown, Tokens
from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.page.saved import save_page
from uwaga.viewer.page.wanted import Exact

if TYPE_CHECKING:
    from uwaga.viewer.notebook import Widget
    from uwaga.viewer.server.run import Server

__all__ = ["View", "view"]


class View:
    """A view that is being served to a browser on this machine; closed at the end of a `with`.

    Attributes:
        desk: what answers the page.
    """

    def __init__(self, desk: Desk, server: "Server") -> None:
        self.desk, self._server = desk, server

    @property
    def address(self) -> str:
        """Of the page, to be opened once, by whoever may see what is shown. Once it was opened, this is an address with a new
        code, for another browser; in the first one the page stays open, and opens again without a code."""
        return self._server.address

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        exact: Sequence[Exact] = (),
        seconds: float = 8.0,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Write a page that is one file and needs no server and no network.

        The page holds every map in coarse cells, as fine as 20 MB allow, and exact weights where `exact` says.

        Args:
            path: where; the file is there whole or not at all.
            exact: heads, such as ("encoder", 3, 5): kind, layer, head; with ranges of queries and keys behind them a block
                of a head, such as ("encoder", 3, 5, (0, 512), (0, 512)).
            seconds: how long to work, about: on large maps that are sampled first, and on words and hidden special tokens.
            progress: told what part of the work is done, from 0 to 1.

        Raises:
            ValueError: heads or tokens that there are not, more weights than a page takes.
            OSError: the file cannot be written.
        """
        save_page(self.desk, path, exact=exact, seconds=seconds, progress=progress)

    def browse(self) -> bool:
        """Open the page in a browser; False where there is none with a window."""
        return self._server.browse()

    def wait(self) -> None:
        """Until Ctrl-C, SIGTERM or `close`; the view is closed then."""
        self._server.wait()

    def close(self) -> None:
        """Stop serving; the second time nothing."""
        self._server.close()

    def __enter__(self) -> "View":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"View({self.address}{', closed' if self._server.closed else ''})"


def view(
    shown: Shown,
    *,
    tokens: Tokens | None = None,
    title: str | None = None,
    model: str = "",
    row: int = 0,
    second: Shown | None = None,
    second_tokens: Tokens | None = None,
    second_title: str | None = None,
    second_model: str | None = None,
    second_row: int = 0,
    port: int = 0,
    browser: bool | None = None,
    block: bool | None = None,
) -> "View | Widget":
    """See attention: every layer and head as an overview, each map down to its exact weights, the text, and the statistics.

        with uwaga.watch(model, tokenizer=tokenizer) as recording:
            model(ids)
        uwaga.view(recording)

    In a notebook (Jupyter, VS Code, Colab, marimo) the view is a widget. Elsewhere it is served to a browser, to this machine
    alone, and its address is printed.

    Args:
        shown: a recording; a map; several maps by (kind, layer), by layer, or in the order of their layers.
        tokens: a string for each token where a recording does not know them; by "encoder" and "decoder" where there are both.
        title: what stands above; None: the beginning of the text.
        model: what the model is called.
        row: which row of a batch.
        second, ...: the same of another text or model, beside the first and as their difference.
        port: where to serve; 0: any that is free.
        browser: open one; None: where there is one with a window.
        block: return when Ctrl-C or SIGTERM ends the view; None: in a program, and not at Python's prompt.

    Returns:
        The widget in a notebook; else the view, which has been closed where it was waited for.

    Raises:
        ValueError: maps, tokens or rows that do not fit; nothing to show.
        ImportError: without the extra `uwaga[view]`.
        OSError: a port that cannot be had.
    """
    exhibit = Exhibit.of(
        shown,
        tokens=tokens,
        title=title,
        model=model,
        row=row,
        second=second,
        second_tokens=second_tokens,
        second_title=second_title,
        second_model=second_model,
        second_row=second_row,
    )
    if in_notebook():
        from uwaga.viewer.notebook import widget

        return widget(Desk(exhibit))

    def tell(address: str) -> None:
        print(f"uwaga.view: {address}", flush=True)  # noqa: T201  # the only way to it where no browser opens

    served = serve(Desk(exhibit), exhibit.title, port=port, tell=tell)
    tell(served.address)
    if browser or browser is None:
        served.browse()
    if block or (block is None and not at_prompt()):
        served.wait()
    return served


def serve(
    desk: Desk, title: str, *, tell: Callable[[str], object], port: int = 0, name: str = "view", place: str = ""
) -> View:
    """A view of what a desk answers, from now on; `tell` and `place` as of a Server.

    Raises ImportError without the extra, and OSError: a port that cannot be had.
    """
    try:
        from uwaga.viewer.server.run import Server
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("starlette", "uvicorn"):
            raise
        rule = f"uwaga.{name} needs {package}, which is not installed: pip install 'uwaga[view]'"
        raise ModuleNotFoundError(rule, name=package) from error
    bundle()  # joined now, and not while somebody waits for the page
    return View(desk, Server(desk, title=title, port=port, place=place, tell=tell))


def in_notebook() -> bool:
    """Whether what a cell returns is shown as a widget: a kernel of Jupyter's, or marimo."""
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return True
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def at_prompt() -> bool:
    """Whether somebody types at Python's prompt, or at IPython's."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)
