"""The connections of a server: whoever opens thousands of them, asks nothing, or takes no answers must not keep the server
from opening files, fill its memory, or keep it from answering others.

Each connection is bounded by itself: uvicorn stops reading when a request waits behind another one, and what is sent goes out
in pieces, each when the one before it is on its way. Here is what they may come to together, and for how long.
"""

import os
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

MOST_WAITING = 512  # connections that wait for their peer
MOST_BYTES = 16 << 20  # that all connections together have not sent yet
_GRACE = 2.0  # seconds; a thousand that ask at once have asked by then
_MOST = 1024  # connections, and no more than half of the files that the process may open

Address = tuple[str, int]  # of a peer


class Limits(NamedTuple):
    """Seconds."""

    silent: float = 20.0  # from the connection, or from the last response, to the end of a request's headers
    stalled: float = 10.0  # in which a peer takes nothing of what is there for it
    response: float = 60.0  # from a response's first byte to its last


class Connections:
    """Since when each connection waits for its peer: for a request, or for what was sent to be taken.

    Those that wait for an answer of ours, which only a question with a token can, are never closed.

    Args:
        limits: when one is closed that waits.
        most: connections at a time; more are accepted by closing those that have waited longest.
    """

    def __init__(self, limits: Callable[[], Limits], most: int) -> None:
        self._limits, self._most = limits, most
        self._since: dict[Any, float] = {}
        self._advanced: dict[Address, float] = {}  # when a piece of a response was on its way
        self._begun: dict[Address, float] = {}  # when a response began that is not complete

    def advance(self, client: Address, *, complete: bool) -> None:
        """The peer has taken what was sent before; or that was the last piece of a response."""
        now = time.monotonic()
        self._advanced[client] = now
        if complete:
            self._begun.pop(client, None)
        else:
            self._begun.setdefault(client, now)

    def make_room(self, connections: Collection[Any]) -> None:
        """For one more: close the one that has waited longest, where there are too many."""
        if len(connections) >= self._most:
            waiting = [each for each in connections if _is_waiting(each) and not each.transport.is_closing()]
            if waiting:
                self._hang_up(min(waiting, key=lambda each: self._since.get(each, float("inf"))))

    def hang_up(self, connections: Collection[Any]) -> None:
        """Close those that have waited too long, and the longest waiting ones of too many. To be called often."""
        now, limits = time.monotonic(), self._limits()
        self._note(connections, now)
        for each, since in list(self._since.items()):
            is_stalled = _bytes(each) > 0 or each.transport.is_closing()
            begun = self._begun.get(each.client, now)
            if now - since >= (limits.stalled if is_stalled else limits.silent) or now - begun >= limits.response:
                self._hang_up(each)
        for each in list(self._since)[: max(len(connections) - self._most, 0)]:  # of a batch that was accepted at once
            self._hang_up(each)
        for each, since in list(self._since.items())[: max(len(self._since) - MOST_WAITING, 0)]:
            if now - since >= _GRACE:
                self._hang_up(each)
        left = sum(map(_bytes, self._since)) - MOST_BYTES
        for each in list(self._since):
            if left > 0 and _bytes(each):
                left -= _bytes(each)
                self._hang_up(each)

    def _note(self, connections: Collection[Any], now: float) -> None:
        """Those that wait, the longest waiting first."""
        waiting = [each for each in connections if _is_waiting(each)]
        since = {each: max(self._since.get(each, now), self._advanced.get(each.client, 0.0)) for each in waiting}
        self._since = dict(sorted(since.items(), key=lambda item: item[1]))
        there = {each.client for each in connections}
        for times in (self._advanced, self._begun):
            for client in times.keys() - there:
                del times[client]

    def _hang_up(self, connection: Any) -> None:
        """At once: what was not sent is dropped."""
        self._since.pop(connection, None)
        connection.transport.abort()


def most_connections() -> int:
    """How many a server of this process may hold."""
    if os.name != "posix":
        return _MOST
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(_MOST, soft // 2)


def _bytes(connection: Any) -> int:
    """What was sent, and is not on its way."""
    count: int = connection.transport.get_write_buffer_size()
    return count


def _is_waiting(connection: Any) -> bool:
    """For its peer. uvicorn's own: `cycle` is a request and its response, None before the first one."""
    if connection.transport is None:
        return False
    is_silent = connection.cycle is None or connection.cycle.response_complete
    return is_silent or _bytes(connection) > 0 or connection.transport.is_closing()
