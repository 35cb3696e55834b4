"""The order in which the model reads texts: a fair queue, and the thread that empties it.

As soon as the model is free, it reads the texts that wait, up to a number of tokens, as one ragged batch. No text waits for a timer or for a
batch to fill. Requests share the model by self-clocked fair queueing (Golestani 1994, "A self-clocked fair queueing scheme for broadband
applications"), counted in tokens. If a short request comes while a request of a thousand texts is computed, the short request is in the next
batch, and the long one still gets its share.

Letters: R texts of a step, E width of a text's result.
"""

import asyncio
import heapq
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ITEM_TOKENS = 32  # that an item counts for in the queue, in addition to its own
Run = Callable[[Sequence[Any], Any], np.ndarray]  # R items, texts or pairs of texts, and their kind to (R, E)


@dataclass(slots=True, eq=False)
class Job:
    """The items of one request.

    Attributes:
        items: what the model reads: at least one text, or pair of texts.
        tokens: tokens of each item, special tokens included.
        kind: only items of one kind are computed together.
        result: (len(items), E), some time after the job was submitted; belongs to the event loop.
    """

    items: Sequence[Any]
    tokens: Sequence[int]
    kind: Hashable = None
    result: "asyncio.Future[np.ndarray]" = field(init=False)
    taken: int = 0  # items that a step has
    rows: np.ndarray | None = None  # those that are computed
    is_released: bool = False

    @property
    def size(self) -> int:
        """Return the tokens, and for each item as many more as its result and its objects are worth."""
        return sum(self.tokens) + ITEM_TOKENS * len(self.items)


class FairQueue:
    """Jobs in the order in which the model reads them. Not thread-safe: the scheduler locks."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Job]] = []  # by the finish tag of the job's next item, then as they came
        self._clock = 0  # finish tag of the last item that was taken
        self._count = 0

    def __bool__(self) -> bool:
        while self._heap and self._heap[0][2].is_released:
            heapq.heappop(self._heap)
        return bool(self._heap)

    def add(self, job: Job) -> None:
        self._push(job, self._clock)

    def take(self, most_tokens: int) -> dict[Job, slice]:
        """Return the next items of each job, of one kind: at least one, up to `most_tokens`."""
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


class Scheduler:
    """Computes jobs in a thread of its own. Its methods are called in one event loop.

    Args:
        run: computes items of one kind; the row of an item must not depend on the other items.
        step_tokens: tokens that the model reads at a time; an item with more is computed alone.
        limit: the largest size of all jobs that are not released; if there is none, jobs of any size may come.
        on_step: called with the tokens of each step after it, in the model's thread.
    """

    def __init__(
        self, run: Run, *, step_tokens: int, limit: int, on_step: Callable[[int], object] = lambda tokens: None
    ) -> None:
        self._run, self._step_tokens, self._limit, self._on_step = run, step_tokens, limit, on_step
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="uwaga-model")
        self._lock = threading.Lock()  # for the next two, and for `taken` and `is_released` of jobs
        self._queue = FairQueue()
        self._is_running = False
        self.held = 0  # the size of all jobs that wait, are being computed, or are not sent yet

    def submit(self, jobs: Sequence[Job]) -> None:
        """Put all jobs into the queue, or no job. The caller must release them in any case.

        Raises asyncio.QueueFull: with these jobs, the queue would exceed its limit.
        """
        size, loop = sum(job.size for job in jobs), asyncio.get_running_loop()
        if self.held and self.held + size > self._limit:
            raise asyncio.QueueFull
        self.held += size
        for job in jobs:
            job.result = loop.create_future()
        with self._lock:
            for job in jobs:
                self._queue.add(job)
            if not self._is_running and self._queue:
                self._is_running = True
                self._thread.submit(self._steps, loop)

    def release(self, job: Job) -> None:
        """Forget a job that was submitted, without computing items that still wait. Idempotent."""
        if job.is_released:
            return
        self.held -= job.size
        with self._lock:
            job.is_released = True
            job.items, job.tokens = (), ()  # the queue may have the job until its turn comes
        if not job.result.cancel() and not job.result.cancelled():
            job.result.exception()  # asyncio logs an error that no code has read

    def close(self) -> None:
        """End the thread after the current step. Jobs that wait never end."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _steps(self, loop: asyncio.AbstractEventLoop) -> None:
        """Compute until no job waits, without waiting for the event loop between steps."""
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
            except BaseException as error:  # noqa: BLE001  # the requests of this step get it; the thread serves the others
                rows = RuntimeError("the computation failed")
                rows.__cause__ = error
            self._on_step(tokens)
            with suppress(RuntimeError):  # the loop is closed, so that no request waits
                loop.call_soon_threadsafe(_deliver, parts, rows)


def _deliver(parts: Mapping[Job, slice], rows_RE: np.ndarray | RuntimeError) -> None:
    """Give the rows of a step to its jobs, in the order of steps and of items."""
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
