"""Limits: idle connections are closed, and the number of concurrent computations is bounded."""

import asyncio
import socket
import threading
from collections.abc import Iterable
from types import SimpleNamespace

from waiting import HANG, until

from uwaga._base.connections import MAX_UNSENT_BYTES, MAX_WAITING, ConnectionTimeouts, IdleConnectionReaper
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
    server.reaper.timeouts = ConnectionTimeouts(idle=0.0)
    until(lambda: not is_open(silent) and not is_open(dripping))
    server.reaper.timeouts = ConnectionTimeouts()
    assert client.ask({"request": "echo"}).status == 200
    silent.close()
    dripping.close()


class Connection:
    """As uvicorn has them. unsent: bytes that its client has not taken; is_computed: whether its request is being computed."""

    def __init__(self, number: int, *, unsent: int = 0, is_computed: bool = False) -> None:
        self.number, self.client, self.transport, self.is_aborted = number, ("127.0.0.1", number), self, False
        self.unsent, self.cycle = unsent, SimpleNamespace(response_complete=False) if is_computed else None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_how_long_connections_wait_for_their_peer() -> None:
    """For a request from the last answer on; with an answer to be taken from the last part on, and for all of it."""
    clock, ended = Clock(), dict[str, float]()
    reaper = IdleConnectionReaper(ConnectionTimeouts(), 40, clock)
    made = {
        "idle": Connection(1),
        "used": Connection(2),
        "takes nothing": Connection(3, unsent=1000),
        "takes it slowly": Connection(4, unsent=1000),
        "computed": Connection(5, is_computed=True),
    }
    for second in range(100):
        clock.now = second
        if second == 15:
            reaper.record_progress(made["used"].client, complete=True)
        if second % 9 == 0:
            reaper.record_progress(made["takes it slowly"].client, complete=False)
        reaper.reap([connection for name, connection in made.items() if name not in ended])
        ended |= {name: second for name, connection in made.items() if connection.is_aborted and name not in ended}
    assert ended == {"takes nothing": 10, "idle": 20, "used": 35, "takes it slowly": 60}


def test_the_longest_waiting_of_too_many_are_closed() -> None:
    """Also of those accepted at once, so that a client that comes after a flood is the last that it can drive out."""
    clock = Clock()
    reaper = IdleConnectionReaper(ConnectionTimeouts(), 2 * MAX_WAITING, clock)
    made = [Connection(number) for number in range(MAX_WAITING + 20)]

    def aborted(connections: Iterable[Connection]) -> list[int]:
        return [connection.number for connection in connections if connection.is_aborted]

    for connection in made:
        clock.now += 1e-6
        reaper.record_accepted(connection)
    connections = set(made)
    reaper.reap(connections)
    clock.now = 1.9
    reaper.reap(connections)
    assert aborted(made) == []
    clock.now = 2.1
    reaper.reap(connections)
    assert aborted(made) == list(range(20))  # more than may wait so long
    connections = set(made[20:])
    reaper.max_connections = MAX_WAITING
    reaper.make_room(connections)
    reaper.max_connections = MAX_WAITING - 10
    reaper.reap(made[21:])
    assert aborted(made) == list(range(30))
    unsent = [Connection(number, unsent=MAX_UNSENT_BYTES // 8) for number in range(10)]
    IdleConnectionReaper(ConnectionTimeouts(), 40, clock).reap(unsent)
    assert aborted(unsent) == [0, 1]


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
            asyncio.ensure_future(limiter.compute(lambda: ended.wait(HANG), stays(), lane=TABLE[name].lane))
            for name in ("run", "why", "why")
        ]
        await asyncio.wait_for(limiter.compute(ended.set, stays(), lane=TABLE["run"].lane), HANG / 2)
        assert await asyncio.gather(*waiting) == [True] * 3
        limiter.close()

    asyncio.run(ask())
