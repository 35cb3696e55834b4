"""What does gradient x attention cost compared with a backward pass of attention, and how much memory does it need?

For each mask, each in a process of its own: CPU seconds of the backward pass of attention of one head; CPU seconds of the column sums of that head's
whole gradient map with row weights (a step of the rollout); and the peak of resident memory beyond the operands. The last row is activation patching
of a model at this length, with the peak of the whole process.
"""

import argparse
import sys
from collections.abc import Callable
from time import process_time

import torch
from harness import Report, in_a_process, options, parse, peak, resident

import uwaga
from uwaga.inspect import GradientMap, activation_patching
from uwaga.models import Transformer, config

HEADINGS = ("work", "H", "N", "D", "CPU s", "of backward", "beyond MiB", "whole process MiB")
MASKS = {"none": None, "causal": uwaga.Causal()}


def seconds_of(run: Callable[[], object], rounds: int = 3) -> float:
    """Return the least CPU time of a call, which other processes on the machine change little."""
    results = []
    for _ in range(rounds):
        started = process_time()
        run()
        results.append(process_time() - started)
    return min(results)


def gradient(name: str, heads: int, tokens: int, width: int) -> tuple[float, float, int]:
    """Return CPU seconds of the backward pass and of the sums, and bytes beyond the operands."""
    query, key, value = (torch.randn(1, heads, tokens, width, requires_grad=True) for _ in range(3))
    output = uwaga.attention(query, key, value, mask=MASKS[name])
    grad, rows = torch.randn_like(output), torch.rand(1, heads, tokens)
    backward = seconds_of(lambda: torch.autograd.grad(output, (query, key, value), grad, retain_graph=True))

    m = GradientMap(uwaga.AttentionMap(query.detach(), key.detach(), mask=MASKS[name]), value, grad)
    used = peak(lambda: m.received(rows)).bytes
    return backward, seconds_of(lambda: m.received(rows)), used


def patching(heads: int, tokens: int, width: int) -> tuple[float, int]:
    """Return CPU seconds of one run of activation patching, and the peak of the whole process in bytes."""
    sizes = {"vocab_size": 1000, "d_model": heads * width, "num_heads": heads, "d_ff": 4 * heads * width}
    model = Transformer(config("gpt2", num_layers=6, max_position_embeddings=tokens, **sizes)).eval()
    clean, corrupted = (torch.randint(1000, (1, tokens)) for _ in range(2))
    runs = 4

    def metric(states: object) -> torch.Tensor:
        return states.last_hidden_state[0, -1, 0]

    started = process_time()
    result = activation_patching(
        model, {"ids": clean, "outputs": ()}, {"ids": corrupted, "outputs": ()}, metric,
        kind="decoder", positions=[list(range(tokens // 2, tokens))], limit=runs,
    )  # fmt: skip
    assert int((~result.values.isnan()).sum()) == runs
    return (process_time() - started) / (runs + 2), resident("VmHWM")


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--heads", type=int, default=1, help="H of the gradient maps")
    parser.add_argument("--tokens", type=int, default=16_384, help="N of the gradient maps")
    parser.add_argument("--patched", type=int, default=8_192, help="N of activation patching")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    chosen = parse(parser)
    if chosen.one:
        name, heads, tokens, width = chosen.one[0], *map(int, chosen.one[1:])
        print(*(patching(heads, tokens, width) if name == "patching" else gradient(name, heads, tokens, width)))
        sys.exit()
    if chosen.quick:
        chosen.tokens, chosen.patched = 128, 64
    report = Report(chosen, "Gradient x attention and activation patching", HEADINGS)
    for name in MASKS:
        backward, sums, used = map(float, in_a_process(chosen, name, str(chosen.heads), str(chosen.tokens), "64"))
        sizes = (str(chosen.heads), str(chosen.tokens), "64")
        report.row(f"backward, mask {name}", *sizes, f"{backward:.2f}", "1.00", "", "")
        report.row(
            f"gradient map, mask {name}", *sizes, f"{sums:.2f}", f"{sums / backward:.2f}", f"{used / 2**20:.0f}", ""
        )
    seconds, whole = map(float, in_a_process(chosen, "patching", "6", str(chosen.patched), "64"))
    report.row(
        "patched run, 6 layers", "6", str(chosen.patched), "64", f"{seconds:.2f}", "", "", f"{whole / 2**20:.0f}"
    )
