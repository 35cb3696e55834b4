"""The queue's order, what it holds, and the thread that empties it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest
from waiting import HANG

from uwaga.serve.scheduler import ITEM_TOKENS, FairQueue, Job, Scheduler

NO_LIMIT = 10**6


def job(name: str, *tokens: int, kind: str = "") -> Job:
    return Job([f"{name}{n}" for n in range(len(tokens))], tokens, kind)


def take(queue: FairQueue, most: int) -> list[str]:
    return [item for job, part in queue.take(most).items() for item in job.items[part]]


def queue_of(*jobs: Job) -> FairQueue:
    queue = FairQueue()
    for job in jobs:
        queue.add(job)
    return queue


def test_a_step_has_what_fits_and_one_item_at_least() -> None:
    queue = queue_of(job("a", 3, 3, 3), job("long", 100), job("b", 4))
    assert take(queue, 9) == ["a0", "b0"]
    assert take(queue, 9) == ["a1", "a2"]
    assert take(queue, 9) == ["long0"]
    assert take(queue, 9) == []
    assert not queue


def test_a_short_request_is_in_the_step_after_it_came_however_many_texts_a_long_one_has() -> None:
    queue = queue_of(job("long", *[10] * 50))
    assert take(queue, 20) == ["long0", "long1"]
    queue.add(job("short", 5))
    assert take(queue, 20) == ["short0", "long2"]


def test_a_long_text_gets_its_turn_before_as_many_tokens_of_others_as_it_has() -> None:
    queue = queue_of(job("long", 50))
    served = 0
    for number in range(100):
        queue.add(job(f"short{number}.", 10))
        step = take(queue, 10)
        if step == ["long0"]:
            break
        served += 10
    assert served == 40  # the fifth text of 10 tokens came later, and has the same finish tag


def test_items_of_another_kind_wait_for_a_step_of_their_own_without_losing_their_place() -> None:
    queue = queue_of(job("a", 2, kind="x"), job("b", 3, kind="y"), job("c", 4, kind="x"))
    assert take(queue, 100) == ["a0", "c0"]
    assert take(queue, 100) == ["b0"]


def bounded(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(asyncio.wait_for(test(), HANG))


@bounded
async def test_a_released_job_holds_no_texts_though_the_queue_has_it() -> None:
    begun, go = threading.Event(), threading.Event()

    def wait(items: Sequence[str], kind: Any) -> np.ndarray:
        begun.set()
        assert go.wait(HANG)
        return length_of(items, kind)

    scheduler = Scheduler(wait, step_tokens=1, limit=NO_LIMIT)
    jobs = submitted(scheduler, *(Job([name], [1]) for name in "abc"))
    assert begun.wait(HANG)
    for job in jobs[:2]:  # the one that is computed, and one that waits
        scheduler.release(job)
        assert len(job.items) == len(job.tokens) == 0
    assert scheduler.held == ITEM_TOKENS + 1
    go.set()
    assert (await jobs[2].result)[:, 0].tolist() == [1]
    scheduler.release(jobs[2])
    scheduler.close()


def submitted(scheduler: Scheduler, *jobs: Job) -> Sequence[Job]:
    scheduler.submit(jobs)
    return jobs


def length_of(items: Sequence[str], kind: Any) -> np.ndarray:
    return np.array([[len(item), hash(kind) % 7] for item in items], np.float32)


@bounded
async def test_an_error_of_the_model_goes_to_those_of_its_step_and_the_next_one_is_computed() -> None:
    class PanicError(BaseException):
        """As those of libraries that are written in Rust."""

    def fail(items: Sequence[str], kind: Any) -> np.ndarray:
        if kind == "bad":
            raise PanicError("no memory")
        return length_of(items, kind)

    scheduler = Scheduler(fail, step_tokens=10, limit=NO_LIMIT)
    bad, good = submitted(scheduler, Job(["a", "b"], [1, 1], "bad"), Job(["abc"], [1], "good"))
    with pytest.raises(RuntimeError) as caught:
        await bad.result
    assert isinstance(caught.value.__cause__, PanicError)
    assert (await good.result)[:, 0].tolist() == [3]
    scheduler.close()
