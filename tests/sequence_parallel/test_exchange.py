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


def key(rank: int) -> str:
    return f"uwaga.sequence_parallel: {CALL}, rank {rank}"


def test_all_are_told_that_a_process_is_through(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network({1: -1, 2: -1, 3: -1})
    receive_from(2, network, monkeypatch)
    assert network.sent == [(1, -1), (2, -1), (3, -1)]


IN_VAIN = "rank {} waited for it in vain"
# The notes of the others, whose rows do not come, what each wrote to the store that it waits for, from whom rows are wanted, who is named
# and why, and what the others are told.
ENDED: dict[str, tuple[dict[int, int], tuple[int, ...], dict[int, str], int, int, str, list[tuple[int, int]]]] = {
    "one that ended": ({1: -1, 3: -1}, (), {}, 2, 2, "connection closed", [(1, 2), (3, 2)]),
    "not a process between": ({1: 3, 2: -1, 3: -1}, (1,), {}, 1, 3, IN_VAIN.format(1), []),
    # As gloo leaves connections where a wait ran out: what a process waited for is in the store.
    "not one whose connections are gone": ({}, (), {1: "3"}, 1, 3, IN_VAIN.format(1), []),
    "the first of those that wait for one another": ({}, (), {1: "3", 3: "1"}, 1, 1, "connection closed", []),
    # Nobody receives a second note: it would wait for the whole timeout.
    "one that ended, after the end": ({1: -1, 2: 3, 3: -1}, (), {}, 1, 3, IN_VAIN.format(2), [(1, -1), (2, -1), (3, -1)]),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDED)
def test_who_ended_is_named_to_all_others(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, silent, stored, sender, named, why, told = ENDED[case]
    network = Network(notes, silent)
    for rank, waits_for in stored.items():
        network.store.set(key(rank), waits_for)
    with pytest.raises(ProcessGroupError, match=rf"rank {named} ended or did not answer .*{why}"):
        receive_from(sender, network, monkeypatch)
    if told:
        assert network.sent == told
    if stored == {1: "3"}:
        assert network.store.get(key(0)) == b"1"


def test_a_store_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the process that is stopped."""
    never = threading.Event()
    network = Network({})
    network.seconds = 0.1
    network.store = SimpleNamespace(set=lambda *_: never.wait(), check=lambda *_: never.wait() and False)
    with pytest.raises(ProcessGroupError, match=r"rank 2 ended or did not answer .*connection closed"):
        receive_from(2, network, monkeypatch)
    never.set()


def test_each_message_is_waited_for_once() -> None:
    works = [Work(False) for _ in range(3)]
    messages = exchange.Messages(Group(cast("Any", None), 0, 2), "rows")
    with messages:
        started = [messages._start(lambda *_, work=work: work, 1, torch.zeros(1), ROWS) for work in works]
        messages.wait([started[1], None, started[1]])
        assert [work.waits for work in works] == [0, 1, 0]
    assert [work.waits for work in works] == [1, 1, 1]
