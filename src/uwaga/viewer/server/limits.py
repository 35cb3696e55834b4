"""How many requests are computed at once, and how many wait; without a limit, clients would use up the threads that answer others."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

from starlette.exceptions import HTTPException

from uwaga.viewer.request_table import Lane

Result = TypeVar("Result")


class ConcurrencyLimiter:
    """Limits how many requests are computed and how many wait. A slot is held from before the body is read until the reply
    is sent.

    Belongs to one event loop; only the computation runs in threads.

    Args:
        at_once: requests computed at a time, in as many threads; in addition to them one of those that take long, two that run a text, and
            two that split a score, of which the second one ends the first.
        waiting: further requests that may wait.
    """

    def __init__(self, *, at_once: int = 2, waiting: int = 62) -> None:
        self._threads = ThreadPoolExecutor(at_once + 5, thread_name_prefix="uwaga-view")
        self._semaphores = {
            "short": asyncio.Semaphore(at_once), "long": asyncio.Semaphore(1), "run": asyncio.Semaphore(2), "why": asyncio.Semaphore(2),
        }  # fmt: skip
        self._slots = at_once + waiting
        self.taken = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot. Raises HTTPException at once if there is none."""
        if self.taken >= self._slots:
            message = "the server is busy: too many requests at once; retry in a second"
            raise HTTPException(503, message, {"Retry-After": "1"})
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def compute(self, work: Callable[[], Result], lane: Lane = "short") -> Result:
        """Return the result of `work`, computed in a thread. Work waits only for other work of its lane.

        If this is cancelled, work that is queued is dropped; work that has begun runs to its end and keeps its thread.
        """
        semaphore, loop = self._semaphores[lane], asyncio.get_running_loop()
        await semaphore.acquire()

        def release(_: Future[Result]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nothing waits any more
                loop.call_soon_threadsafe(semaphore.release)

        begun = self._threads.submit(work)
        begun.add_done_callback(release)
        return await asyncio.wrap_future(begun)

    def close(self) -> None:
        """Drop queued work; work that has begun runs to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
