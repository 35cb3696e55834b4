"""A server's life: a port of this machine alone, a thread of its own, a browser where there is one, and the end."""

import asyncio
import os
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from uwaga._base.durable import PrivateFolder
from uwaga.viewer.server.app import application
from uwaga.viewer.server.asking import Desk
from uwaga.viewer.server.connections import Connections, Limits, most_connections
from uwaga.viewer.server.gate import Gate
from uwaga.viewer.server.guard import Guard

_LOOPBACK = "127.0.0.1"
# Browsers that would take the terminal over. Where there is no display, webbrowser knows of these alone.
_IN_A_TERMINAL = {"www-browser", "elinks", "links", "links2", "lynx", "w3m"}
_LAST_ANSWERS = 1  # seconds
_LIMITS = Limits()
_BACKLOG = 128  # connections that are accepted at once
# That the system holds for a connection, each way; by itself it would take megabytes. Less than two packets of the loopback
# interface, 64 KiB each, would wait 40 ms and more for the confirmation of each.
_SOCKET_BYTES = 1 << 17
# A browser's command line can be read by all accounts of the machine; this file by its owner alone.
_OPENING = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>uwaga</title>
<a href="{address}">uwaga</a>
"""


class PortError(OSError):
    """The port that was asked for cannot be had."""


class Server:
    """A view that is being served; closed at the end of a `with`.

    Attributes:
        port: on 127.0.0.1.

    Args:
        place: what the page begins with, such as "tab=lesson".
        tell: told a new address when somebody opens one that was used, and all that were told before are used too.
    """

    def __init__(
        self,
        desk: Desk,
        *,
        title: str,
        port: int = 0,
        place: str = "",
        tell: Callable[[str], object] = lambda address: None,
    ) -> None:
        """Serves from now on. Raises PortError."""
        listening = _listen(port)
        self.port: int = listening.getsockname()[1]
        self._place, self._tell = place, tell
        self._files: dict[str, Path] = {}  # for browsers, by their codes
        self._folder: PrivateFolder | None = None
        self._guard = Guard(self.port, self._entered)
        self._told = self.address
        self._desk, self._gate = desk, Gate()
        self._connections = Connections(lambda: _LIMITS, most_connections())
        app = application(
            desk, title=title, guard=self._guard, gate=self._gate, connections=self._connections, renew=self._renew
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                # h11 bounds headers; another, where it is installed, does not.
                http=cast("type[asyncio.Protocol]", self._accepted),
                backlog=_BACKLOG,
                loop="asyncio",
                lifespan="off",
                ws="none",
                log_config=None,  # a program's own logging stays as it is
                log_level="error",  # every bad request would be a warning, and anybody on the machine can send them
                access_log=False,
                proxy_headers=False,
                server_header=False,
            )
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=[listening], name="uwaga-view", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Of the page, with a code that opens it once: whoever does so first sees what is shown. Once it is used, this is an
        address with a new one.

        The code stands behind #, so that it is in no log and is sent to nobody but this server.
        """
        return self._address(self._guard.address_code())

    def browse(self) -> bool:
        """Open the page in a browser; False where there is none with a window.

        The browser is given a file that leads to the page, which this account alone can read.
        """
        try:
            browser = webbrowser.get()
        except webbrowser.Error:
            return False
        if getattr(browser, "basename", "") in _IN_A_TERMINAL:
            return False
        code = self._guard.new_code()
        if self._folder is None:
            self._folder = PrivateFolder()
        page = _OPENING.format(address=escape(self._address(code)))
        self._files[code] = self._folder.write(f"open-{len(self._files)}.html", page.encode())
        # Some browsers return when their window is closed.
        threading.Thread(target=browser.open, args=[self._files[code].as_uri()], daemon=True).start()
        return True

    @property
    def closed(self) -> bool:
        """Nobody is answered any more."""
        return self._ended.is_set()

    def wait(self) -> None:
        """Until Ctrl-C, SIGTERM or `close`; the server is closed then."""
        stop = threading.Event()
        with _at_sigterm(stop.set):
            try:
                # With a limit, so that Windows tells of Ctrl-C.
                while not stop.wait(0.2) and not self.closed:
                    pass
            except KeyboardInterrupt:
                pass
            finally:
                self.close()

    def close(self) -> None:
        """Stop listening and answering, and close the desk; the second time nothing."""
        if not self._server.should_exit:
            self._desk.close()
        self._server.should_exit = True
        self._thread.join()
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({self.address}{', closed' if self.closed else ''})"

    def _address(self, code: str) -> str:
        return f"http://{_LOOPBACK}:{self.port}/#{'&'.join(filter(None, (f'code={code}', self._place)))}"

    def _entered(self, code: str) -> None:
        """A file whose code is used leads nowhere."""
        if code in self._files and self._folder is not None:
            self._folder.remove(self._files[code])

    def _renew(self) -> None:
        if self._told != self.address:
            self._told = self.address
            self._tell(self._told)

    def _accepted(self, **options: Any) -> H11Protocol:
        """One more connection."""
        self._connections.make_room(self._server.server_state.connections)
        return H11Protocol(**options)

    def _serve(self, listening: socket.socket) -> None:
        try:
            asyncio.run(self._answer(listening))
        finally:
            self._gate.close()
            listening.close()
            self._ended.set()

    async def _answer(self, listening: socket.socket) -> None:
        serving = asyncio.ensure_future(self._server.serve(sockets=[listening]))
        while not self._server.should_exit and not serving.done():
            await asyncio.wait({serving}, timeout=0.1)
            self._connections.hang_up(self._server.server_state.connections)
        # What is being answered may come to its end; then connections are cut, and with them what waits.
        await asyncio.wait({serving}, timeout=_LAST_ANSWERS)
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await serving


def _listen(port: int) -> socket.socket:
    # With the protocol named: asyncio switches Nagle's algorithm off only where it knows that it is TCP, and a reply in two
    # pieces would wait 40 ms for its second.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if os.name == "posix":  # else a port stays taken for a minute after its last connection
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for which in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # connections have them from the socket that accepts them
        listening.setsockopt(socket.SOL_SOCKET, which, _SOCKET_BYTES)
    try:
        listening.bind((_LOOPBACK, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PortError(f"port {port} cannot be had: {why}") from error
    return listening


@contextmanager
def _at_sigterm(do: Callable[[], None]) -> Iterator[None]:
    """Outside of the main thread, where Python takes no signals, nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        do()

    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
