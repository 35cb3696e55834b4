"""Blocks that travel: every process gets what it needs, in order, and none waits for ever, whatever the plan. Processes are threads here, and a message is
on its way only once it is received, as gloo's may be."""

import threading
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from waiting import HANG

from uwaga.sequence_parallel import ring
from uwaga.sequence_parallel.schedule import Piece, Plan


class Post:
    """Sends and receives of all processes: each of both waits for the other."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: Any = defaultdict(deque)

    def put(self, kind: str, sender: int, receiver: int, tag: int, tensor: Tensor) -> Any:
        done = threading.Event()
        with self.lock:
            others = self.waiting["receive" if kind == "send" else "send", sender, receiver, tag]
            if not others:
                self.waiting[kind, sender, receiver, tag].append((tensor, done))
                return done
            other, also_done = others.popleft()
            source, target = (tensor, other) if kind == "send" else (other, tensor)
            target.copy_(source)
            also_done.set()
            done.set()
        return done


class Messages:
    def __init__(self, group: Any, what: str) -> None:
        self.post, self.rank, self.all = group.post, group.rank, []

    def __enter__(self) -> "Messages":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.wait(self.all)

    def send(self, rank: int, tensor: Tensor, tag: int) -> Any:
        return self.put("send", self.rank, rank, tag, tensor)

    def receive(self, rank: int, tensor: Tensor, tag: int) -> Any:
        return self.put("receive", rank, self.rank, tag, tensor)

    def wait(self, messages: Any) -> None:
        for done in messages:
            if done is not None and not done.wait(HANG):
                raise TimeoutError

    def put(self, *message: Any) -> Any:
        if not len(message[-1]):
            return None
        self.all.append(self.post.put(*message))
        return self.all[-1]


def plan_of(random: Random, size: int) -> tuple[Plan, ring.Intervals]:
    """A plan of any pieces and blocks, and the rows of what travels that each process has: one interval or two."""
    lengths = [random.randrange(1, 4) for _ in range(random.randrange(1, 12))]
    blocks = tuple(pairwise([0, *accumulate(lengths)]))
    cuts = sorted(random.randrange(blocks[-1][1] + 1) for _ in range(2 * size - 1))
    intervals = list(pairwise([0, *cuts, blocks[-1][1]]))
    held = [[intervals[rank], intervals[2 * size - 1 - rank]] for rank in range(size)]
    if random.random() < 0.5:  # parts in order
        held = [[(intervals[2 * rank][0], intervals[2 * rank + 1][1])] for rank in range(size)]
    count = random.randrange(1, 3 * size)
    pieces = tuple(Piece((n, n + 1), random.randrange(size)) for n in range(count))
    dense = random.random()
    work = tuple(tuple(int(random.random() < dense) for _ in blocks) for _ in pieces)
    if random.random() < 0.5:  # as under a window: the blocks near a piece
        work = tuple(
            tuple(int(abs(b / len(blocks) - n / count) < dense / 2) for b in range(len(blocks))) for n in range(count)
        )
    return Plan(pieces, blocks, work), held


@pytest.fixture(autouse=True)
def _messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "RelayedMessages", Messages)


@pytest.mark.parametrize("seed", range(24))
def test_every_block_arrives(seed: int) -> None:
    random, size, post = Random(seed), 2 + seed % 4, Post()
    plan, held = plan_of(random, size)
    x = torch.arange(plan.blocks[-1][1] * 6.0).view(-1, 2, 3)
    y = torch.arange(plan.blocks[-1][1]) + 100

    def run(rank: int) -> None:
        division: Any = SimpleNamespace(group=SimpleNamespace(rank=rank, size=size, post=post), number=1)
        own = [[x[first:last].transpose(1, 2), y[first:last]] for first, last in held[rank]]
        found = [
            (b, interval, [part.clone() for part in operands])
            for b, interval, operands in ring.travel(division, plan, "blocks", own, held)
        ]
        expected = [b for b in range(len(plan.blocks)) if any(b in plan.blocks_of(n) for n in plan.pieces_of(rank))]
        assert [b for b, *_ in found] == expected
        for b, (first, last), operands in found:
            assert (first, last) == plan.blocks[b]
            assert torch.equal(operands[0].transpose(1, 2), x[first:last])
            assert torch.equal(operands[1], y[first:last])

    with ThreadPoolExecutor(size) as threads:
        list(threads.map(run, range(size)))
