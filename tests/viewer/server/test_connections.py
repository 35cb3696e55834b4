"""Connections that ask nothing are closed: after a while, and at once where they are too many."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from uwaga.viewer.server.connections import Limits
from uwaga.viewer.server.run import Server


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_one_that_never_asks_is_closed(
    server, client, until: Callable[[Callable[[], bool]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uwaga.viewer.server.run._LIMITS", Limits(silent=0.5))
    silent = socket.create_connection(("127.0.0.1", server.port))
    dripping = socket.create_connection(("127.0.0.1", server.port))
    end = time.monotonic() + 20
    while is_open(silent) or is_open(dripping):
        assert time.monotonic() < end
        time.sleep(0.1)
        dripping.setblocking(True)
        try:
            dripping.send(b"GET / HT")
        except OSError:
            break
    until(lambda: not is_open(silent))
    assert client.ask({"ask": "echo"}).status == 200
    silent.close()
    dripping.close()


def test_the_longest_silent_of_too_many_are_closed(
    desk, until: Callable[[Callable[[], bool]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uwaga.viewer.server.connections.MOST_WAITING", 8)
    monkeypatch.setattr("uwaga.viewer.server.connections._GRACE", 0.2)
    with Server(desk, title="a text") as server, ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        early = [stack.enter_context(socket.create_connection(address)) for _ in range(10)]
        until(lambda: sum(map(is_open, early)) <= 8)
        late = [stack.enter_context(socket.create_connection(address)) for _ in range(10)]
        until(lambda: not any(map(is_open, early)))
        until(lambda: sum(map(is_open, late)) == 8)
