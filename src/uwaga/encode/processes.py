"""Batches by the processes of this machine, or by the actors of a Ray cluster, each of which may die.

Each process of this machine is the only worker of an executor of its own, so that one that ends takes its own batch alone with it. It is forked from a server
that has imported what it needs and has computed nothing (multiprocessing's forkserver; elsewhere it is started anew), so that a new one costs
a fraction of a second. Ray starts another actor where one dies, and gives it the batch again.
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
_STARTING_RAY = 300.0  # seconds that the first result may take: processes are started, perhaps machines
_LONGEST_WAIT = 1.0  # seconds, until deadlines are looked at again
_MOST_DEATHS = 10  # of processes or actors that had the same batch
_PRELOADED = ["uwaga.encode.processes", "uwaga.encode.encoder", "uwaga.models.families.bert", "pyarrow"]


class WorkerError(RuntimeError):
    """A process that encodes has failed, or several have with the same documents."""


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
    """Yield call(batch) of pairs of an item and a batch, with its item, as processes finish them.

    A process that ends, or takes too long, is replaced, and another one gets its batch, so that each batch has one result.

    Args:
        call: a function that can be pickled.
        items: read by the caller's thread, when a process is free.
        processes: how many.
        threads: of PyTorch in each of them; None: those of this process, divided among them.
        timeout: seconds for a batch, after which its process is ended.
        describe: what an item is called in a message.
        say: is told of processes that are replaced.

    Raises:
        WorkerError: ten processes have ended with the same batch, or `call` has raised an error that is no ValueError with one argument.
        ValueError: what `call` raises.
    """
    if threads is None:
        import torch

        threads = max(1, torch.get_num_threads() // processes)  # cores that this process may use, or OMP_NUM_THREADS
    workers = [_Worker(number + 1, threads, timeout) for number in range(processes)]
    left, again = ((item, batch, 0) for item, batch in items), deque[tuple[Item, Any, int]]()
    # The last of each: how many processes have ended with the batch.
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
                    say(f"{how}; another one has its documents")
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
    """Yield call(batch) of pairs of an item and a batch, with its item, as actors finish them.

    A cluster that the program has connected to is used, and goes on.

    Args:
        call: a function that can be pickled.
        items: read by the caller's thread, up to two for each actor in advance.
        address: of a cluster, or "auto"; None: one is started on this machine, and ends with this call.
        actors: how many processes encode; None: one for each processor of the cluster.
        timeout: seconds without a result, after which it ends with an error.
        describe: what an item is called in a message.

    Raises:
        DataError: Ray is not installed, or the cluster cannot be reached.
        WorkerError: nothing comes any more, eleven actors have died with the same batch, or `call` has raised an error that is no
            ValueError with one argument.
        ValueError: what `call` raises.
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
    """In a process: call(batch), or the error that it raises, as one that every process can read."""
    try:
        return call(batch)
    except ValueError as error:
        return error if _can_travel(error) else WorkerError(str(error))
    except Exception as error:  # noqa: BLE001  # whatever it is, the process that waits is told
        return WorkerError(f"{type(error).__name__}: {error}")


def _checked(result: Any, name: str, what: str) -> Any:
    """A result of `_attempt` that is no error. Raises ValueError, or WorkerError with the name of the process and what it had."""
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
        """The number of the batch, the process, and what it makes of the batch."""
        return number, self._name, _attempt(self._call, batch)


class _Worker:
    """A process, and those that follow it."""

    def __init__(self, number: int, threads: int, timeout: float) -> None:
        self._number, self._threads, self._timeout = number, threads, timeout
        self._executor: ProcessPoolExecutor | None = None
        self._processes: list[BaseProcess] = []  # that were started, the last one runs
        self._is_late = False
        self.deadline = 0.0  # of the batch that it has

    @property
    def name(self) -> str:
        pid = self._processes[-1].pid if self._processes else None
        return f"process {self._number} (pid {pid})"

    def submit(self, call: Callable[[Any], Any], batch: Any) -> Future[Any]:
        """Start the process if there is none, and give it a batch."""
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
        """Let the next batch start another process; what became of this one."""
        self.close()
        how = f"gave no result for {self._timeout:g} s and was ended" if self._is_late else self._ending()
        self._is_late = False
        return f"{self.name} {how}"

    def _ending(self) -> str:
        code = self._processes[-1].exitcode if self._processes else None
        if code is not None and code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"was ended by signal {-code} ({names.get(-code, 'unknown')})"
        return f"ended with code {code}"

    def close(self) -> None:
        """End the process, whatever it is at."""
        if self._executor is not None:
            if self._processes:
                self._processes[-1].kill()
            self._executor.shutdown(cancel_futures=True)
            self._executor = None


def _context(started: list[BaseProcess]) -> Any:
    """A context of multiprocessing that lists the processes that it starts."""
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
    """Whether it is the same on the other side: UnicodeDecodeError, and classes of a program's own, cannot all be unpickled there."""
    is_plain = len(error.args) == 1 and isinstance(error.args[0], str) and type(error).__init__ is ValueError.__init__
    return is_plain and type(error).__module__.partition(".")[0] in ("builtins", "uwaga")


def _begin(threads: int) -> None:
    """In a process, before its first batch."""
    # Ctrl-C is for the process that a person has started, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_end([parent.sentinel])
    os._exit(0)  # nobody waits for it any more
