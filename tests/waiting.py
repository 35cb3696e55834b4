"""Waiting for a state. Its deadline is one that a hang alone reaches: a busy machine is slow, and is no failure."""

import time
from collections.abc import Callable
from typing import Any

import pytest

HANG = 600  # seconds; a test's own limit, in pyproject.toml, is longer, so that what is waited for is named


def until(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, "this does not come to an end"
        time.sleep(0.005)


class ServerClock:
    """The clock by which a view's server counts how long its connections wait; it stands still but for `advance`."""

    def __init__(self, server: Any, patch: pytest.MonkeyPatch) -> None:
        self.now, self.rounds = time.monotonic(), 0
        self.progressed: dict[object, float] = {}  # when a part of an answer was sent to a client
        reap, record_progress = server.reaper.reap, server.reaper.record_progress

        def counted(connections: object) -> None:
            reap(connections)
            self.rounds += 1

        def noted(client: object, *, complete: bool) -> None:
            record_progress(client, complete=complete)
            self.progressed[client] = self.now

        patch.setattr(server.reaper, "reap", counted)
        patch.setattr(server.reaper, "record_progress", noted)
        patch.setattr("uwaga._base.connections.time", self)

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """To the server so many seconds are gone: it has looked at its connections before and after them."""
        self.look()
        self.now += seconds
        self.look()

    def look(self) -> None:
        rounds = self.rounds
        until(lambda: self.rounds >= rounds + 2)  # the first one may have begun before
