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
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Item = Any  # what a model reads: a text, or a pair of texts
Run = Callable[[Sequence[Item], Any], np.ndarray]  # R items and their kind to (R, E)


class QueueFullError(Exception):
    """What waits and what is asked for are more than the queue holds."""


class ModelError(Exception):
    """The computation failed; its cause says how."""


@dataclass(slots=True, eq=False)
class Job:
    """The items of one request.

    Attributes:
        items: what the model reads.
        tokens: of each item, special ones included.
        kind: only items of one kind are computed together.
        result: becomes (len(items), E); belongs to the event loop.
    """

    items: Sequence[Item]
    tokens: Sequence[int]
    kind: Hashable
    result: "asyncio.Future[np.ndarray]"
    taken: int = 0  # items that a step has
    done: int = 0  # items that are computed
    rows: np.ndarray | None = None
    is_held: bool = field(default=True)  # not released


class Part(NamedTuple):
    """The consecutive items [start, stop) of a job, in a step."""

    job: Job
    start: int
    stop: int


class FairQueue:
    """Jobs in the order in which the model reads their items. Not thread-safe: the scheduler has a lock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Job]] = []  # by the finish tag of the job's next item, then as they came
        self._clock = 0  # finish tag of the item that was taken last
        self._count = 0

    def __bool__(self) -> bool:
        self._drop_released()
        return bool(self._heap)

    def add(self, job: Job) -> None:
        self._push(job, self._clock)

    def take(self, most_tokens: int) -> list[Part]:
        """The next items, all of one kind: the first, and further ones as long as there are no more than `most_tokens` together."""
        taken: list[tuple[Job, int]] = []
        aside: list[tuple[int, int, Job]] = []  # jobs of other kinds
        total = 0
        while self:
            tag, _, job = self._heap[0]
            size = job.tokens[job.taken]
            if taken and job.kind != taken[0][0].kind:
                aside.append(heapq.heappop(self._heap))
                continue
            if taken and total + size > most_tokens:
                break
            heapq.heappop(self._heap)
            taken.append((job, job.taken))
            total, self._clock = total + size, tag
            job.taken += 1
            if job.taken < len(job.items):
                self._push(job, tag)
        for each in aside:
            heapq.heappush(self._heap, each)
        return _parts(taken)

    def _push(self, job: Job, after: int) -> None:
        self._count += 1
        heapq.heappush(self._heap, (after + job.tokens[job.taken], self._count, job))

    def _drop_released(self) -> None:
        while self._heap and not self._heap[0][2].is_held:
            heapq.heappop(self._heap)


class QueueSize(NamedTuple):
    """What is in the queue and with the model, or whose vectors are not sent yet."""

    requests: int = 0
    items: int = 0
    tokens: int = 0


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
        self._lock = threading.Lock()  # of what follows, and of `taken` and `is_held` of jobs
        self._queue = FairQueue()
        self._is_running = False
        self.held = QueueSize()

    def submit(self, items: Sequence[Item], tokens: Sequence[int], kind: Hashable = None) -> Job:
        """Put items into the queue; there must be one at least. `release` must be called with the job, whatever becomes of it.

        Raises QueueFullError.
        """
        held = QueueSize(self.held.requests + 1, self.held.items + len(items), self.held.tokens + sum(tokens))
        if any(have > most for have, most in zip(held, self._limit, strict=True)):
            raise QueueFullError
        job = Job(items, tokens, kind, asyncio.get_running_loop().create_future())
        self.held = held
        with self._lock:
            self._queue.add(job)
            self._start_step()
        return job

    def release(self, job: Job) -> None:
        """Forget a job; of its items, those that wait are not computed. Idempotent."""
        if not job.is_held:
            return
        held = self.held
        self.held = QueueSize(held.requests - 1, held.items - len(job.items), held.tokens - sum(job.tokens))
        with self._lock:
            job.is_held = False
            job.items, job.tokens = (), ()  # the queue may have the job until its turn comes
        if not job.result.cancel() and not job.result.cancelled():
            job.result.exception()  # asyncio logs errors that nobody looked at

    def close(self) -> None:
        """End the thread after the step that is being computed. Jobs that wait never end."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _start_step(self) -> None:
        """Begin a step where the model is free and something waits. Called with the lock."""
        if not self._is_running and self._queue:
            self._is_running = True
            loop = asyncio.get_running_loop()
            self._thread.submit(self._steps, loop)

    def _steps(self, loop: asyncio.AbstractEventLoop) -> None:
        """Compute until nothing waits. In the model's thread, which goes to the next step without waiting for the event loop."""
        while True:
            with self._lock:
                parts = self._queue.take(self._step_tokens)
                self._is_running = bool(parts)
                if not parts:
                    return
                items = [item for part in parts for item in part.job.items[part.start : part.stop]]
                tokens = sum(sum(part.job.tokens[part.start : part.stop]) for part in parts)
            rows: np.ndarray | ModelError
            try:
                rows = self._run(items, parts[0].job.kind)
            except BaseException as error:  # noqa: BLE001  # it goes to those who asked; the thread serves the others
                rows = ModelError("the computation failed")
                rows.__cause__ = error
            self._on_step(tokens)
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(_deliver, parts, rows)


def _deliver(parts: Sequence[Part], rows_RE: np.ndarray | ModelError) -> None:
    """Give the rows of a step to its jobs."""
    at = 0
    for job, start, stop in parts:
        if isinstance(rows_RE, ModelError):
            if not job.result.done():
                job.result.set_exception(rows_RE)
            continue
        own, at = rows_RE[at : at + stop - start], at + stop - start
        if job.result.done():  # released, or failed in an earlier step
            continue
        if job.rows is None:
            job.rows = np.empty((len(job.items), own.shape[1]), own.dtype)
        job.rows[start:stop] = own
        job.done += stop - start
        if job.done == len(job.items):
            job.result.set_result(job.rows)


def _parts(taken: Sequence[tuple[Job, int]]) -> list[Part]:
    """The items of each job together, in the order in which jobs come first. Items of a job are taken in their order."""
    indices: dict[Job, list[int]] = {}
    for job, index in taken:
        indices.setdefault(job, []).append(index)
    return [Part(job, own[0], own[-1] + 1) for job, own in indices.items()]
