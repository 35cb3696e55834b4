"""What the processes of a group send one another: who is at which call, and rows of tensors that are cut by position.

Every message goes from one process to one other (isend, irecv), so that an error can name the process that did not answer.
"""

import datetime
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from uwaga._base.arguments import check
from uwaga.ops.mask_program import Interval

# Tags keep messages of different kinds apart: a process that is at another call is found by its header, and never takes rows for one.
_HEADER, _ROWS, _NOTE, _NOTHING = 7101, 7102, 7103, 7104
# Integers of every header, whatever it is about: gloo ends a process that receives a message of another size than it waits for.
_HEADER_LENGTH = 16

# Where a wait ran out, those of other processes do so too, but later by what these computed meanwhile: their notes are waited for, this share
# of the time that the own wait took, and no less or more than so many seconds.
_LATER, LATEST = 0.1, (1.0, 30.0)
_PAUSE = 0.02  # seconds between two looks
# Characters of an error that is reported to other processes.
_LONGEST_ERROR = 2000
# The attribute of an error that all processes have, or that was reported to them.
_REPORTED = "is_known_to_the_group"

# Calls so far by this process, of each group.
_calls: "WeakKeyDictionary[dist.ProcessGroup, int]" = WeakKeyDictionary()
# Transfers that an error left unfinished: gloo may still write to their tensors, so these must outlive the error.
_unfinished: list[tuple[Any, Tensor]] = []


class ProcessGroupError(RuntimeError):
    """A process of the group failed, ended, did not answer within the group's timeout, or runs another call; the message has its rank."""


class Group(NamedTuple):
    """A process group of torch.distributed, and this process's rank in it."""

    group: dist.ProcessGroup
    rank: int
    size: int

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> "Group":
        """Return the group, or all processes for None. Raises ValueError if there is no group, or this process is not in it."""
        check(
            dist.is_available() and dist.is_initialized(),
            "uwaga.sequence_parallel: there is no process group: call torch.distributed.init_process_group('gloo') first",
        )
        group = dist.group.WORLD if group is None else group
        rank = dist.get_rank(group)
        if group is None or rank < 0:
            raise ValueError("uwaga.sequence_parallel: this process is not in the group")
        return cls(group, rank, dist.get_world_size(group))

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def next_call(self) -> int:
        """Return the number of this call, from 1 on: all processes of the group make the same calls in the same order."""
        _calls[self.group] = _calls.get(self.group, 0) + 1
        return _calls[self.group]

    @contextmanager
    def errors_reported(self) -> Iterator[None]:
        """Report an error of this process alone to the others, which would wait for it otherwise: see `leave`."""
        try:
            yield
        except ProcessGroupError:  # each process finds these by itself
            raise
        except Exception as error:
            if not is_known(error):
                self.leave(error)
            raise

    def leave(self, error: Exception) -> None:
        """End all waits of other processes for this one, which raise ProcessGroupError with its rank and `error`. The group is of no more use."""
        known_to_all(error)
        if self.size == 1:
            return
        message = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
        with suppress(TimeoutError):
            _within(LATEST[1], lambda: self.store().set(_failure_key(self.rank), message))
        self.close()

    def close(self) -> None:
        """Give up all connections of this process in the group, so that nobody waits for it; others learn no more than that it has ended."""
        # gloo does so where a wait runs out, and nowhere else while somebody holds the group: here for what nobody sends.
        with suppress(RuntimeError):
            rank = dist.get_global_rank(self.group, self.others[0])
            nothing = torch.empty(1)
            work = dist.irecv(nothing, rank, self.group, _NOTHING)
            _unfinished.append((work, nothing))
            assert work is not None
            work.wait(datetime.timedelta(milliseconds=1))

    def store(self) -> dist.Store:
        return self.group.get_group_store()

    def headers(self, what: str, header: Sequence[int]) -> list[list[int]]:
        """Return the header of every process, by rank: integers, and zeros up to _HEADER_LENGTH."""
        this_header = torch.zeros(_HEADER_LENGTH, dtype=torch.int64)
        this_header[: len(header)] = torch.tensor(header, dtype=torch.int64)
        results = [this_header if rank == self.rank else torch.empty_like(this_header) for rank in range(self.size)]
        self._transfer(
            what,
            _HEADER,
            [(rank, this_header) for rank in self.others],
            [(rank, results[rank]) for rank in self.others],
        )
        return [x.tolist() for x in results]

    def rows(
        self,
        what: str,
        tensors: Sequence[Tensor],
        held: Sequence[Sequence[Interval]],
        needed: Sequence[Sequence[Interval]],
        into: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Return the rows `needed[rank]` of a tensor whose rows lie with several processes.

        Args:
            what: the name of the tensor, for messages.
            tensors: for each interval of held[rank] its rows, (n, ...), in any strides.
            held: for each process the intervals of the whole tensor that it has, at least one; no row is in two.
            needed: for each process the intervals that it receives here; the same in all processes.
            into: for each interval of needed[rank] where its rows are to be, in any strides. Rows that are there already stay.

        Returns:
            `into`; without it for each interval of needed[rank] its rows, (n, ...): views of `tensors` where one interval has them all.
        """
        intervals, places = held[self.rank], needed[self.rank]
        results = rows_or_memory(tensors, intervals, places) if into is None else list(into)
        for interval, x in zip(intervals, tensors, strict=True):
            for result, place in zip(results, places, strict=True):
                for part, at in shared_rows(interval, place):
                    if result[at].data_ptr() != x[part].data_ptr():
                        result[at] = x[part]
        sends = [
            (rank, x[part].contiguous())
            for interval, x in zip(intervals, tensors, strict=True)
            for rank in self.others
            for place in needed[rank]
            for part, _ in shared_rows(interval, place)
        ]
        arriving = [
            (rank, result[at])
            for rank in self.others
            for interval in held[rank]
            for result, place in zip(results, places, strict=True)
            for _, at in shared_rows(interval, place)
        ]
        received = [(rank, x if x.is_contiguous() else x.new_empty(x.shape)) for rank, x in arriving]
        self._transfer(what, _ROWS, sends, received)
        for (_, x), (_, y) in zip(arriving, received, strict=True):
            if x is not y:
                x.copy_(y)
        return results

    def _transfer(
        self, what: str, tag: int, sends: Iterable[tuple[int, Tensor]], receives: Iterable[tuple[int, Tensor]]
    ) -> None:
        """Start all messages, then wait for them: no order of processes can lock them. Where one process does not answer, the others
        still get theirs, so that they wait for that one too and not for this."""
        with Messages(self, what) as messages:
            for rank, tensor in sends:
                messages.send(rank, tensor, tag)
            for rank, tensor in receives:
                messages.receive(rank, tensor, tag)


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One that is under way. Each is a key of its own, whatever its tensor holds."""

    rank: int
    work: Any
    tensor: Tensor


class Messages:
    """Messages that are sent and received in the background: a context manager, which waits for all of them in the end.

    Tensors are not to be changed before their message is waited for. All methods raise ProcessGroupError.
    """

    def __init__(self, group: Group, what: str) -> None:
        """Begin without messages. `what`: the call and what is sent, for messages of errors."""
        self._group, self._what = group, what
        self._pending: dict[Message, None] = {}  # in the order in which they began
        self._failures: dict[int, RuntimeError] = {}
        self._waited = 0.0  # seconds, for the first message that failed
        self._is_store_silent = False

    def send(self, rank: int, tensor: Tensor, tag: int) -> "Message | None":
        return self._start(dist.isend, rank, tensor, tag)

    def receive(self, rank: int, tensor: Tensor, tag: int) -> "Message | None":
        return self._start(dist.irecv, rank, tensor, tag)

    def wait(self, messages: Iterable["Message | None"]) -> None:
        """Wait for these, which `send` and `receive` returned."""
        for message in messages:
            if message in self._pending:
                self._wait(message)
        self._raise()

    def __enter__(self) -> "Messages":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._give_up()
            return
        while self._pending:
            self._wait(next(iter(self._pending)))
        self._raise()

    def _start(self, start: Any, rank: int, tensor: Tensor, tag: int) -> "Message | None":
        if not tensor.numel():
            return None
        try:
            work = start(tensor, dist.get_global_rank(self._group.group, rank), self._group.group, tag)
        except RuntimeError as error:
            self._failures.setdefault(rank, error)
            return None
        message = Message(rank, work, tensor)
        self._pending[message] = None
        return message

    def _wait(self, message: Message) -> None:
        del self._pending[message]
        began = time.monotonic()
        try:
            message.work.wait()
        except RuntimeError as error:
            self._waited = self._waited or time.monotonic() - began
            self._failures.setdefault(message.rank, error)
            _unfinished.append((message.work, message.tensor))

    def _give_up(self) -> None:
        _unfinished.extend((x.work, x.tensor) for x in self._pending)
        self._pending.clear()

    def _raise(self) -> None:
        if self._failures:
            self._give_up()
            first = next(iter(self._failures.values()))
            for rank in (*self._failures, self._group.rank):
                if (error := self._error_of(rank)) is not None:
                    raise ProcessGroupError(
                        f"uwaga.sequence_parallel: rank {rank} failed ({self._what}): {error}"
                    ) from first
            ranks = f"rank{'s' if len(self._failures) > 1 else ''} {', '.join(map(str, sorted(self._failures)))}"
            raise ProcessGroupError(
                f"uwaga.sequence_parallel: {ranks} ended or did not answer within the group's timeout ({self._what}): {first}"
            ) from first

    def _error_of(self, rank: int) -> str | None:
        """Return the error with which a process left the group; None where it did not."""
        key = _failure_key(rank)
        return cast("str | None", self._ask(lambda store: store.get(key).decode() if store.check([key]) else None))

    def _ask(self, call: Callable[[dist.Store], Any]) -> Any:
        """Return what a call of the group's store returns, or None where that fails; a store that does not answer is not asked again."""
        if self._is_store_silent:
            return None
        try:
            return _within(self._seconds() + LATEST[0], lambda: call(self._group.store()))
        except TimeoutError:
            self._is_store_silent = True
            return None

    def _seconds(self) -> float:
        """Return how long something of another process is looked for in the group's store."""
        return min(max(self._waited * _LATER, LATEST[0]), LATEST[1])


class RelayedMessages(Messages):
    """Messages of a pass in which a process waits for one that may itself wait for another.

    In the end every process sends every other one a note: whether it is through, or whom it waited for in vain. So the error of each names
    the process that ended, not the one between. Where a wait ran out, gloo gives up all connections of that process, and its note
    is found in the group's store.
    """

    _THROUGH = -1

    def __enter__(self) -> "RelayedMessages":
        self._is_sent = False
        self._notes = {rank: self.receive(rank, torch.full((1,), self._THROUGH), _NOTE) for rank in self._group.others}
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self._raise()  # a message that could not begin is not among the pending ones
            for message in [x for x in self._pending if not self._is_note(x)]:
                self._wait(message)
                self._raise()  # another process that has learned of the failure sends nothing more
            self._send_note(self._THROUGH)
        super().__exit__(kind, error, traceback)

    def _is_note(self, message: Message) -> bool:
        return self._notes[message.rank] is message

    def _send_note(self, missing: int) -> None:
        """Send this process's note to every other one. One is all that they receive: who is through, and then learns of one that ended,
        sends nothing more."""
        if self._is_sent:
            return
        self._is_sent = True
        note = torch.full((1,), missing)
        for rank in self._group.others:
            if rank not in self._failures:
                self.send(rank, note, _NOTE)

    def _wait(self, message: Message) -> None:
        super()._wait(message)
        if self._is_note(message) and message.rank not in self._failures:
            missing = int(message.tensor)
            if missing != self._THROUGH:
                self._failures.setdefault(missing, _in_vain(message.rank))

    def _raise(self) -> None:
        if not self._failures:
            return
        # The first one: after a wait that ran out all others fail, too.
        first, error = next(iter(self._failures.items()))
        if not self._is_sent:
            self._ask(lambda store: store.set(self._key(self._group.rank), str(first)))
        self._send_note(first)
        self._failures = self._named(first, error)
        self._group.close()  # a process that waits for this one would wait until the timeout
        super()._raise()

    def _named(self, first: int, error: RuntimeError) -> dict[int, RuntimeError]:
        """Return the process that ended, from the one that this process waited for: whom that one waited for in vain, and so on."""
        rank, reason, asked = first, error, {self._group.rank}
        while rank not in asked:
            asked.add(rank)
            missing = None if self._error_of(rank) is not None else self._missing_to(rank)
            if missing is None:
                return {rank: reason}
            rank, reason = missing, _in_vain(rank)
        return {first: error}  # they wait for one another

    def _missing_to(self, rank: int) -> int | None:
        """Return whom another process waits for in vain, by its note; None where there is no note, or it is through."""
        note = self._notes.get(rank)
        if note is None:
            return None
        if note in self._pending:
            self._failures.pop(rank, None)
            self._wait(note)
        if rank not in self._failures:
            missing = int(note.tensor)
            return None if missing == self._THROUGH else missing

        def read(store: dist.Store) -> int | None:
            key, end = self._key(rank), time.monotonic() + self._seconds()
            while not store.check([key]):
                if time.monotonic() > end:
                    return None
                time.sleep(_PAUSE)
            return int(store.get(key))

        return cast("int | None", self._ask(read))

    def _key(self, rank: int) -> str:
        return f"uwaga.sequence_parallel: {self._what}, rank {rank}"


def known_to_all(error: Exception) -> Exception:
    """Return an error that all processes have, or that is about to be reported to them."""
    with suppress(AttributeError):
        setattr(error, _REPORTED, True)
    return error


def is_known(error: Exception) -> bool:
    return getattr(error, _REPORTED, False)


def _failure_key(rank: int) -> str:
    return f"uwaga.sequence_parallel: the error of rank {rank}"


def _in_vain(rank: int) -> RuntimeError:
    return RuntimeError(f"rank {rank} waited for it in vain")


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what a call of a store returns, or None where it fails. Raises TimeoutError: it takes longer, as in a process that is stopped."""
    results: list[Any] = []

    def run() -> None:
        with suppress(RuntimeError):
            results.append(call())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError
    return results[0] if results else None


def rows_within(tensors: Sequence[Tensor], held: Sequence[Interval], needed: Interval) -> Tensor | None:
    """Return the rows of an interval as a view of what a process has of it, `tensors` of the intervals `held`; None if no interval has them all."""
    for x, (first, last) in zip(tensors, held, strict=True):
        if first <= needed[0] and needed[1] <= last:
            return x[needed[0] - first : needed[1] - first]
    return None


def rows_or_memory(tensors: Sequence[Tensor], held: Sequence[Interval], needed: Sequence[Interval]) -> list[Tensor]:
    """Return the rows of each needed interval as `rows_within` gives them, or memory for them if no interval has them all."""
    views = [rows_within(tensors, held, interval) for interval in needed]
    return [
        tensors[0].new_empty((last - first, *tensors[0].shape[1:])) if x is None else x
        for x, (first, last) in zip(views, needed, strict=True)
    ]


def shared_rows(held: Interval, needed: Interval) -> list[tuple[slice, slice]]:
    """Return what two intervals have in common, from the beginning of each; empty where that is nothing."""
    first, last = max(held[0], needed[0]), min(held[1], needed[1])
    if first >= last:
        return []
    return [(slice(first - held[0], last - held[0]), slice(first - needed[0], last - needed[0]))]
