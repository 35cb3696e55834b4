"""Bounded work: what runs at once, what waits, what is refused, and what becomes of those who go."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from uwaga.viewer.server.gate import BusyError, Gate


async def stays() -> None:
    await asyncio.Event().wait()


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def test_places_are_counted_and_given_back() -> None:
    gate = Gate(at_once=1, waiting=1)
    with gate.place(), gate.place():
        assert gate.taken == 2
        with pytest.raises(BusyError), gate.place():
            pass
    with pytest.raises(KeyError), gate.place():
        raise KeyError
    assert gate.taken == 0
    gate.close()


def test_results_and_errors_come_back() -> None:
    async def ask() -> None:
        gate = Gate()
        assert await gate.compute(lambda: 5, stays()) == 5
        with pytest.raises(KeyError):
            await gate.compute(lambda: {}[0], stays())
        gate.close()

    asyncio.run(ask())


def test_so_many_are_computed_at_once_and_no_more() -> None:
    async def ask() -> None:
        gate, go_on, lock = Gate(at_once=2, waiting=10), threading.Event(), threading.Lock()
        running, most = 0, 0

        def work() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            go_on.wait(20)
            with lock:
                running -= 1

        asked = [asyncio.ensure_future(gate.compute(work, stays())) for _ in range(6)]
        await until(lambda: running == 2)
        await asyncio.sleep(0.05)
        go_on.set()
        await asyncio.gather(*asked)
        assert most == 2
        gate.close()

    asyncio.run(ask())


def test_what_takes_long_keeps_only_its_like_waiting() -> None:
    async def ask() -> None:
        gate, go_on = Gate(at_once=1, waiting=10), threading.Event()
        long = [asyncio.ensure_future(gate.compute(lambda: go_on.wait(20), stays(), takes_long=True)) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert await gate.compute(lambda: "short", stays()) == "short"
        assert not any(each.done() for each in long)
        go_on.set()
        await asyncio.gather(*long)
        gate.close()

    asyncio.run(ask())


def test_who_goes_is_not_computed_for() -> None:
    async def ask() -> None:
        gate, go_on, began = Gate(at_once=1, waiting=10), threading.Event(), threading.Event()
        done: list[str] = []

        def first() -> None:
            began.set()
            go_on.wait(20)
            done.append("first")

        def leaving(leave: asyncio.Event) -> Coroutine[Any, Any, None]:
            async def gone() -> None:
                await leave.wait()

            return gone()

        leave = asyncio.Event()
        running = asyncio.ensure_future(gate.compute(first, leaving(leave)))
        waiting = asyncio.ensure_future(gate.compute(lambda: done.append("second"), leaving(leave)))
        staying = asyncio.ensure_future(gate.compute(lambda: done.append("third"), stays()))
        await until(began.is_set)
        leave.set()
        # Both are told at once, though the first still runs, and keeps the one thread.
        assert await running is None
        assert await waiting is None
        await asyncio.sleep(0.05)
        assert done == []
        go_on.set()
        await staying
        assert done == ["first", "third"]
        gate.close()

    asyncio.run(ask())
