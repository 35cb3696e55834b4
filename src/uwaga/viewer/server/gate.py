"""Bounded work: a few questions are computed at a time, some wait, and the next is told at once to come again."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class BusyError(Exception):
    """Every place is taken."""


class Gate:
    """Places for questions. One is held from before its body is read until its reply has been sent.

    Belongs to one event loop; only what is computed runs in threads.

    Args:
        at_once: computed at a time, in as many threads; and one more of those that take long.
        waiting: more that may be there, and wait.
    """

    def __init__(self, *, at_once: int = 2, waiting: int = 62) -> None:
        self._threads = ThreadPoolExecutor(at_once + 1, thread_name_prefix="uwaga-view")
        self._turns, self._long_turns = asyncio.Semaphore(at_once), asyncio.Semaphore(1)
        self._places = at_once + waiting
        self.taken = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one. Raises BusyError, at once."""
        if self.taken >= self._places:
            raise BusyError
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def compute(
        self, work: Callable[[], Result], gone: Coroutine[Any, Any, None], *, takes_long: bool = False
    ) -> Result | None:
        """What the work gives, from a thread; None where the asker is `gone` before. What takes long waits for its like alone.

        What has not begun then never does. What has begun goes on to its end, and keeps its thread until then.
        """
        result, vanished = (
            asyncio.ensure_future(self._turn(work, self._long_turns if takes_long else self._turns)),
            asyncio.ensure_future(gone),
        )
        try:
            await asyncio.wait({result, vanished}, return_when=asyncio.FIRST_COMPLETED)
            return result.result() if result.done() else None
        finally:
            vanished.cancel()
            result.cancel()

    def close(self) -> None:
        """What waits is dropped; what is computed goes on to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _turn(self, work: Callable[[], Result], turns: asyncio.Semaphore) -> Result:
        await turns.acquire()
        loop = asyncio.get_running_loop()

        def free(_: Future[Result]) -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it all waiting
                loop.call_soon_threadsafe(turns.release)

        begun = self._threads.submit(work)
        begun.add_done_callback(free)
        return await asyncio.wrap_future(begun)
