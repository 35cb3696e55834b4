"""Connections that ask nothing: whoever opens thousands of them must not keep a server from opening files, or from answering."""

import time
from collections.abc import Collection
from typing import Any

_GRACE = 2.0  # seconds; a thousand that ask at once have asked by then


class Silent:
    """Since when each connection has asked nothing. uvicorn itself hangs up on those alone that have asked before.

    Args:
        most: of them at a time; those that have been silent longest go first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._since: dict[Any, float] = {}

    def hang_up(self, connections: Collection[Any], seconds: float) -> None:
        """On those that have been silent for so long, and on the longest silent ones of too many."""
        now = time.monotonic()
        # uvicorn's own: `cycle` is a request and its response, None before the first one.
        silent = [each for each in connections if each.transport is not None and _is_silent(each)]
        since = {each: self._since.get(each, now) for each in silent}
        self._since = dict(sorted(since.items(), key=lambda item: item[1]))
        for place, (connection, began) in enumerate(list(self._since.items())):
            is_one_of_too_many = place < len(self._since) - self._most and now - began >= _GRACE
            if now - began >= seconds or is_one_of_too_many:
                connection.transport.abort()


def _is_silent(connection: Any) -> bool:
    return connection.cycle is None or connection.cycle.response_complete
