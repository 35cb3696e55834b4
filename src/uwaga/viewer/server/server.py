"""The HTTP server of a view: a port on the loopback interface, a thread of its own, opening a browser, and shutdown."""

import asyncio
import os
import socket
import threading
import webbrowser
from collections.abc import Callable
from html import escape

from uwaga._base.connections import IdleConnectionReaper, listen, serve, uvicorn_server
from uwaga._base.durable import PrivateFolder
from uwaga.viewer.page.snapshot import SECONDS, save_snapshot
from uwaga.viewer.places import place_of
from uwaga.viewer.server.access import AccessControl
from uwaga.viewer.server.app import application
from uwaga.viewer.server.limits import ConcurrencyLimiter
from uwaga.viewer.service import ViewService

_LOOPBACK = "127.0.0.1"
# Browsers that run in the terminal. Without a display, the module webbrowser finds only these.
_TEXT_BROWSERS = {"www-browser", "elinks", "links", "links2", "lynx", "w3m"}
_SHUTDOWN_SECONDS = 1  # for replies that are being computed
# The command line of a browser can be read by all users of the machine; this file only by its owner.
_REDIRECT = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>uwaga</title>
<a href="{address}">uwaga</a>
"""


class ServedView:
    """A view that is served to a browser on this machine; as a context manager it closes at the end of the block.

    Attributes:
        service: answers the requests of the page.

    Args:
        service: it is closed with the server.
        title: of the page, for the browser's tab.
        port: on 127.0.0.1; 0: any free one.
        fragment: state that the page opens with, such as "tab=lesson".
        lesson: whether its script has the lesson from the first.
        language: of the page; None: what the browser prefers.

    Raises:
        PortError: the port is not available.
    """

    def __init__(
        self,
        service: ViewService,
        *,
        title: str,
        port: int = 0,
        fragment: str = "",
        lesson: bool = False,
        language: str | None = None,
    ) -> None:
        listening = listen(_LOOPBACK, port)
        self.port: int = listening.getsockname()[1]
        self.fragment, self._path = fragment, "?lesson" if lesson else ""
        self._folder: PrivateFolder | None = None  # of files that redirect a browser to the page
        self._opened = 0  # how many files it has
        self.access = AccessControl(self.port)
        self.service, self.limiter = service, ConcurrencyLimiter()
        self.reaper = IdleConnectionReaper()
        app = application(service, title=title, language=language, access=self.access, limiter=self.limiter)
        self.uvicorn = uvicorn_server(app, self.reaper)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=[listening], name="uwaga-view", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Return the page's URL. It gives access to the page while the server runs.

        The token is in the URL's fragment (after #), which browsers neither send nor log.
        """
        fragment = "&".join(filter(None, (f"token={self.access.token}", self.fragment)))
        return f"http://{_LOOPBACK}:{self.port}/{self._path}#{fragment}"

    def open_at(self, head: str, pick: str | None = None) -> str:
        """Let the page, also a saved one, open on a head, and return its address.

        Args:
            head: layer.head, such as "3.1", or kind/layer.head, such as "cross/3.1".
            pick: a word of the text to pick.

        Raises:
            ValueError: there is no such head, or no such word.
        """
        try:
            self.fragment = place_of(self.service, head, pick)
        except ValueError as error:
            raise ValueError(f"open_at: {error}") from error
        return self.address

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        seconds: float = SECONDS,
        progress: Callable[[float], None] | None = None,
    ) -> str:
        """Write the view as one HTML file that needs no server and no network.

        The file holds the statistics of every head, and every map pooled into cells, as small as 20 MB allow.

        Args:
            path: the file; it is written atomically.
            seconds: approximate time for what the page can do without: predictions, the largest weights, the variants that merge tokens into
                words or hide special tokens, and exact cells of maps that are so large that they were sampled first.
            progress: called with the completed fraction, from 0 to 1.

        Returns:
            What the limits of time and size left out, which the page says too; "" where nothing was.

        Raises:
            OSError: the file cannot be written.
        """
        return save_snapshot(self.service, path, seconds=seconds, progress=progress, opens=self.fragment)

    def browse(self) -> bool:
        """Open the page in a browser; False if there is no graphical browser.

        The browser gets a local file that redirects to the page and that only this user can read.
        """
        try:
            browser = webbrowser.get()
        except webbrowser.Error:
            return False
        if getattr(browser, "basename", "") in _TEXT_BROWSERS:
            return False
        if self._folder is None:
            self._folder = PrivateFolder()
        self._opened += 1
        page = _REDIRECT.format(address=escape(self.address))
        file = self._folder.write(f"open-{self._opened}.html", page.encode())
        # Some browsers block until their window is closed.
        threading.Thread(target=browser.open, args=[file.as_uri()], daemon=True).start()
        return True

    @property
    def closed(self) -> bool:
        """Return whether the server has stopped."""
        return self._ended.is_set()

    def wait(self) -> None:
        """Block until Ctrl-C or `close`, then close the server."""
        try:
            # With a timeout, since on Windows Ctrl-C does not interrupt a wait without one.
            while not self._ended.wait(0.2):
                pass
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening, and close the service. Idempotent."""
        if not self.uvicorn.should_exit:
            self.service.close()
        self.uvicorn.should_exit = True
        self._thread.join()
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> "ServedView":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ServedView({self.address}{', closed' if self.closed else ''})"

    def _serve(self, listening: socket.socket) -> None:
        try:
            # Replies that are being computed may end; then all connections are closed.
            asyncio.run(serve(self.uvicorn, self.reaper, listening, grace=_SHUTDOWN_SECONDS))
        finally:
            self.limiter.close()
            listening.close()
            self._ended.set()
