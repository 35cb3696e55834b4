"""Batches by processes of this machine, or by actors of a Ray cluster. Any of them may die.

Each process is the only worker of its own executor, so that a process that ends loses only its own batch. It is forked from a server that
has imported its modules and computed nothing (multiprocessing's forkserver), so that a new one costs a fraction of a second; systems without
a fork start a whole process. If an actor dies, Ray starts another one and gives it the batch again.
"""

import copy
import logging
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import count
from multiprocessing.connection import wait as wait_for_end
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from uwaga._base.errors import DataError

Item = TypeVar("Item")

TIMEOUT = 600.0  # seconds
_STARTING = 120.0  # seconds more, until a process has imported PyTorch
_STARTING_RAY = 300.0  # seconds for the first result, since Ray may start machines
_LONGEST_WAIT = 1.0  # seconds between two looks at the deadlines
_MOST_DEATHS = 10  # of processes or actors with the same batch
_PRELOADED = ["uwaga.encode.processes", "uwaga.encode.encoder", "uwaga.models.families.bert", "pyarrow"]


class WorkerError(RuntimeError):
    """A process that encodes has failed, or several have failed with the same documents."""


def map_batches(
    call: Callable[[Any], Any],
    items: Iterable[tuple[Item, Any]],
    *,
    processes: int,
    threads: int | None = None,
    timeout: float = TIMEOUT,
    describe: Callable[[Item], str] = str,
    say: Callable[[str], object] = lambda message: None,
) -> Iterator[tuple[Item, Any]]:
    """Yield each item with call(batch), as processes finish, from pairs of an item and a batch.

    A process that ends or takes too long is replaced, and its batch goes to the next free process, so that each batch has one result.

    Args:
        call: a function that can be pickled.
        items: pairs, which the caller's thread reads when a process is free.
        processes: the number of processes.
        threads: PyTorch's threads in each process. None: this process's threads, divided among the processes.
        timeout: seconds for a batch; then its process is ended.
        describe: returns the name of an item in a message.
        say: receives a message about each process that is replaced.

    Raises:
        WorkerError: ten processes ended with the same batch, or `call` raised an error that is no ValueError with one argument.
        ValueError: `call` raised it.
    """
    if threads is None:
        import torch

        threads = max(1, torch.get_num_threads() // processes)  # cores that this process may use, or OMP_NUM_THREADS
    workers = [_Worker(number + 1, threads, timeout) for number in range(processes)]
    left, again = ((item, batch, 0) for item, batch in items), deque[tuple[Item, Any, int]]()
    # The last entry counts the processes that have ended with the batch.
    running: dict[Future[Any], tuple[_Worker, Item, Any, int]] = {}
    try:
        while True:
            busy = {id(worker) for worker, *_ in running.values()}
            for worker in (free for free in workers if id(free) not in busy):
                task = again.popleft() if again else next(left, None)
                if task is not None:
                    running[worker.submit(call, task[1])] = (worker, *task)
            if not running:
                return
            left_over = min(worker.deadline for worker, *_ in running.values()) - time.monotonic()
            done, _ = wait(running, max(0.0, min(left_over, _LONGEST_WAIT)), FIRST_COMPLETED)
            for future in running.keys() - done:
                running[future][0].end_if_late()
            for future in done:
                worker, item, batch, deaths = running.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    how, deaths = worker.restart(), deaths + 1
                    if deaths == _MOST_DEATHS:
                        raise WorkerError(
                            f"{describe(item)}: {deaths} processes have ended with these; the last, {how}"
                        ) from None
                    say(f"{how}; another process has its documents")
                    again.append((item, batch, deaths))
                    continue
                except Exception as error:  # noqa: BLE001  # a batch or a result that cannot be pickled
                    result = WorkerError(f"{type(error).__name__}: {error}")
                yield item, _checked(result, worker.name, describe(item))
    finally:
        for worker in workers:
            worker.close()


def map_by_ray(
    call: Callable[[Any], Any],
    items: Iterable[tuple[Item, Any]],
    *,
    address: str | None,
    actors: int | None = None,
    timeout: float = TIMEOUT,
    describe: Callable[[Item], str] = str,
) -> Iterator[tuple[Item, Any]]:
    """Yield each item with call(batch), as actors of a Ray cluster finish.

    If the program is connected to a cluster, that cluster is used and stays open.

    Args:
        call: a function that can be pickled.
        items: pairs, which the caller's thread reads, up to two for each actor in advance.
        address: address of a cluster, or "auto". None: start a cluster on this machine, which ends with this call.
        actors: the number of processes that encode. None: one for each processor of the cluster.
        timeout: seconds without a result; then the call raises WorkerError.
        describe: returns the name of an item in a message.

    Raises:
        DataError: Ray is not installed, or the cluster cannot be reached.
        WorkerError: no result came in time, eleven actors died with the same batch, or `call` raised an error that is no ValueError with
            one argument.
        ValueError: `call` raised it.
    """
    try:
        import ray
    except ImportError as error:
        raise DataError("Ray is not installed: pip install 'uwaga[ray]'") from error
    from ray.exceptions import RayError
    from ray.util import ActorPool

    is_ours, numbers, waiting = not ray.is_initialized(), count(), dict[int, Item]()
    left, most = iter(items), max(timeout, _STARTING_RAY)
    if is_ours:
        options = {"num_cpus": actors, "include_dashboard": False} if address is None else {}
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise DataError(f"Ray {address or 'on this machine'}: {error}") from error
    try:
        kind = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=_MOST_DEATHS)(_Actor)
        made = [kind.remote(call) for _ in range(actors or max(1, int(ray.cluster_resources()["CPU"])))]
        pool = ActorPool([*made, *made])  # each has a second batch while it computes the first
        while True:
            while pool.has_free() and (pair := next(left, None)) is not None:
                number = next(numbers)
                waiting[number] = pair[0]
                pool.submit(lambda actor, arguments: actor.run.remote(*arguments), (number, pair[1]))
            if not waiting:
                return
            try:
                number, name, result = pool.get_next_unordered(timeout=most)
            except TimeoutError:
                names = "; ".join(map(describe, waiting.values()))
                raise WorkerError(
                    f"Ray has given no result for {most:g} s: give a larger timeout, or see `ray status`; it has {names}"
                ) from None
            except RayError as error:
                lines = str(error).strip().splitlines()
                raise WorkerError(f"Ray: {type(error).__name__}: {lines[-1] if lines else ''}") from error
            item, most = waiting.pop(number), timeout
            yield item, _checked(result, name, describe(item))
    finally:
        if is_ours:
            ray.shutdown()


def _attempt(call: Callable[[Any], Any], batch: Any) -> Any:
    """Return call(batch), or the error that it raises, as an error that can be pickled."""
    try:
        return call(batch)
    except ValueError as error:
        return error if _can_travel(error) else WorkerError(str(error))
    except Exception as error:  # noqa: BLE001  # the process that waits raises it
        return WorkerError(f"{type(error).__name__}: {error}")


def _checked(result: Any, name: str, what: str) -> Any:
    """Return a result of `_attempt`, or raise it as ValueError or WorkerError."""
    if isinstance(result, WorkerError):
        raise WorkerError(f"{what}: {name} has failed: {result}")
    if isinstance(result, Exception):
        raise result
    return result


class _Actor:
    """A process of the cluster."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call = call
        self._name = f"pid {os.getpid()} on {socket.gethostname()}"

    def run(self, number: int, batch: Any) -> tuple[int, str, Any]:
        """Return the number of the batch, the name of the process, and the result of the batch."""
        return number, self._name, _attempt(self._call, batch)


class _Worker:
    """A process, and the processes that replace it."""

    def __init__(self, number: int, threads: int, timeout: float) -> None:
        self._number, self._threads, self._timeout = number, threads, timeout
        self._executor: ProcessPoolExecutor | None = None
        self._processes: list[BaseProcess] = []  # all that were started; the last one runs
        self._is_late = False
        self.deadline = 0.0  # of the batch that it has

    @property
    def name(self) -> str:
        pid = self._processes[-1].pid if self._processes else None
        return f"process {self._number} (pid {pid})"

    def submit(self, call: Callable[[Any], Any], batch: Any) -> Future[Any]:
        """Give the process a batch, and start it if it does not run."""
        self.deadline = time.monotonic() + self._timeout
        if self._executor is not None:
            with suppress(BrokenProcessPool):  # it was ended while it had no batch
                return self._executor.submit(_attempt, call, batch)
            self.close()
        self.deadline += _STARTING
        self._executor = ProcessPoolExecutor(1, _context(self._processes), _begin, (self._threads,))
        self._executor.submit(os.getpid).add_done_callback(self._is_up)
        return self._executor.submit(_attempt, call, batch)

    def _is_up(self, _: Future[int]) -> None:
        self.deadline = time.monotonic() + self._timeout

    def end_if_late(self) -> None:
        """End the process if its batch has taken too long."""
        if time.monotonic() > self.deadline:
            self._is_late, self.deadline = True, math.inf
            self._processes[-1].kill()

    def restart(self) -> str:
        """Let the next batch start another process, and return how this one ended."""
        self.close()
        code = self._processes[-1].exitcode if self._processes else None
        how = f"ended with code {code}"
        if self._is_late:
            how = f"gave no result for {self._timeout:g} s and was ended"
        elif code is not None and code < 0:
            names = {number.value: number.name for number in signal.Signals}
            how = f"was ended by signal {-code} ({names.get(-code, 'unknown')})"
        self._is_late = False
        return f"{self.name} {how}"

    def close(self) -> None:
        """End the process, even while it computes."""
        if self._executor is not None:
            if self._processes:
                self._processes[-1].kill()
            self._executor.shutdown(cancel_futures=True)
            self._executor = None


def _context(started: list[BaseProcess]) -> Any:
    """Return a context of multiprocessing that appends the processes that it starts to a list."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = copy.copy(multiprocessing.get_context(method))
    if method == "forkserver":
        context.set_forkserver_preload(_PRELOADED)
    process = context.Process

    def start(*arguments: Any, **options: Any) -> BaseProcess:
        started.append(process(*arguments, **options))
        return started[-1]

    context.Process = start
    return context


def _can_travel(error: ValueError) -> bool:
    """Whether another process surely can unpickle an error: one of a known class and one text."""
    is_plain = len(error.args) == 1 and isinstance(error.args[0], str) and type(error).__init__ is ValueError.__init__
    return is_plain and type(error).__module__.partition(".")[0] in ("builtins", "uwaga")


def _begin(threads: int) -> None:
    """Set up a process before its first batch."""
    # Ctrl-C is for the process that a person started, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_end([parent.sentinel])
    os._exit(0)  # no process waits for it any more
