"""Limits: idle connections are closed, and the number of concurrent computations is bounded."""

import asyncio
import socket
import threading
from types import SimpleNamespace

import pytest
from waiting import HANG, until

from uwaga._base import connections
from uwaga._base.connections import IDLE_SECONDS, IdleConnectionReaper
from uwaga.viewer.server.limits import ConcurrencyLimiter
from uwaga.viewer.service import TABLE


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_an_idle_connection_is_closed(server, client) -> None:
    """Whatever it sends meanwhile, if that is no whole request."""
    silent, dripping = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(2))
    until(lambda: len(server.uvicorn.server_state.connections) == 2)
    dripping.send(b"GET / HT")
    server.reaper.idle = 0.0
    until(lambda: not is_open(silent) and not is_open(dripping))
    server.reaper.idle = IDLE_SECONDS
    assert client.ask({"request": "echo"}).status == 200
    silent.close()
    dripping.close()


class Connection:
    """As uvicorn has them. unsent: bytes that its client has not taken; is_computed: whether its request is being computed."""

    def __init__(self, *, unsent: int = 0, is_computed: bool = False) -> None:
        self.transport, self.is_aborted = self, False
        self.unsent, self.cycle = unsent, SimpleNamespace(response_complete=False) if is_computed else None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def test_how_long_connections_wait_for_their_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a request from the last answer on; with an answer to be taken from the last part on."""
    clock, ended, reaper = SimpleNamespace(monotonic=lambda: second), dict[str, float](), IdleConnectionReaper()
    monkeypatch.setattr(connections, "time", clock)
    made = {
        "idle": Connection(),
        "used": Connection(),
        "takes nothing": Connection(unsent=1000, is_computed=True),
        "takes it slowly": Connection(unsent=1000, is_computed=True),
        "computed": Connection(is_computed=True),
    }
    for second in range(100):
        if second == 15:
            made["used"].cycle = SimpleNamespace(response_complete=True)
        if second % 9 == 0:
            made["takes it slowly"].unsent -= 1
        reaper.reap([connection for name, connection in made.items() if name not in ended])
        ended |= {name: second for name, connection in made.items() if connection.is_aborted and name not in ended}
    assert ended == {"takes nothing": 20, "idle": 20, "used": 35}


def test_the_longest_waiting_of_too_many_are_closed() -> None:
    """A client that comes after a flood is the last that it can drive out."""
    reaper, made = IdleConnectionReaper(), [Connection() for _ in range(20)]
    reaper.max_connections = 10
    computed = Connection(is_computed=True)
    for count in range(1, len(made) + 1):
        reaper.reap([connection for connection in (computed, *made[:count]) if not connection.is_aborted])
    assert [connection.is_aborted for connection in made] == [True] * 11 + [False] * 9
    reaper.reap([computed, *made[11:]], room=1)
    assert [connection.is_aborted for connection in made] == [True] * 12 + [False] * 8
    assert not computed.is_aborted


def test_long_work_delays_only_other_long_work() -> None:
    async def ask() -> None:
        limiter, advance = ConcurrencyLimiter(at_once=1, waiting=10), threading.Event()
        long = [asyncio.ensure_future(limiter.compute(lambda: advance.wait(HANG), lane="long")) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert await limiter.compute(lambda: "short") == "short"
        assert not any(task.done() for task in long)
        advance.set()
        await asyncio.gather(*long)
        limiter.close()

    asyncio.run(ask())


def test_a_score_that_is_split_keeps_no_text_from_ending_the_one_before() -> None:
    """The score waits for the text that is run; the next text must begin to end that one."""

    async def ask() -> None:
        limiter, ended = ConcurrencyLimiter(at_once=1, waiting=10), threading.Event()
        waiting = [
            asyncio.ensure_future(limiter.compute(lambda: ended.wait(HANG), lane=TABLE[name].lane))
            for name in ("run", "why", "why")
        ]
        await asyncio.wait_for(limiter.compute(ended.set, lane=TABLE["run"].lane), HANG / 2)
        assert await asyncio.gather(*waiting) == [True] * 3
        limiter.close()

    asyncio.run(ask())
