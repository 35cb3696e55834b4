"""How long does attention over processes take, and what does it send, beside gathering all keys and values?

Processes of one thread over gloo on this machine, B = 1, equal parts. Beside uwaga.sequence_parallel.attention stands what one would
write without it: all_gather of the keys and values, uwaga.attention of this process's rows with a `start`, and in the backward pass
all_reduce of the gradients of all keys and values. "speed of one" is the time of one process divided by P times that of P: 1 is
linear. Bytes are those that all processes send for forward and backward; those of all_gather and all_reduce are what a
ring sends. "bits" says whether output and all three gradients have the bits of one process.
"""

import datetime
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from harness import DTYPES, Report, of_processes, options, parse
from torch import Tensor

import uwaga

MASKS: dict[str, Callable[[int], Any]] = {
    "causal": lambda start: uwaga.Causal(start=start),
    "window of 1,024": lambda start: uwaga.Window(1023, 0, start=start),
    "none": lambda start: None,
}
TIMEOUT = datetime.timedelta(minutes=10)


def gathered(query: Tensor, key: Tensor, value: Tensor, *, mask: Callable[[int], Any], sent: list[int]) -> Tensor:
    return Gathered.apply(query, key, value, mask, sent)


class Gathered(torch.autograd.Function):
    """Attention of this process's rows over all keys and values, which every process gathers."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, sent: list[int]) -> Tensor:
        size, start = dist.get_world_size(), dist.get_rank() * query.shape[2]
        whole = []
        for part in (key, value):
            results = [torch.empty_like(part) for _ in range(size)]
            dist.all_gather(results, part)
            sent[0] += part.nbytes * (size - 1)
            whole.append(torch.cat(results, dim=2))
        with torch.enable_grad():
            ctx.operands = [x.detach().requires_grad_() for x in (query, *whole)]
            ctx.output = uwaga.attention(*ctx.operands, mask=mask(start), impl="cpu")
        ctx.sent = sent
        return ctx.output.detach()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        grad_query, *grads = torch.autograd.grad(ctx.output, ctx.operands, grad_output)
        size, rank = dist.get_world_size(), dist.get_rank()
        own = []
        for grad in grads:
            dist.all_reduce(grad)
            ctx.sent[0] += 2 * grad.nbytes * (size - 1) // size
            own.append(grad.chunk(size, dim=2)[rank])
        return grad_query, *own, None, None


def run_rank(rank: int, folder: Path, size: int, tokens: int, name: str, chosen: Any) -> Any:
    """Times of both sides, bytes sent and bits, of one process."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=TIMEOUT)
    dtype, mask = DTYPES[chosen.dtype[0]], MASKS[name]
    torch.manual_seed(0)
    whole = [torch.randn(1, chosen.heads, tokens, chosen.width).to(dtype) for _ in range(4)]
    parts = [x.chunk(size, dim=2)[rank].contiguous() for x in whole]
    sent = {"ours": [0], "gathered": [0]}
    isend = dist.isend

    def counted(tensor: Tensor, *arguments: Any) -> Any:
        sent["ours"][0] += tensor.nbytes
        return isend(tensor, *arguments)

    dist.isend = counted
    sides: dict[str, Callable[..., Tensor]] = {
        "ours": lambda q, k, v: uwaga.sequence_parallel.attention(q, k, v, mask=mask(0)),
        "gathered": lambda q, k, v: gathered(q, k, v, mask=mask, sent=sent["gathered"]),
    }
    times: dict[str, list[float]] = {f"{side} {what}": [] for side in sides for what in ("forward", "backward")}
    results: dict[str, list[Tensor]] = {}
    for turn in range(2 if chosen.quick else 4):
        for side, attend in sides.items():
            operands = [x.clone().requires_grad_() for x in parts[:3]]
            dist.barrier()
            sent[side][0] = 0
            began = time.perf_counter()
            output = attend(*operands)
            dist.barrier()
            middle = time.perf_counter()
            result = torch.autograd.grad(output, operands, parts[3])
            dist.barrier()
            if turn > 0:
                times[f"{side} forward"].append(middle - began)
                times[f"{side} backward"].append(time.perf_counter() - middle)
            results[side] = [output.detach(), *result]
    total = torch.tensor([sent["ours"][0], sent["gathered"][0]])
    dist.all_reduce(total)
    bits = (
        {side: same_bits(values, whole, parts, mask, rank, size) for side, values in results.items()}
        if size > 1
        else {}
    )
    return {"times": {name: median(x) for name, x in times.items()}, "sent": total.tolist(), "bits": bits}


def same_bits(result: list[Tensor], whole: list[Tensor], parts: list[Tensor], mask: Any, rank: int, size: int) -> bool:
    """Whether this process's results are, to the bit, its part of those of one process; all processes have the answer of each."""
    operands = [x.clone().requires_grad_() for x in whole[:3]]
    output = uwaga.attention(*operands, mask=mask(0), impl="cpu")
    exact = [output.detach(), *torch.autograd.grad(output, operands, whole[3])]
    same = torch.tensor([torch.equal(x, y.chunk(size, dim=2)[rank]) for x, y in zip(result, exact, strict=True)]).all()
    answer = same.int()
    dist.all_reduce(answer, op=dist.ReduceOp.MIN)
    return bool(answer)


def measured(size: int, tokens: int, name: str, chosen: Any) -> Any:
    """What the first of `size` processes measured."""
    return of_processes(size, partial(run_rank, size=size, tokens=tokens, name=name, chosen=chosen))[0]


if __name__ == "__main__":
    parser = options(__doc__ or "", grid=False)
    parser.add_argument("--n", type=int, nargs="+", default=[16384], help="tokens of the whole sequence")
    parser.add_argument("--processes", type=int, nargs="+", default=[2], help="beside one")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    chosen = parse(parser)
    if chosen.quick:
        chosen.n, chosen.heads, chosen.width = [64], 2, 16
    headings = [
        "mask",
        "N",
        "processes",
        "pass",
        "ours",
        "gathered",
        "speed of one",
        "gathered",
        "MB sent",
        "gathered",
        "bits",
        "gathered",
    ]
    report = Report(chosen, "Attention over processes beside gathering all keys and values", headings)
    for tokens in chosen.n:
        for name in MASKS:
            one = measured(1, tokens, name, chosen)["times"]
            for size in chosen.processes:
                results = measured(size, tokens, name, chosen)
                times, sent, bits = results["times"], results["sent"], results["bits"]
                for what in ("forward", "backward"):
                    ours, other = times[f"ours {what}"], times[f"gathered {what}"]
                    alone = one[f"gathered {what}"]  # of one process it is uwaga.attention
                    speeds = (f"{alone / (size * x):.2f}" for x in (ours, other))
                    said = [f"{x / 1e6:.1f}" for x in sent] + [
                        "same" if bits[x] else "others" for x in ("ours", "gathered")
                    ]
                    shown = said if what == "backward" else [""] * 4
                    report.row(name, f"{tokens:,}", str(size), what, f"{ours:.3f} s", f"{other:.3f} s", *speeds, *shown)
