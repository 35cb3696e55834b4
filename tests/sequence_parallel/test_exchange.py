"""What a process tells the others of one that ended, without processes: transfers that are recorded."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from uwaga.sequence_parallel import exchange
from uwaga.sequence_parallel.exchange import Group, ProcessGroupError, RelayedMessages

ROWS, CALL = 1, "call 1, keys"  # a tag and a name


class Network:
    """Stands in for torch.distributed: no rows come from the ranks in `silent`, and a rank without a note in `notes` has ended."""

    # How long a thread may take to answer: as long as on a busy machine. What is not in the store is waited for by a clock of the test's own.
    seconds = 600.0

    def __init__(self, notes: dict[int, int], silent: tuple[int, ...] = ()) -> None:
        self.notes, self.silent = notes, silent
        self.sent: list[tuple[int, int]] = []  # rank and note
        self.store: Any = dist.HashStore()

    def isend(self, tensor: Tensor, rank: int, _group: object, tag: int) -> Any:
        if tag == exchange._NOTE:
            self.sent.append((rank, int(tensor)))
        return Work(rank not in self.notes)

    def irecv(self, tensor: Tensor, rank: int, _group: object, tag: int) -> Any:
        if tag == exchange._NOTE:
            tensor.fill_(self.notes.get(rank, 0))
        return Work(rank not in self.notes or (tag == ROWS and rank in self.silent))


class Work:
    def __init__(self, fails: bool) -> None:
        self.fails, self.waits = fails, 0

    def wait(self) -> None:
        self.waits += 1
        if self.fails:
            raise RuntimeError("connection closed")


def receive_from(rank: int, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of process 0 of four, which receives rows from one of the others."""
    for name in ("isend", "irecv"):
        monkeypatch.setattr(exchange.dist, name, getattr(network, name))
    monkeypatch.setattr(exchange.dist, "get_global_rank", lambda _group, rank: rank)
    monkeypatch.setattr(exchange, "_LATEST", (network.seconds, network.seconds))
    monkeypatch.setattr(exchange, "_PAUSE", 1000.0)
    clock = [0.0]
    own_time = SimpleNamespace(monotonic=lambda: clock[-1], sleep=lambda pause: clock.append(clock[-1] + pause))
    monkeypatch.setattr(exchange, "time", own_time)
    group = SimpleNamespace(get_group_store=lambda: network.store)
    with RelayedMessages(Group(cast("Any", group), 0, 4), CALL) as messages:
        messages.wait([messages.receive(rank, torch.empty(1), ROWS)])


def test_all_are_told_that_a_process_is_through(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network({1: -1, 2: -1, 3: -1})
    receive_from(2, network, monkeypatch)
    assert network.sent == [(1, -1), (2, -1), (3, -1)]


def test_one_that_ended_is_named_to_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network({1: -1, 3: -1})
    with pytest.raises(ProcessGroupError, match=r"rank 2 ended or did not answer .*connection closed"):
        receive_from(2, network, monkeypatch)
    assert network.sent == [(1, 2), (3, 2)]


def test_a_process_between_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of rank 1 are missing, and its note says that it waited for rank 3."""
    network = Network({1: 3, 2: -1, 3: -1}, silent=(1,))
    with pytest.raises(ProcessGroupError, match=r"rank 3 ended or did not answer .*rank 1 waited for it in vain"):
        receive_from(1, network, monkeypatch)


def key(rank: int) -> str:
    return f"uwaga.sequence_parallel: {CALL}, rank {rank}"


def test_a_process_between_whose_connections_are_gone_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As gloo leaves them where a wait ran out: what it waited for is in the store."""
    network = Network({})
    network.store.set(key(1), "3")
    with pytest.raises(ProcessGroupError, match=r"rank 3 ended or did not answer .*rank 1 waited for it in vain"):
        receive_from(1, network, monkeypatch)
    assert network.store.get(key(0)) == b"1"


def test_of_processes_that_wait_for_one_another_the_first_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network({})
    network.store.set(key(1), "3")
    network.store.set(key(3), "1")
    with pytest.raises(ProcessGroupError, match=r"rank 1 ended or did not answer .*connection closed"):
        receive_from(1, network, monkeypatch)


def test_a_store_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the process that is stopped."""
    never = threading.Event()
    network = Network({})
    network.seconds = 0.1
    network.store = SimpleNamespace(set=lambda *_: never.wait(), check=lambda *_: never.wait() and False)
    with pytest.raises(ProcessGroupError, match=r"rank 2 ended or did not answer .*connection closed"):
        receive_from(2, network, monkeypatch)
    never.set()


def test_a_process_that_was_through_and_is_told_of_one_that_ended_sends_no_second_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody receives one: it would wait for the whole timeout."""
    network = Network({1: -1, 2: 3, 3: -1})
    with pytest.raises(ProcessGroupError, match=r"rank 3 ended or did not answer .*rank 2 waited for it in vain"):
        receive_from(1, network, monkeypatch)
    assert network.sent == [(1, -1), (2, -1), (3, -1)]


def test_each_message_is_waited_for_once() -> None:
    works = [Work(False) for _ in range(3)]
    messages = exchange.Messages(Group(cast("Any", None), 0, 2), "rows")
    with messages:
        started = [messages._start(lambda *_, work=work: work, 1, torch.zeros(1), ROWS) for work in works]
        messages.wait([started[1], None, started[1]])
        assert [work.waits for work in works] == [0, 1, 0]
    assert [work.waits for work in works] == [1, 1, 1]
