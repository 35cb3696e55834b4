"""Reads a database by 1 to 4 processes over gloo, and by one that is killed. A program of its own, since it forks: PyTorch is imported once, and has
computed nothing before a fork.

    python tests/store/together.py DATABASE FOLDER SIZE ...

Each process writes what it got to FOLDER/SIZE.RANK.pt.
"""

import datetime
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from uwaga._base.errors import SoftDatabaseError
from uwaga.store import SoftDatabase
from uwaga.store.reading import LiveRows


def answers(db: Any) -> list[Any]:
    """What is compared: attention, its gradient, searches and conditions."""
    torch.manual_seed(1)
    results: list[Any] = []
    for queries in (1, 5, 300):
        query = (torch.randn(queries, db.schema.key_width) * 3).requires_grad_()
        answer = db.attend(query, top=4)
        (grad,) = torch.autograd.grad(answer.value.square().sum(), query)
        top = db.search(query.detach(), 7)
        results += [answer.value.detach(), answer.lse, answer.entropy, *answer.top[:3], answer.skipped, grad, *top[:3]]
        some = db.attend(query.detach(), where="n < 5000", top=2)
        results += [some.value, some.lse, *some.top[:3]]
        results += list(db.attend(query.detach(), tolerance=0.01, top=2)[:2])
    return results


def refusals(db: Any, rank: int) -> list[str]:
    """Messages of what goes wrong in one process alone, which all have."""
    query = torch.ones(1, db.schema.key_width)
    wanted = query.clone().requires_grad_()
    return [
        message(lambda: db.attend(query * (1 + rank), scale=1.0)),
        message(lambda: db.attend(query * 3e38, scale=1.0)),
        message(lambda: torch.autograd.grad(db.attend(wanted).value.sum() * (1 + rank), wanted)),
        message(lambda: gradient_in_one_alone(db, wanted, rank)),
        message(lambda: rows_that_one_cannot_read(db, wanted, rank)),
    ]


def message(call: Callable[[], object]) -> str:
    try:
        call()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def gradient_in_one_alone(db: Any, query: torch.Tensor, rank: int) -> None:
    """The second process asks its next question where the first one is at the gradient of this one."""
    value = db.attend(query).value
    if rank == 1:
        db.attend(query)
    torch.autograd.grad(value.sum(), query)


def rows_that_one_cannot_read(db: Any, query: torch.Tensor, rank: int) -> None:
    value = db.attend(query).value
    keys = LiveRows.keys

    def damaged(_live: LiveRows, start: int, stop: int) -> torch.Tensor:
        raise SoftDatabaseError  # without a message, which the others are to get nevertheless

    if rank == 1:
        LiveRows.keys = damaged  # type: ignore[method-assign]
    try:
        torch.autograd.grad(value.sum(), query)
    finally:
        LiveRows.keys = keys  # type: ignore[method-assign]


def run(path: str, folder: Path, size: int, rank: int) -> None:
    torch.set_num_threads(1)
    address = f"file://{folder}/{size}.group"
    dist.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60)
    )
    with SoftDatabase.open(path) as db, db.read_together():
        results = [answers(db), refusals(db, rank)]
        if size == 3:  # and one is killed
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                db.attend(torch.ones(1, db.schema.key_width))
            except RuntimeError as error:
                results.append(f"{type(error).__name__}: {error}")
    torch.save(results, folder / f"{size}.{rank}.pt")
    os._exit(0)  # without waiting for those that are gone


if __name__ == "__main__":
    gc.freeze()
    path, folder = sys.argv[1], Path(sys.argv[2])
    for size in map(int, sys.argv[3:]):
        children = []
        for rank in range(size):
            if (child := os.fork()) == 0:
                try:
                    run(path, folder, size, rank)
                finally:
                    sys.excepthook(*sys.exc_info())
                    os._exit(1)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
