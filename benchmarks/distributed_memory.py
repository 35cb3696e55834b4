"""How much memory and processor time does each process take for one long context?

The processes have one thread each and use gloo on this machine; B = 1, equal parts. The passes are forward, backward and statistics of the map
(rows: entropy and the eight largest weights). One process runs `uwaga.attention` and `uwaga.AttentionMap`. The columns:

- "MB of a part": the part of query, key, value and output gradient that a process gets.
- "MB": how far a process's memory grows beyond its part, the most of any process. If memory is O(N / processes), doubling both does not change
  it; the exception is the sums of diagonals, which every process keeps whole.
- "balance": the mean of the processes' processor times over the largest.
- "speed": the processor time of one process over P times the largest of P processes; 1 is linear on a machine with P idle cores.

On a busy machine wall times mean nothing, and processor times little.
"""

import ctypes
import datetime
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness import Report, forget_peak, of_processes, options, parse, resident

import uwaga

MASKS: dict[str, Callable[[], Any]] = {
    "causal": uwaga.Causal,
    "window of 16,384": lambda: uwaga.Window(16383, 0),
    "none": lambda: None,
}
STATISTICS: dict[str, Callable[[Any], object]] = {
    "rows": lambda m: (m.prepare(entropy=True, topk=8), m.topk(8)),
    "mass": lambda m: m.mass(uwaga.Window(99, 0)),
    "received": lambda m: m.received(),
    "diagonals": lambda m: m.diagonal_sums(),
    "cells": lambda m: m.pool(64, 64),
}
PASSES = ("forward", "backward", *STATISTICS)
TIMEOUT = datetime.timedelta(hours=2)


def run_rank(rank: int, folder: Path, size: int, tokens: int, name: str, chosen: Any) -> Any:
    """Return the processor time and memory growth of one process in each pass, and the MB of its part."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=TIMEOUT)
    generator = torch.Generator().manual_seed(rank)
    sizes = (1, chosen.heads, tokens * (rank + 1) // size - tokens * rank // size, chosen.width)
    query, key, value, grad = (torch.randn(sizes, generator=generator) for _ in range(4))
    small = torch.zeros(1, chosen.heads, 3000, chosen.width, requires_grad=True)
    # What is imported and allocated once is no question.
    output = uwaga.sequence_parallel.attention(small, small, small, mask=uwaga.Causal())
    torch.autograd.grad(output, [small], torch.ones_like(output))
    for statistic in STATISTICS.values():
        statistic(uwaga.sequence_parallel.attention_map(small.detach(), small.detach()))
    attend: Callable[..., Any] = uwaga.sequence_parallel.attention
    read_map: Callable[..., Any] = uwaga.sequence_parallel.attention_map
    if size == 1:
        attend, read_map = partial(uwaga.attention, impl="cpu"), partial(uwaga.AttentionMap, impl="cpu")
    operands = [x.requires_grad_() for x in (query, key, value)]
    dist.barrier()
    _begin()
    before, times, grown = resident("VmRSS"), [], []
    outputs: list[Any] = []

    def forward() -> None:
        outputs.append(attend(*operands, mask=MASKS[name]()))

    def backward() -> None:
        torch.autograd.grad(outputs.pop(), operands, grad)

    def made() -> Any:
        return read_map(query.detach(), key.detach(), mask=MASKS[name]())

    # The softmax of a map belongs to its rows; the others find it there.
    maps: list[Any] = [None]

    def read(statistic: Callable[[Any], object]) -> None:
        maps[0] = maps[0] or made()
        statistic(maps[0])

    for call in (forward, backward, *(partial(read, x) for x in STATISTICS.values())):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
        grown.append((resident("VmHWM") - before) / 2**20)
        dist.barrier()
        _begin()
    return times, grown, 4 * query.nbytes / 2**20


def _begin() -> None:
    """Return freed memory to the system, and start the peak from what is resident now."""
    ctypes.CDLL(None).malloc_trim(0)
    forget_peak()


if __name__ == "__main__":
    parser = options(__doc__ or "", grid=False)
    parser.add_argument("--n", type=int, nargs="+", default=[65536], help="tokens of the whole sequence")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--mask", nargs="+", default=list(MASKS), choices=list(MASKS))
    chosen = parse(parser)
    if chosen.quick:
        chosen.n, chosen.processes = [64], [1, 2]
    headings = ["mask", "N", "processes", "pass", "MB of a part", "MB", "CPU s", "balance", "speed"]
    report = Report(chosen, "Memory and processor time of one long context over processes", headings)
    for tokens in chosen.n:
        for name in chosen.mask:
            alone: list[float] = []
            for size in chosen.processes:
                ranks = of_processes(size, partial(run_rank, size=size, tokens=tokens, name=name, chosen=chosen))
                times = list(zip(*(x[0] for x in ranks), strict=True))
                grown = zip(*(x[1] for x in ranks), strict=True)
                most = [max(x) for x in times]
                alone = most if size == 1 else alone
                part = f"{max(x[2] for x in ranks):.1f}"
                for n, (of_pass, bytes_of_ranks, by_rank) in enumerate(zip(PASSES, grown, times, strict=True)):
                    balance = sum(by_rank) / size / max(by_rank)
                    speed = f"{alone[n] / size / most[n]:.2f}" if alone else "-"
                    figures = [f"{max(bytes_of_ranks):.1f}", f"{most[n]:.2f}", f"{balance:.2f}", speed]
                    report.row(name, f"{tokens:,}", str(size), of_pass, part, *figures)
