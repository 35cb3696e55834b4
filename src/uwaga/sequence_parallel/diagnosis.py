"""Who is in a process group, how fast rank 0 reaches the others, and whether all compute the same bits."""

import os
import socket
import time
import zlib
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from uwaga._base import native
from uwaga.ops.attention.api import attention as attention_in_one_process
from uwaga.ops.masks import Causal
from uwaga.sequence_parallel.exchange import Group
from uwaga.sequence_parallel.sequence import attention

# Rows are sent there and back this many times; the fastest counts.
_MEGABYTES, _ROUNDS = 8, 3


class Process(NamedTuple):
    """One process of a group."""

    rank: int
    host: str
    pid: int
    backend: str
    level: str  # instruction set of its native kernels
    threads: int
    megabytes_per_second: float  # between rank 0 and this one, of 8 MB there and back; 0 for rank 0
    has_same_bits: bool  # whether its part of a small call, with gradients, has the bits that rank 0 computes alone


def doctor(group: dist.ProcessGroup | None = None) -> list[Process]:
    """Describe each process of a group, by rank, in all processes, which call this together.

    Args:
        group: as in `attention`.

    Raises:
        ValueError: no process group.
        ProcessGroupError: a process ended, or did not answer within the group's timeout.
    """
    result = Group.of(group)
    result.headers("who is there", [])
    rates = [_rate(result, rank) for rank in range(result.size)]
    this_process = {
        "rank": result.rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "backend": str(dist.get_backend(result.group)),
        "level": native.level(),
        "threads": native.threads(),
    }
    is_part_of_whole, checksum = _small_call(result)
    gathered: list[Any] = [None] * result.size
    dist.all_gather_object(gathered, (this_process, rates, is_part_of_whole, checksum), group=result.group)
    _, rates, _, checksum = gathered[0]
    return [
        Process(**process, megabytes_per_second=rate, has_same_bits=is_part and its_checksum == checksum)
        for (process, _, is_part, its_checksum), rate in zip(gathered, rates, strict=True)
    ]


def _rate(group: Group, other: int) -> float:
    """Measure megabytes a second between rank 0 and another one; measured by rank 0 only."""
    if other == 0:
        return 0.0
    rows = torch.zeros(int(_MEGABYTES * 1e6) // 4)  # float32
    everything, nothing = (0, rows.numel()), (0, 0)
    fastest = float("inf")
    for _ in range(_ROUNDS if group.rank in (0, other) else 0):
        began = time.perf_counter()
        for owner, receiver in ((0, other), (other, 0)):
            held, needed = (
                [[everything if rank == x else nothing] for rank in range(group.size)] for x in (owner, receiver)
            )
            group.rows("bandwidth", [rows if group.rank == owner else rows[:0]], held, needed)
        fastest = min(fastest, time.perf_counter() - began)
    return 2 * rows.nbytes / 1e6 / fastest


def _small_call(group: Group) -> tuple[bool, int]:
    """Return whether this process's part of a causal call of 2,500 tokens, and of its gradients, is that of the whole computed here; and the
    checksum of that, which the instruction set decides."""
    generator = torch.Generator().manual_seed(0)
    tokens = 2500
    first, last = (tokens * rank // group.size for rank in (group.rank, group.rank + 1))
    with torch.inference_mode(False), torch.enable_grad():
        whole = [torch.randn(1, 1, tokens, 16, generator=generator) for _ in range(4)]
        parts = [x[:, :, first:last] for x in whole]
        of_part, all_of_it = ([x.clone().requires_grad_() for x in tensors[:3]] for tensors in (parts, whole))
        output = attention(of_part[0], of_part[1], of_part[2], mask=Causal(), group=group.group)
        exact = attention_in_one_process(*all_of_it, mask=Causal(), impl="cpu")
        assert isinstance(output, torch.Tensor)
        assert isinstance(exact, torch.Tensor)
        results = [output, *torch.autograd.grad(output, of_part, parts[3])]
        expected = [exact, *torch.autograd.grad(exact, all_of_it, whole[3])]
    checksum = zlib.crc32(torch.cat([x.detach().flatten() for x in expected]).view(torch.uint8).numpy().data)
    return all(torch.equal(x, y[:, :, first:last]) for x, y in zip(results, expected, strict=True)), checksum
