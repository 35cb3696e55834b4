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
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from uwaga.store import SoftDatabase


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
    said = []
    query = torch.ones(1, db.schema.key_width)
    for asked in (query * (1 + rank), query * 3e38):
        try:
            db.attend(asked, scale=1.0)
        except ValueError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


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
