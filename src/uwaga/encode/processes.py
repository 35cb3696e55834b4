"""Batches by the processes of this machine, each of which may die.

A thread for each process gives it a batch, waits for the result, and starts another process where it ends. A process is forked from a
server that has imported what it needs and has computed nothing (multiprocessing's forkserver; elsewhere it is started anew), so that a new
one costs a fraction of a second, and is told of by its number and id.
"""

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

TIMEOUT = 60.0  # seconds
_HEARTBEAT = 1.0  # seconds between two signs of life, or a quarter of the timeout
_STARTING = 120.0  # seconds that the first sign may take: PyTorch is imported
_MOST_DEATHS = 10  # of processes that had the same batch
_PRELOADED = ["uwaga.encode.processes", "uwaga.encode.encoder", "uwaga.models.families.bert", "pyarrow"]


class WorkerError(RuntimeError):
    """A process that encodes has failed, or several have with the same documents."""


def map_batches(
    call: Callable[[Any], Any],
    items: Iterable[tuple[Item, Any]],
    *,
    processes: int,
    threads: int,
    timeout: float = TIMEOUT,
    describe: Callable[[Item], str] = str,
    say: Callable[[str], object] = lambda message: None,
) -> Iterator[tuple[Item, Any]]:
    """call(batch) of pairs of an item and a batch, by processes that are each given one batch at a time; as they are finished, with their items.

    A process that ends, or gives no sign of life, is replaced, and another has its batch, so that each batch has one result.

    Args:
        call: a function that can be pickled.
        items: read by the caller's thread, a few more than there are processes in advance.
        processes: how many.
        threads: of PyTorch in each of them.
        timeout: seconds without a sign of life, after which a process is ended: one that is stopped, or whose machine does nothing else.
        describe: what an item is called in a message.
        say: is told of processes that are replaced.

    Raises:
        WorkerError: ten processes have ended with the same batch, or `call` has raised an error that is no ValueError with one argument.
        ValueError: what `call` raises.
    """
    pool = _Pool[Item](call, processes, threads, timeout, describe, say)
    try:
        yield from pool.run(iter(items))
    finally:
        pool.close()


@dataclass(eq=False)
class _Task(Generic[Item]):
    item: Item
    batch: Any
    deaths: int = 0


@dataclass(eq=False)
class _Worker:
    """A process that runs."""

    number: int
    process: BaseProcess
    connection: Connection
    heard: float = field(default_factory=time.monotonic)  # when it gave the last sign of life
    is_up: bool = False  # it has given one
    is_busy: bool = False  # with a batch
    is_silent: bool = False  # it was ended for that

    @property
    def name(self) -> str:
        return f"process {self.number} (pid {self.process.pid})"


class _Pool(Generic[Item]):
    def __init__(
        self,
        call: Callable[[Any], Any],
        processes: int,
        threads: int,
        timeout: float,
        describe: Callable[[Item], str],
        say: Callable[[str], object],
    ) -> None:
        self._call, self._threads, self._timeout, self._describe, self._say = call, threads, timeout, describe, say
        self._heartbeat = min(_HEARTBEAT, timeout / 4)
        self._context = _context()
        self._tasks: deque[_Task[Item] | None] = deque()
        self._changed = threading.Condition()
        self._results: queue.SimpleQueue[tuple[Item, Any] | BaseException] = queue.SimpleQueue()
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()  # the caller's thread says them
        self._is_closed = False
        self._workers: dict[int, _Worker] = {}  # by number
        self._runs = [threading.Thread(target=self._run, args=(n + 1,), daemon=True) for n in range(processes)]

    def run(self, items: Iterator[tuple[Item, Any]]) -> Iterator[tuple[Item, Any]]:
        for each in self._runs:
            each.start()
        pending, is_read = 0, False
        while True:
            while not is_read and pending < 2 * len(self._runs):
                pair = next(items, None)
                if pair is None:
                    is_read = True
                    break
                pending += 1
                self._put(_Task(*pair))
            if not pending:
                return
            result = self._wait()
            self._tell()
            if isinstance(result, BaseException):
                raise result
            pending -= 1
            yield result

    def _wait(self) -> tuple[Item, Any] | BaseException:
        """The next result; ends processes that give no sign of life."""
        while True:
            self._tell()
            self._end_silent()
            with suppress(queue.Empty):
                return self._results.get(timeout=self._heartbeat)

    def _end_silent(self) -> None:
        for each in list(self._workers.values()):
            most = self._timeout if each.is_up else max(self._timeout, _STARTING)
            if each.is_busy and time.monotonic() - each.heard > most:
                each.is_silent = True
                each.process.kill()

    def _tell(self) -> None:
        while not self._messages.empty():
            self._say(self._messages.get())

    def _put(self, task: _Task[Item], *, first: bool = False) -> None:
        with self._changed:
            (self._tasks.appendleft if first else self._tasks.append)(task)
            self._changed.notify()

    def _run(self, number: int) -> None:
        """The thread of a process and of those that follow it."""
        try:
            self._serve(number)
        except Exception as error:  # noqa: BLE001  # raised where results are waited for, which would wait for ever
            self._results.put(error)

    def _serve(self, number: int) -> None:
        while (task := self._take()) is not None:
            worker: _Worker | None = None
            try:
                worker = self._workers.get(number) or self._started(number)
                reply = self._ask(worker, task.batch)
            except (EOFError, OSError) as error:
                if self._is_closed:
                    return
                self._ended(number, worker, task, error)
                continue
            if isinstance(reply, _Failure):
                self._results.put(reply.error(worker.name, self._describe(task.item)))
            else:
                self._results.put((task.item, reply))

    def _take(self) -> _Task[Item] | None:
        with self._changed:
            while not self._tasks and not self._is_closed:
                self._changed.wait()
            return None if self._is_closed else self._tasks.popleft()

    def _started(self, number: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_work,
            args=(theirs, self._call, self._threads, self._heartbeat),
            name=f"uwaga-encode-{number}",
            daemon=True,
        )
        with self._changed:  # multiprocessing lists its processes, and one thread at a time may
            if self._is_closed:
                raise EOFError
            process.start()
            worker = self._workers[number] = _Worker(number, process, ours)
        theirs.close()
        return worker

    def _ask(self, worker: _Worker, batch: Any) -> Any:
        """What a process makes of a batch. Raises EOFError, OSError: it has ended."""
        worker.heard, worker.is_busy = time.monotonic(), True
        worker.connection.send(batch)
        while True:
            reply = worker.connection.recv()
            worker.heard, worker.is_up = time.monotonic(), True
            if reply is not None:  # None is a sign of life
                worker.is_busy = False
                return reply.value if isinstance(reply, _Result) else reply

    def _ended(self, number: int, worker: _Worker | None, task: _Task[Item], error: Exception) -> None:
        name, how = f"process {number}", f"could not be started: {error}"
        if worker is not None:
            with self._changed:
                del self._workers[number]
            worker.connection.close()
            worker.process.kill()
            worker.process.join()
            name, how = worker.name, _ending(worker.process.exitcode)
            if worker.is_silent:
                how = f"gave no sign of life for {self._timeout:g} s, as one that is stopped, and was ended"
        task.deaths += 1
        if task.deaths == _MOST_DEATHS:
            what = self._describe(task.item)
            self._results.put(
                WorkerError(f"{what}: {task.deaths} processes have ended with these; the last, {name}, {how}")
            )
            return
        self._messages.put(f"{name} {how}; another one has its documents")
        self._put(task, first=True)

    def close(self) -> None:
        """Ends all processes, whatever they are at."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            running = [each.process for each in list(self._workers.values())]
        for process in running:
            process.kill()
        for process in running:
            process.join()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        known = {each.value: each.name for each in signal.Signals}
        return f"was ended by signal {-code} ({known.get(-code, 'unknown')})"
    return f"ended with code {code}"


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


@dataclass(frozen=True)
class _Result:
    value: Any


@dataclass(frozen=True)
class _Failure:
    """An error of `call`: a ValueError, or the text of another one."""

    value: ValueError | str

    def error(self, worker: str, what: str) -> Exception:
        if isinstance(self.value, str):
            return WorkerError(f"{what}: {worker} has failed: {self.value}")
        return self.value


def _can_travel(error: ValueError) -> bool:
    """Whether it is the same on the other side: UnicodeDecodeError, and classes of a program's own, cannot all be unpickled there."""
    is_plain = len(error.args) == 1 and isinstance(error.args[0], str) and type(error).__init__ is ValueError.__init__
    return is_plain and type(error).__module__.partition(".")[0] in ("builtins", "uwaga")


def _work(connection: Connection, call: Callable[[Any], Any], threads: int, heartbeat: float) -> None:
    """In a process: the results of the batches that come, until nobody sends any."""
    # Ctrl-C is for the process that a person has started, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(threads)
    sending = threading.Lock()

    def send(reply: object) -> None:
        try:
            with sending:
                connection.send(reply)
        except OSError:
            os._exit(0)  # nobody waits for it any more

    def live() -> None:
        while True:
            time.sleep(heartbeat)
            send(None)

    send(None)  # before any batch: one that stops at its first batch is not taken for one that is still starting
    threading.Thread(target=live, daemon=True).start()
    while True:
        try:
            batch = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            send(_Result(call(batch)))
        except ValueError as error:
            send(_Failure(error if _can_travel(error) else str(error)))
        except Exception as error:  # noqa: BLE001  # whatever it is, also of a result that cannot be pickled, the process that waits is told
            send(_Failure(f"{type(error).__name__}: {error}"))
