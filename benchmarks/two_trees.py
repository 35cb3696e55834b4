"""How long does a call take, beside the same call in another checkout of this project?

Two processes, one for each checkout, are pinned to one core and asked in turn; each answer is the least of forty calls, and
a row the median of the answers' ratios. The other checkout has its own .venv, as `make setup` makes it.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from harness import DTYPES, HEADS, Report, options, parse

import uwaga

HEADINGS = ("call", "H", "N", "D", "type", "this / other", "this us", "other us")
THIS = Path(__file__).parents[1]
CALLS = {"forward": None, "causal": uwaga.Causal(), "gradients": None, "causal-gradients": uwaga.Causal()}
_LEAST_OF = 40


class Worker:
    """A process of a checkout that times calls."""

    def __init__(self, tree: Path) -> None:
        python = tree / ".venv/bin/python"
        self._process = subprocess.Popen(
            # Its own copy of this program: names inside a checkout change.
            [
                python if tree != THIS and python.exists() else sys.executable,
                tree / "benchmarks/two_trees.py",
                "--answer",
            ],
            cwd=tree,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *question: str) -> float:
        """Seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(question) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def answer() -> None:
    """Time the calls that are asked for on standard input."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    operands: dict[tuple[str, ...], list[torch.Tensor]] = {}
    for line in sys.stdin:
        name, *sizes = line.split()
        tokens, width, dtype = int(sizes[0]), int(sizes[1]), DTYPES[sizes[2]]
        if tuple(sizes) not in operands:
            operands[tuple(sizes)] = [torch.randn(1, HEADS, tokens, width, dtype=dtype) for _ in range(3)]
        print(min(_seconds(name, operands[tuple(sizes)]) for _ in range(_LEAST_OF)), flush=True)


def _seconds(name: str, operands: list[torch.Tensor]) -> float:
    """Of one call; of one whose name ends in "gradients", its backward pass alone."""
    if not name.endswith("gradients"):
        begin = perf_counter()
        uwaga.attention(*operands, mask=CALLS[name])
        return perf_counter() - begin
    leaves = [operand.detach().requires_grad_() for operand in operands]
    output = uwaga.attention(*leaves, mask=CALLS[name])
    begin = perf_counter()
    output.backward(output.detach())
    return perf_counter() - begin


def compare(chosen: argparse.Namespace) -> None:
    report = Report(chosen, f"Beside {chosen.other.name}", HEADINGS)
    this, other = Worker(THIS), Worker(chosen.other)
    for dtype in chosen.dtype:
        for tokens in chosen.n:
            for width in chosen.d:
                for name in CALLS:
                    asked = (name, str(tokens), str(width), dtype)
                    pairs = [(this.ask(*asked), other.ask(*asked)) for _ in range(chosen.rounds)]
                    ours, theirs = (f"{median(side) * 1e6:.1f}" for side in zip(*pairs, strict=True))
                    ratio = median(a / b for a, b in pairs)
                    report.row(name, str(HEADS), *asked[1:], f"{ratio:.3f}", ours, theirs)
    this.close()
    other.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["--answer"]:
        answer()
        sys.exit()
    parser = options(__doc__)
    parser.set_defaults(n=[64])
    parser.add_argument("--other", type=Path, default=THIS, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=40, help="answers of each process to a row")
    chosen = parse(parser)
    chosen.other = chosen.other.resolve()
    if chosen.quick:
        chosen.rounds = 2
    compare(chosen)
