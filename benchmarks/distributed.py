"""How long does attention over processes take, and what does it send, compared with gathering all keys and values?

The processes have one thread each and use gloo on this machine; B = 1, equal parts. The other side is what one would write without
uwaga.sequence_parallel.attention: all_gather of keys and values, uwaga.attention of this process's rows with a `start`, and in the backward pass
all_reduce of the gradients of all keys and values. The last line gives the reason why context parallelism of
torch.distributed.tensor.experimental does not run on CPUs.

The mask "window" shows 1,024 keys. The columns:

- "speed": the time of one process, while the others wait, divided by P times the time of P processes, which take turns; 1 is linear.
- "MB sent": what all processes send for forward and backward. all_gather and all_reduce are counted as a ring sends them.
- "MB grown": how far the memory of the process that grew most exceeds its parts, in a run that is not timed.
- "bits": whether output and all three gradients have the bits of one process.
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
from harness import DTYPES, Report, forget_peak, of_processes, options, parse, resident, some_of
from torch import Tensor

import uwaga

MASKS: dict[str, Callable[[int], Any]] = {
    "causal": lambda start: uwaga.Causal(start=start),
    "window": lambda start: uwaga.Window(1023, 0, start=start),
    "none": lambda start: None,
}
TIMEOUT = datetime.timedelta(minutes=10)


def gathered(query: Tensor, key: Tensor, value: Tensor, *, mask: Callable[[int], Any], sent: list[int]) -> Tensor:
    return Gathered.apply(query, key, value, mask, sent)


class Gathered(torch.autograd.Function):
    """Compute attention of this process's rows over all keys and values, which every process gathers."""

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
        parts = []
        for grad in grads:
            dist.all_reduce(grad)
            ctx.sent[0] += 2 * grad.nbytes * (size - 1) // size
            parts.append(grad.chunk(size, dim=2)[rank])
        return grad_query, *parts, None, None


def run_rank(rank: int, folder: Path, size: int, tokens: int, name: str, chosen: Any) -> Any:
    """Return the times of both sides and of one process by itself, bytes sent and bits, as this process has them."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=TIMEOUT)
    dtype, mask = DTYPES[chosen.dtype[0]], MASKS[name]
    torch.manual_seed(0)
    whole = [torch.randn(1, chosen.heads, tokens, chosen.width).to(dtype) for _ in range(4)]
    parts = [x.chunk(size, dim=2)[rank].contiguous() for x in whole]
    sent = {"one": [0], "uwaga": [0], "all_gather": [0]}
    isend = dist.isend

    def counted(tensor: Tensor, *arguments: Any) -> Any:
        sent["uwaga"][0] += tensor.nbytes
        return isend(tensor, *arguments)

    dist.isend = counted
    sides: dict[str, Callable[..., Any]] = {
        "uwaga": lambda q, k, v: uwaga.sequence_parallel.attention(q, k, v, mask=mask(0)),
        "all_gather": lambda q, k, v: gathered(q, k, v, mask=mask, sent=sent["all_gather"]),
    }
    one: dict[str, Callable[..., Any]] = {"one": partial(uwaga.attention, mask=mask(0), impl="cpu")}
    times: dict[str, list[float]] = {f"{side} {what}": [] for side in one | sides for what in ("forward", "backward")}
    results: dict[str, list[Tensor]] = {}
    grown: dict[str, float] = {}
    for turn in range(chosen.turns + 2):  # the first one warms up, the last one counts memory
        is_timed, is_last = 0 < turn <= chosen.turns, turn > chosen.turns
        for side, attend in (one | sides).items():
            if side == "one" and rank > 0:
                for _ in range(3):
                    dist.barrier()
                continue
            *operands, grad = whole if side == "one" else parts
            operands = [x.clone().requires_grad_() for x in operands]
            if is_last:
                forget_peak()
            before = resident("VmRSS")
            dist.barrier()
            sent[side][0] = 0
            began = time.perf_counter()
            output = attend(*operands)
            dist.barrier()
            middle = time.perf_counter()
            result = torch.autograd.grad(output, operands, grad)
            dist.barrier()
            if is_last:
                grown[side] = (resident("VmHWM") - before) / 1e6
            if is_timed:
                times[f"{side} forward"].append(middle - began)
                times[f"{side} backward"].append(time.perf_counter() - middle)
            results[side] = [output.detach(), *result]
    total = torch.tensor([float(sent[side][0]) for side in sides])
    dist.all_reduce(total)
    most = torch.tensor([grown[side] for side in sides])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    found = zip(sides, total.tolist(), most.tolist(), strict=True)
    return {
        "times": {name: median(x) for name, x in times.items() if x},
        "sides": {
            side: (bytes_sent / 1e6, most, same_bits(results[side], results.get("one"), rank, size))
            for side, bytes_sent, most in found
        },
        "context parallel": refusal_of_context_parallel() if name == "causal" else None,
    }


def refusal_of_context_parallel() -> str:
    """Return why PyTorch's context parallelism does not run on CPUs, or an empty text. All processes call this."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    query, key, value = (torch.randn(1, 2, 64, 16) for _ in range(3))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    try:
        with context_parallel(mesh, buffers=[query, key, value], buffer_seq_dims=[2, 2, 2]):
            torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    except (NotImplementedError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return ""


def same_bits(result: list[Tensor], exact: list[Tensor] | None, rank: int, size: int) -> bool:
    """Whether all processes' results are, to the bit, their parts of those of one process, which the first one has; they know the answer."""
    same = True
    for n, x in enumerate(result):
        whole = [torch.empty_like(x) for _ in range(size)] if rank == 0 else None
        dist.gather(x.contiguous(), whole)
        if whole is not None and exact is not None:
            same = same and torch.equal(torch.cat(whole, 2), exact[n])
    answer = torch.tensor(int(same))
    dist.broadcast(answer, 0)
    return bool(answer)


def measured(size: int, tokens: int, name: str, chosen: Any) -> Any:
    """Return what the first of `size` processes measured."""
    return of_processes(size, partial(run_rank, size=size, tokens=tokens, name=name, chosen=chosen))[0]


if __name__ == "__main__":
    parser = options(__doc__ or "", grid=False)
    parser.add_argument("--n", type=int, nargs="+", default=[16384], help="tokens of the whole sequence")
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[2], help="numbers of processes to compare with one"
    )
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--masks", type=some_of(MASKS), default=list(MASKS), help="masks, comma-separated")
    parser.add_argument("--turns", type=int, default=4, help="number of timed turns")
    chosen = parse(parser)
    if chosen.quick:
        chosen.n, chosen.heads, chosen.width, chosen.turns = [64], 2, 16, 1
    headings = ["mask", "N", "processes", "side"]
    headings += ["forward", "backward", "forward speed", "backward speed", "MB sent", "MB grown", "bits"]
    report = Report(chosen, "Attention over processes beside gathering all keys and values", headings)
    refused = ""
    for tokens in chosen.n:
        for name in chosen.masks:
            for size in chosen.processes:
                results = measured(size, tokens, name, chosen)
                times = results["times"]
                refused = results["context parallel"] or refused
                for side, (sent, grown, same) in results["sides"].items():
                    passes = [times[f"{side} {what}"] for what in ("forward", "backward")]
                    alone = [times[f"one {what}"] for what in ("forward", "backward")]
                    speeds = [f"{x / (size * y):.2f}" for x, y in zip(alone, passes, strict=True)]
                    bits = "same" if same else "others"
                    took = [f"{x:.3f} s" for x in passes]
                    report.row(
                        name, f"{tokens:,}", str(size), side, *took, *speeds, f"{sent:.1f}", f"{grown:.1f}", bits
                    )
    said = f"does not run on CPUs: {refused}" if refused else "runs on CPUs, and is not measured yet"
    report.say(f"\ntorch.distributed.tensor.experimental.context_parallel {said}\n")
