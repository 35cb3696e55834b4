"""Which texts the model reads next: a fair queue, and the thread that empties it.

As soon as the model is free it reads what waits, up to a number of tokens, as one ragged batch: nothing waits for a timer or for a
batch to fill. Requests share the model by self-clocked fair queueing (Golestani 1994, "A self-clocked fair queueing scheme for
broadband applications"), counted in tokens: a short request that comes while one of a thousand texts is computed is in the next batch,
and the long one still gets its share.

Letters: R texts of a step, E width of what the model gives for each.
"""

import asyncio
import heapq
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Run = Callable[[Sequence[Any], Any], np.ndarray]  # R items, texts or pairs of texts, and their kind to (R, E)


@dataclass(slots=True, eq=False)
class Job:
    """The items of one request.

    Attributes:
        items: what the model reads, one at least: texts, or pairs of texts.
        tokens: of each item, special ones included.
        kind: only items of one kind are computed together.
        result: becomes (len(items), E) after the job was submitted; belongs to the event loop.
    """

    items: Sequence[Any]
    tokens: Sequence[int]
    kind: Hashable = None
    result: "asyncio.Future[np.ndarray]" = field(init=False)
    taken: int = 0  # items that a step has
    rows: np.ndarray | None = None  # those that are computed
    is_released: bool = False


class FairQueue:
    """Jobs in the order in which the model reads their items. Not thread-safe: the scheduler has a lock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Job]] = []  # by the finish tag of the job's next item, then as they came
        self._clock = 0  # finish tag of the item that was taken last
        self._count = 0

    def __bool__(self) -> bool:
        while self._heap and self._heap[0][2].is_released:
            heapq.heappop(self._heap)
        return bool(self._heap)

    def add(self, job: Job) -> None:
        self._push(job, self._clock)

    def take(self, most_tokens: int) -> dict[Job, slice]:
        """The next items of each job, all of one kind: the first, and further ones as long as there are no more than `most_tokens` together."""
        taken: dict[Job, slice] = {}
        aside: list[tuple[int, int, Job]] = []  # jobs of other kinds
        total, kind = 0, None
        while self:
            tag, _, job = self._heap[0]
            size = job.tokens[job.taken]
            if taken and job.kind != kind:
                aside.append(heapq.heappop(self._heap))
                continue
            if taken and total + size > most_tokens:
                break
            heapq.heappop(self._heap)
            first = taken[job].start if job in taken else job.taken
            total, kind, self._clock = total + size, job.kind, tag
            job.taken += 1
            taken[job] = slice(first, job.taken)
            if job.taken < len(job.items):
                self._push(job, tag)
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return taken

    def _push(self, job: Job, after: int) -> None:
        self._count += 1
        heapq.heappush(self._heap, (after + job.tokens[job.taken], self._count, job))


class QueueSize(NamedTuple):
    """The size of all requests that wait, are computed, or are not sent yet."""

    requests: int = 0
    items: int = 0
    tokens: int = 0

    def plus(self, job: Job, sign: int = 1) -> "QueueSize":
        return QueueSize(self.requests + sign, self.items + sign * len(job.items), self.tokens + sign * sum(job.tokens))


class Scheduler:
    """Computes jobs in a thread of its own. Its methods are called in one event loop.

    Args:
        run: computes items of one kind; the row of an item must not depend on the other items.
        step_tokens: tokens that the model reads at a time; an item with more is computed alone.
        limit: of what is held at a time.
        on_step: called in the model's thread with the tokens of each step after it.
    """

    def __init__(
        self, run: Run, *, step_tokens: int, limit: QueueSize, on_step: Callable[[int], object] = lambda tokens: None
    ) -> None:
        self._run, self._step_tokens, self._limit, self._on_step = run, step_tokens, limit, on_step
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="uwaga-model")
        self._lock = threading.Lock()  # of what follows, and of `taken` and `is_released` of jobs
        self._queue = FairQueue()
        self._is_running = False
        self.held = QueueSize()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Put all jobs into the queue, or none. `release` must be called with them, whatever becomes of them.

        Raises asyncio.QueueFull: what waits and what is asked for are more than the queue holds.
        """
        held, loop = self.held, asyncio.get_running_loop()
        for job in jobs:
            held = held.plus(job)
        if any(have > most for have, most in zip(held, self._limit, strict=True)):
            raise asyncio.QueueFull
        self.held = held
        for job in jobs:
            job.result = loop.create_future()
        with self._lock:
            for job in jobs:
                self._queue.add(job)
            if not self._is_running and self._queue:
                self._is_running = True
                self._thread.submit(self._steps, loop)

    def release(self, job: Job) -> None:
        """Forget a job that was submitted; of its items, those that wait are not computed. Idempotent."""
        if job.is_released:
            return
        self.held = self.held.plus(job, -1)
        with self._lock:
            job.is_released = True
            job.items, job.tokens = (), ()  # the queue may have the job until its turn comes
        if not job.result.cancel() and not job.result.cancelled():
            job.result.exception()  # asyncio logs errors that nobody looked at

    def close(self) -> None:
        """End the thread after the step that is being computed. Jobs that wait never end."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _steps(self, loop: asyncio.AbstractEventLoop) -> None:
        """Compute until nothing waits. In the model's thread, which goes to the next step without waiting for the event loop."""
        while True:
            with self._lock:
                parts = self._queue.take(self._step_tokens)
                self._is_running = bool(parts)
                if not parts:
                    return
                items = [item for job, part in parts.items() for item in job.items[part]]
                tokens = sum(sum(job.tokens[part]) for job, part in parts.items())
            rows: np.ndarray | RuntimeError
            try:
                rows = self._run(items, next(iter(parts)).kind)
            except BaseException as error:  # noqa: BLE001  # it goes to those who asked; the thread serves the others
                rows = RuntimeError("the computation failed")
                rows.__cause__ = error
            self._on_step(tokens)
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(_deliver, parts, rows)


def _deliver(parts: Mapping[Job, slice], rows_RE: np.ndarray | RuntimeError) -> None:
    """Give the rows of a step to its jobs. Steps are delivered in their order, and so are the items of a job."""
    end = 0
    for job, part in parts.items():
        first, end = end, end + part.stop - part.start
        if job.result.done():  # released, or failed in an earlier step
            continue
        if isinstance(rows_RE, RuntimeError):
            job.result.set_exception(rows_RE)
            continue
        if job.rows is None:
            job.rows = np.empty((len(job.items), rows_RE.shape[1]), rows_RE.dtype)
        job.rows[part] = rows_RE[first:end]
        if part.stop == len(job.items):
            job.result.set_result(job.rows)
