"""Limits: idle connections are closed, and the number of concurrent computations is bounded."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

import pytest

from uwaga.viewer.server.limits import BusyError, ConcurrencyLimiter, ConnectionTimeouts
from uwaga.viewer.server.server import Server


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_an_idle_connection_is_closed(
    server, client, until: Callable[[Callable[[], bool]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uwaga.viewer.server.server._TIMEOUTS", ConnectionTimeouts(idle=0.5))
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


def test_the_longest_idle_of_too_many_connections_are_closed(
    service, until: Callable[[Callable[[], bool]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uwaga.viewer.server.limits.MAX_WAITING", 8)
    monkeypatch.setattr("uwaga.viewer.server.limits._GRACE", 0.2)
    with Server(service, title="a text") as server, ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        early = [stack.enter_context(socket.create_connection(address)) for _ in range(10)]
        until(lambda: sum(map(is_open, early)) <= 8)
        late = [stack.enter_context(socket.create_connection(address)) for _ in range(10)]
        until(lambda: not any(map(is_open, early)))
        until(lambda: sum(map(is_open, late)) == 8)


async def stays() -> None:
    await asyncio.Event().wait()


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def test_slots_are_counted_and_released() -> None:
    limiter = ConcurrencyLimiter(at_once=1, waiting=1)
    with limiter.slot(), limiter.slot():
        assert limiter.taken == 2
        with pytest.raises(BusyError), limiter.slot():
            pass
    with pytest.raises(KeyError), limiter.slot():
        raise KeyError
    assert limiter.taken == 0
    limiter.close()


def test_results_and_errors_are_returned() -> None:
    async def ask() -> None:
        limiter = ConcurrencyLimiter()
        assert await limiter.compute(lambda: 5, stays()) == 5
        with pytest.raises(KeyError):
            await limiter.compute(lambda: {}[0], stays())
        limiter.close()

    asyncio.run(ask())


def test_the_number_of_concurrent_computations_is_limited() -> None:
    async def ask() -> None:
        limiter, advance, lock = ConcurrencyLimiter(at_once=2, waiting=10), threading.Event(), threading.Lock()
        running, most = 0, 0

        def work() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            advance.wait(20)
            with lock:
                running -= 1

        asked = [asyncio.ensure_future(limiter.compute(work, stays())) for _ in range(6)]
        await until(lambda: running == 2)
        await asyncio.sleep(0.05)
        advance.set()
        await asyncio.gather(*asked)
        assert most == 2
        limiter.close()

    asyncio.run(ask())


def test_long_work_delays_only_other_long_work() -> None:
    async def ask() -> None:
        limiter, advance = ConcurrencyLimiter(at_once=1, waiting=10), threading.Event()
        long = [
            asyncio.ensure_future(limiter.compute(lambda: advance.wait(20), stays(), kind="long")) for _ in range(3)
        ]
        await asyncio.sleep(0.01)
        assert await limiter.compute(lambda: "short", stays()) == "short"
        assert not any(each.done() for each in long)
        advance.set()
        await asyncio.gather(*long)
        limiter.close()

    asyncio.run(ask())


def test_queued_work_of_a_disconnected_client_is_dropped() -> None:
    async def ask() -> None:
        limiter, advance, began = ConcurrencyLimiter(at_once=1, waiting=10), threading.Event(), threading.Event()
        done: list[str] = []

        def first() -> None:
            began.set()
            advance.wait(20)
            done.append("first")

        def leaving(leave: asyncio.Event) -> Coroutine[Any, Any, None]:
            async def gone() -> None:
                await leave.wait()

            return gone()

        leave = asyncio.Event()
        running = asyncio.ensure_future(limiter.compute(first, leaving(leave)))
        waiting = asyncio.ensure_future(limiter.compute(lambda: done.append("second"), leaving(leave)))
        staying = asyncio.ensure_future(limiter.compute(lambda: done.append("third"), stays()))
        await until(began.is_set)
        leave.set()
        # Both get their error at once, although the first still runs and occupies the only thread.
        assert await running is None
        assert await waiting is None
        await asyncio.sleep(0.05)
        assert done == []
        advance.set()
        await staying
        assert done == ["first", "third"]
        limiter.close()

    asyncio.run(ask())
