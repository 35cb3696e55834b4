"""How much memory and processor time does each process take for one long context?

Processes of one thread over gloo on this machine, B = 1, equal parts: forward, backward, and the weights that each key receives. "MB of a part" is what
a process is given: its part of query, key, value and output gradient. "MB forward" to "MB received" are how far a process's memory
grew beyond that, the most of any process; where each is O(N / processes), doubling both changes none of them. One process is `uwaga.attention` and
`uwaga.AttentionMap`. "balance" is the mean of the processes' processor times over the largest, "speed" the processor time of one process over P times
the largest of P processes: 1 is linear, on a machine with P idle cores. On a busy machine the times of the wall say nothing, those of the
processor little.
"""

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
PASSES = ("forward", "backward", "received")
TIMEOUT = datetime.timedelta(hours=2)


def run_rank(rank: int, folder: Path, size: int, tokens: int, name: str, chosen: Any) -> Any:
    """Processor time and growth of memory of one process in each pass, and MB of its part."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=TIMEOUT)
    generator = torch.Generator().manual_seed(rank)
    sizes = (1, chosen.heads, tokens * (rank + 1) // size - tokens * rank // size, chosen.width)
    query, key, value, grad = (torch.randn(sizes, generator=generator) for _ in range(4))
    small = torch.zeros(1, chosen.heads, 3000, chosen.width, requires_grad=True)
    # What is imported and allocated once is no question.
    output = uwaga.sequence_parallel.attention(small, small, small, mask=uwaga.Causal())
    torch.autograd.grad(output, [small], torch.ones_like(output))
    uwaga.sequence_parallel.attention_map(small.detach(), small.detach()).received()
    attend: Callable[..., Any] = uwaga.sequence_parallel.attention
    read_map: Callable[..., Any] = uwaga.sequence_parallel.attention_map
    if size == 1:
        attend, read_map = partial(uwaga.attention, impl="cpu"), partial(uwaga.AttentionMap, impl="cpu")
    operands = [x.requires_grad_() for x in (query, key, value)]
    dist.barrier()
    forget_peak()
    before, times, grown = resident("VmRSS"), [], []
    outputs: list[Any] = []

    def forward() -> None:
        outputs.append(attend(*operands, mask=MASKS[name]()))

    def backward() -> None:
        torch.autograd.grad(outputs.pop(), operands, grad)

    def received() -> None:
        read_map(query.detach(), key.detach(), mask=MASKS[name]()).received()

    for each in (forward, backward, received):
        began = time.process_time()
        each()
        times.append(time.process_time() - began)
        grown.append((resident("VmHWM") - before) / 2**20)
        dist.barrier()
        forget_peak()
    return times, grown, 4 * query.nbytes / 2**20


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
    headings = ["mask", "N", "processes", "MB of a part", *(f"MB {x}" for x in PASSES)]
    headings += [f"{x} {what}" for what in ("CPU s", "balance", "speed") for x in PASSES]
    report = Report(chosen, "Memory and processor time of one long context over processes", headings)
    for tokens in chosen.n:
        for name in chosen.mask:
            alone: list[float] = []
            for size in chosen.processes:
                ranks = of_processes(size, partial(run_rank, size=size, tokens=tokens, name=name, chosen=chosen))
                times = list(zip(*(x[0] for x in ranks), strict=True))
                grown = [f"{max(x):.1f}" for x in zip(*(x[1] for x in ranks), strict=True)]
                balance = [f"{sum(x) / size / max(x):.2f}" for x in times]
                most = [max(x) for x in times]
                alone = most if size == 1 else alone
                speed = [f"{one / size / x:.2f}" for one, x in zip(alone, most, strict=True)] if alone else ["-"] * 3
                cells = [*grown, *(f"{x:.2f}" for x in most), *balance, *speed]
                report.row(name, f"{tokens:,}", str(size), f"{max(x[2] for x in ranks):.1f}", *cells)
