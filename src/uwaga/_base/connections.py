"""What the servers share: their socket, how many connections wait for their peer and how long, and reading a request.

Without limits, a client that opens thousands of connections, sends nothing or reads no responses would use up the process's file
descriptors or its memory. Each connection is limited on its own: h11 bounds the headers, uvicorn stops reading while a request waits
behind another one, and responses are sent in chunks. The reaper limits the number and the waiting time of all connections together.
"""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar, cast

import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import Receive

MAX_CONNECTIONS = 1024  # and no more than half of the files that the process may open
IDLE_SECONDS = 20.0  # until a connection is closed whose peer sends no complete headers, or reads nothing
BODY_SECONDS = 10.0  # until a body must be complete
_BACKLOG = 128  # connections that are not accepted yet
_TICK = 0.1  # seconds between looks at connections

T = TypeVar("T")


class PortError(OSError):
    """The requested address or port is not available."""


class IdleConnectionReaper:
    """Closes connections that wait too long for their peer, or that are too many: the longest waiting first.

    A connection waits while it has no request, or while its peer does not read. Its request, or the part of the response that is left,
    is then the same each time it is looked at. A connection whose request is being computed is never closed.

    idle: seconds that a connection may wait.
    """

    def __init__(self, idle: float = IDLE_SECONDS) -> None:
        self.idle, self.max_connections = idle, _max_connections()
        self._waiting: dict[Any, tuple[object, float]] = {}  # what each connection waits with, and since when

    def reap(self, connections: Collection[Any], room: int = 0) -> None:
        """Close connections, so that there is room for so many more. To be called periodically."""
        now, waiting = time.monotonic(), dict[Any, tuple[object, float]]()
        for connection in filter(_is_waiting, connections):
            state = (connection.cycle, connection.transport.get_write_buffer_size())
            before, since = self._waiting.get(connection, (None, now))
            waiting[connection] = (state, since if before == state else now)
        self._waiting = waiting
        excess = len(connections) + room - self.max_connections
        for number, connection in enumerate(sorted(waiting, key=lambda peer: waiting[peer][1])):
            if number < excess or now - waiting[connection][1] >= self.idle:
                connection.transport.abort()


def _is_waiting(connection: Any) -> bool:
    """Return whether a connection waits for its peer. uvicorn's `cycle` is a request and its response, None before the first one."""
    if connection.transport is None:
        return False
    is_idle = connection.cycle is None or connection.cycle.response_complete
    return is_idle or connection.transport.get_write_buffer_size() > 0 or connection.transport.is_closing()


def _max_connections() -> int:
    """Return how many connections a server of this process may hold."""
    try:
        import resource
    except ImportError:  # Windows, where sockets are not counted among files
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft // 2)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises PortError."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = addresses[0]
        # asyncio disables Nagle's algorithm, which delays packets by 40 ms, only for sockets that say they are TCP.
        listening = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            if os.name == "posix":  # otherwise a port stays taken for a minute after its last connection
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address[0], port, *address[2:]))
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
    except (OSError, OverflowError) as error:
        why = error.strerror or error if isinstance(error, OSError) else error
        raise PortError(f"port {port} of {host} is not available: {why}") from error
    return listening


def uvicorn_server(application: Any, reaper: IdleConnectionReaper, *, access_log: bool = False) -> uvicorn.Server:
    """Return a server of an ASGI application, whose connections the reaper limits.

    The server logs its own errors only, and leaves the program's logging configuration as it is.
    """

    def accept(**options: Any) -> H11Protocol:
        """Return the protocol of a new connection."""
        if len(server.server_state.connections) >= reaper.max_connections:
            reaper.reap(server.server_state.connections, room=1)
        return H11Protocol(**options)

    config = uvicorn.Config(
        application,
        # h11 limits the size of headers; httptools, where it is installed, does not.
        http=cast("type[asyncio.Protocol]", accept),
        loop="asyncio",
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="error",  # each malformed request is a warning, and anybody can send them
        access_log=access_log,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=round(reaper.idle),
    )
    server = uvicorn.Server(config)
    return server


async def serve(
    server: uvicorn.Server, reaper: IdleConnectionReaper, listening: socket.socket, *, grace: float = float("inf")
) -> None:
    """Serve until the server's `should_exit`, and then for so many seconds requests that were accepted before."""
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    while not serving.done():  # even while it stops, so that a client that reads nothing does not keep it alive
        await asyncio.wait({serving}, timeout=_TICK)
        reaper.reap(server.server_state.connections)
        grace -= _TICK * server.should_exit
        if grace < 0:
            for connection in list(server.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()
    await serving


def require_json(request: Request) -> None:
    """Raise HTTPException for a request whose body is not JSON."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the Content-Type of a request must be application/json")


async def read_body(request: Request, most: int, count: Callable[[int], object] = lambda size: None) -> bytes:
    """Return the body of a request. Raises HTTPException before a body beyond the limit is in memory, and ClientDisconnect.

    count: called with the bytes of each part before it is kept.
    """
    too_large = HTTPException(413, f"the body of the request exceeds {most:,} bytes")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                count(len(part))
                body += part
                if len(body) > most:
                    raise too_large
    except TimeoutError as error:
        raise HTTPException(408, f"the body of the request was not complete within {BODY_SECONDS:g} seconds") from error
    return bytes(body)


async def unless_gone(receive: "Receive", work: Awaitable[T]) -> T:
    """Return the result of work. If the client disconnects first, cancel the work and raise ClientDisconnect."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    result, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({result, gone}, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return result.result()
        raise ClientDisconnect
    finally:
        gone.cancel()
        result.cancel()
