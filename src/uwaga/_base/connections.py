"""Limits of a server's connections: how many wait for their peer, and how long.

Without limits, a client that opens thousands of connections, sends nothing or reads no responses would use up the process's
file descriptors or its memory. Each connection is limited on its own: uvicorn stops reading while a request waits behind another
one, and responses are sent in chunks, each after the one before it was sent. The reaper limits the number, the unsent bytes and the
waiting time of all connections together.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_WAITING = 512  # connections that wait for their peer
MAX_UNSENT_BYTES = 16 << 20  # of all connections together
MAX_CONNECTIONS = 1024  # and no more than half of the files that the process may open

Address = tuple[str, int]  # of a peer


class ConnectionTimeouts(NamedTuple):
    """Seconds after which a connection is closed."""

    idle: float = 20.0  # from the connection, or from the last response, to the end of a request's headers
    # Waiting as one of more than MAX_WAITING. A browser of this machine sends its request as soon as it is connected, has at most six
    # connections to a server, and opens one again that was closed while it was idle; so what waits longer while 512 others wait
    # belongs to no reader. gunicorn keeps idle connections for 2 s, uvicorn for 5 s, of any number; nginx, once it runs short, for no time.
    crowded: float = 2.0
    stalled: float = 10.0  # in which a peer reads nothing of what is to be sent
    response: float = 60.0  # from a response's first byte to its last


class IdleConnectionReaper:
    """Closes connections that wait for their peer (for a request, or for the peer to read) too long, or that are too many.

    A connection whose request is being computed is never closed; only authorized requests are computed.

    Args:
        timeouts: of its connections.
        max_connections: connections at a time; further ones are accepted by closing those that have waited longest.
        clock: returns seconds.
    """

    def __init__(
        self, timeouts: ConnectionTimeouts, max_connections: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeouts, self.max_connections, self._clock = timeouts, max_connections, clock
        self._since: dict[Any, float] = {}  # since when each connection waits, the longest waiting first
        self._accepted: WeakKeyDictionary[Any, float] = WeakKeyDictionary()  # when, of those that `reap` has not seen
        self._progressed: dict[Address, float] = {}  # when the last chunk of a response was sent
        self._begun: dict[Address, float] = {}  # when a response began that is not complete

    def record_accepted(self, connection: Any) -> None:
        """Record that a connection was accepted. Without it, those accepted since the last `reap` would be closed in any order."""
        self._accepted[connection] = self._clock()

    def record_progress(self, client: Address, *, complete: bool) -> None:
        """Record that a chunk of a response was sent to a client. complete: whether it was the last one."""
        now = self._clock()
        self._progressed[client] = now
        if complete:
            self._begun.pop(client, None)
        else:
            self._begun.setdefault(client, now)

    def make_room(self, connections: Collection[Any]) -> None:
        """Close the connection that has waited longest if the maximum is reached. To be called before one is accepted."""
        if len(connections) >= self.max_connections:
            now, accepted = self._clock(), self._accepted
            waiting = [peer for peer in connections if _is_waiting(peer) and not peer.transport.is_closing()]
            longest = min(waiting, key=lambda peer: self._since.get(peer, accepted.get(peer, now)), default=None)
            if longest is not None:
                self._abort(longest)

    def reap(self, connections: Collection[Any]) -> None:
        """Close those that have waited too long, and the longest waiting ones of too many. To be called periodically."""
        now, timeouts = self._clock(), self.timeouts
        self._update(connections, now)
        for connection, since in list(self._since.items()):
            is_stalled = _unsent_bytes(connection) > 0 or connection.transport.is_closing()
            begun = self._begun.get(connection.client, now)
            waited = now - since >= (timeouts.stalled if is_stalled else timeouts.idle)
            if waited or now - begun >= timeouts.response:
                self._abort(connection)
        # uvicorn may accept a batch at once, after `make_room` was called for one of them.
        for connection in list(self._since)[: max(len(connections) - self.max_connections, 0)]:
            self._abort(connection)
        for connection, since in list(self._since.items())[: max(len(self._since) - MAX_WAITING, 0)]:
            if now - since >= timeouts.crowded:
                self._abort(connection)
        excess = sum(map(_unsent_bytes, self._since)) - MAX_UNSENT_BYTES
        for connection in list(self._since):
            if excess > 0 and _unsent_bytes(connection):
                excess -= _unsent_bytes(connection)
                self._abort(connection)

    def _update(self, connections: Collection[Any], now: float) -> None:
        """Record which connections wait, the longest waiting first, and forget those that are closed."""
        accepted = {connection: self._accepted.pop(connection, now) for connection in connections}
        waiting = [connection for connection in connections if _is_waiting(connection)]
        since = {
            connection: max(
                self._since.get(connection, accepted[connection]), self._progressed.get(connection.client, 0.0)
            )
            for connection in waiting
        }
        self._since = dict(sorted(since.items(), key=lambda item: item[1]))
        clients = {connection.client for connection in connections}
        for times in (self._progressed, self._begun):
            for client in times.keys() - clients:
                del times[client]

    def _abort(self, connection: Any) -> None:
        """Close at once: unsent data is dropped."""
        self._since.pop(connection, None)
        connection.transport.abort()


def uvicorn_server(application: Any, reaper: IdleConnectionReaper, **options: Any) -> uvicorn.Server:
    """Return a server of an ASGI application, whose connections the reaper limits while its `reap` is called with them.

    The server logs its own errors only, and leaves the program's logging configuration as it is. options: of uvicorn.Config."""

    def accept(**options: Any) -> H11Protocol:
        """Return the protocol of a new connection."""
        reaper.make_room(server.server_state.connections)
        connection = H11Protocol(**options)
        reaper.record_accepted(connection)
        return connection

    config = uvicorn.Config(
        application,
        access_log=options.pop("access_log", False),
        # h11 limits the size of headers; httptools, where it is installed, does not.
        http=cast("type[asyncio.Protocol]", accept),
        loop="asyncio",
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="error",  # each malformed request is a warning, and anybody can send them
        proxy_headers=False,
        server_header=False,
        **options,
    )
    server = uvicorn.Server(config)
    return server


def max_connections() -> int:
    """Return how many connections a server of this process may hold."""
    try:
        import resource
    except ImportError:  # Windows, where sockets are not counted among files
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft // 2)


def _unsent_bytes(connection: Any) -> int:
    """Return the bytes in the transport's write buffer."""
    count: int = connection.transport.get_write_buffer_size()
    return count


def _is_waiting(connection: Any) -> bool:
    """Return whether a connection waits for its peer. uvicorn's `cycle` is a request and its response, None before the first one."""
    if connection.transport is None:
        return False
    is_idle = connection.cycle is None or connection.cycle.response_complete
    return is_idle or _unsent_bytes(connection) > 0 or connection.transport.is_closing()
