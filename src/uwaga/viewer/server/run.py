"""A server's life: a port of this machine alone, a thread of its own, a browser where there is one, and the end."""

import asyncio
import os
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

import uvicorn

from uwaga.viewer.server.app import application
from uwaga.viewer.server.asking import Desk
from uwaga.viewer.server.gate import Gate
from uwaga.viewer.server.guard import Guard
from uwaga.viewer.server.silent import Silent

_LOOPBACK = "127.0.0.1"
# Browsers that would take the terminal over. Where there is no display, webbrowser knows of these alone.
_IN_A_TERMINAL = {"www-browser", "elinks", "links", "links2", "lynx", "w3m"}
_LAST_ANSWERS = 1  # seconds
_SILENT_SECONDS = 20.0  # what a connection may take until its first request is there
_MOST_CONNECTIONS = 512


class PortError(OSError):
    """The port that was asked for cannot be had."""


class Server:
    """A view that is being served; closed at the end of a `with`.

    Attributes:
        address: the page with the token that its data needs. The token stands behind #, so that it is in no log and is
            sent to nobody.
        port: on 127.0.0.1.
    """

    def __init__(self, desk: Desk, *, title: str, port: int = 0) -> None:
        """Serves from now on. Raises PortError."""
        listening = _listen(port)
        self.port: int = listening.getsockname()[1]
        token = secrets.token_urlsafe(32)
        self.address = f"http://{_LOOPBACK}:{self.port}/#token={token}"
        self._desk, self._gate = desk, Gate()
        app = application(desk, title=title, guard=Guard(self.port, token), gate=self._gate)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",  # which bounds headers; another, where it is installed, does not
                loop="asyncio",
                lifespan="off",
                ws="none",
                log_config=None,  # a program's own logging stays as it is
                access_log=False,
                proxy_headers=False,
                server_header=False,
            )
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=[listening], name="uwaga-view", daemon=True)
        self._thread.start()

    def browse(self) -> bool:
        """Open the page in a browser; False where there is none with a window."""
        try:
            browser = webbrowser.get()
        except webbrowser.Error:
            return False
        if getattr(browser, "basename", "") in _IN_A_TERMINAL:
            return False
        # Some browsers return when their window is closed.
        threading.Thread(target=browser.open, args=[self.address], daemon=True).start()
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

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({self.address}{', closed' if self.closed else ''})"

    def _serve(self, listening: socket.socket) -> None:
        try:
            asyncio.run(self._answer(listening))
        finally:
            self._gate.close()
            listening.close()
            self._ended.set()

    async def _answer(self, listening: socket.socket) -> None:
        serving = asyncio.ensure_future(self._server.serve(sockets=[listening]))
        silent = Silent(_MOST_CONNECTIONS)
        while not self._server.should_exit and not serving.done():
            await asyncio.wait({serving}, timeout=0.1)
            silent.hang_up(self._server.server_state.connections, _SILENT_SECONDS)
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
