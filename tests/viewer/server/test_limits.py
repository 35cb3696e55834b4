"""Limits: idle connections are closed, and the number of concurrent computations is bounded."""

import asyncio
import socket
import threading
from contextlib import ExitStack

import pytest
from waiting import HANG, ServerClock, until

from uwaga._base.connections import ConnectionTimeouts, IdleConnectionReaper
from uwaga.viewer.server.limits import ConcurrencyLimiter
from uwaga.viewer.server.server import ServedView
from uwaga.viewer.service import TABLE


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.fixture
def crowd_of_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uwaga._base.connections.MAX_WAITING", 8)


def test_an_idle_connection_is_closed(server, client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it sends meanwhile, if that is no whole request."""
    clock = ServerClock(server, monkeypatch)
    silent, dripping = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(2))
    until(lambda: len(server.uvicorn.server_state.connections) == 2)
    idle = ConnectionTimeouts().idle
    for _ in range(3):
        clock.advance(0.3 * idle)
        dripping.send(b"GET / HT")
        assert is_open(silent)
        assert is_open(dripping)
    clock.advance(0.2 * idle)
    until(lambda: not is_open(silent) and not is_open(dripping))
    assert client.ask({"request": "echo"}).status == 200
    silent.close()
    dripping.close()


@pytest.mark.usefixtures("crowd_of_8")
def test_the_longest_idle_of_too_many_connections_are_closed(service) -> None:
    timeouts = ConnectionTimeouts(idle=float("inf"), crowded=0.2)
    with ServedView(service, title="a text", timeouts=timeouts) as server, ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        early = [stack.enter_context(socket.create_connection(address)) for _ in range(10)]
        until(lambda: sum(map(is_open, early)) <= 8)
        late = [stack.enter_context(socket.create_connection(address)) for _ in range(10)]
        until(lambda: not any(map(is_open, early)))
        until(lambda: sum(map(is_open, late)) == 8)


@pytest.mark.usefixtures("crowd_of_8")
def test_connections_of_a_crowd_have_their_time(server, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ServerClock(server, monkeypatch)
    crowded = ConnectionTimeouts().crowded
    with ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        made = [stack.enter_context(socket.create_connection(address)) for _ in range(10)]
        until(lambda: len(server.uvicorn.server_state.connections) == 10)
        clock.advance(0.9 * crowded)
        assert all(map(is_open, made))
        clock.advance(0.2 * crowded)
        until(lambda: sum(map(is_open, made)) == 8)


class Connection:
    """As uvicorn has them: it has sent nothing yet."""

    cycle = None

    def __init__(self, number: int) -> None:
        self.number, self.client, self.transport, self.is_aborted = number, ("127.0.0.1", number), self, False

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def test_of_those_accepted_at_once_the_first_are_closed() -> None:
    """A client that comes after a flood is the last that it can drive out."""
    reaper = IdleConnectionReaper(ConnectionTimeouts(), 40)
    made = [Connection(number) for number in range(60)]
    for each in made:
        reaper.record_accepted(each)
    connections = set(made)
    reaper.make_room(connections)
    assert [each.number for each in made if each.is_aborted] == [0]
    reaper.reap(connections)
    assert [each.number for each in made if each.is_aborted] == list(range(20))


async def stays() -> None:
    await asyncio.Event().wait()


def test_long_work_delays_only_other_long_work() -> None:
    async def ask() -> None:
        limiter, advance = ConcurrencyLimiter(at_once=1, waiting=10), threading.Event()
        long = [
            asyncio.ensure_future(limiter.compute(lambda: advance.wait(HANG), stays(), lane="long")) for _ in range(3)
        ]
        await asyncio.sleep(0.01)
        assert await limiter.compute(lambda: "short", stays()) == "short"
        assert not any(each.done() for each in long)
        advance.set()
        await asyncio.gather(*long)
        limiter.close()

    asyncio.run(ask())


def test_a_score_that_is_split_keeps_no_text_from_ending_the_one_before() -> None:
    """The score waits for the text that is run; the next text must begin to end that one."""

    async def ask() -> None:
        limiter, ended = ConcurrencyLimiter(at_once=1, waiting=10), threading.Event()
        waiting = [
            asyncio.ensure_future(limiter.compute(lambda: ended.wait(HANG), stays(), lane=TABLE[name].lane))
            for name in ("run", "why", "why")
        ]
        await asyncio.wait_for(limiter.compute(ended.set, stays(), lane=TABLE["run"].lane), HANG / 2)
        assert await asyncio.gather(*waiting) == [True] * 3
        limiter.close()

    asyncio.run(ask())
