"""How much memory do the statistics of a long map need beyond its query and key?

As in memory.py, each statistic runs in a process of its own, after a tiny one of the same kind. Memory is the peak of resident memory less the resident
memory just before. The figure includes the statistic's results, which have a column of their own.
"""

import argparse
import sys

import torch
from harness import DTYPES, Report, in_a_process, options, parse, peak

import uwaga

HEADINGS = ("statistic", "H", "N", "D", "type", "beyond MiB", "results MiB", "s")
CELLS = 256


def everything(m: uwaga.AttentionMap) -> list[torch.Tensor]:
    """Compute all statistics on one map, and keep the results."""
    return [tensor for name in STATISTICS if name != "all of them" for tensor in STATISTICS[name](m)]


STATISTICS = {
    "lse": lambda m: [m.lse],
    "entropy": lambda m: [m.entropy()],
    "top 8": lambda m: list(m.topk(8)),
    "distance": lambda m: [m.distance()],
    "effective_count": lambda m: [m.effective_count()],
    "sink": lambda m: list(m.sink()),
    "mass of a window": lambda m: [m.mass(uwaga.Window(64, 64))],
    "received": lambda m: [m.received()],
    f"pool {CELLS} x {CELLS} mass": lambda m: [m.pool(CELLS, CELLS).weights],
    f"pool {CELLS} x {CELLS} max": lambda m: list(m.pool(CELLS, CELLS, pooling="max")),
    "all of them": everything,
}


def measure(name: str, heads: int, tokens: int, width: int, dtype: torch.dtype) -> tuple[int, int, float]:
    """Return the bytes beyond the operands, the bytes of the results, and seconds."""

    def made(length: int) -> uwaga.AttentionMap:
        query, key = (torch.randn(heads, length, width).to(dtype) for _ in range(2))
        return uwaga.AttentionMap(query, key)

    STATISTICS[name](made(64))
    m = made(tokens)
    result = peak(lambda: STATISTICS[name](m))
    return result.bytes, sum(tensor.nbytes for tensor in result.result), result.seconds


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--heads", type=int, default=1, help="H")
    parser.add_argument("--tokens", type=int, default=65_536, help="N")
    parser.add_argument("--width", type=int, default=64, help="D")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    chosen = parse(parser)
    if chosen.one:
        name, heads, tokens, width, dtype = chosen.one
        print(*measure(name, int(heads), int(tokens), int(width), DTYPES[dtype]))
        sys.exit()
    names = list(STATISTICS)
    if chosen.quick:
        chosen.tokens, names = 256, ["lse", "all of them"]
    report = Report(chosen, "Memory of the statistics", HEADINGS)
    for dtype in chosen.dtype:
        for name in names:
            sizes = (str(chosen.heads), str(chosen.tokens), str(chosen.width), dtype)
            beyond, results, seconds = in_a_process(chosen, name, *sizes)
            mebibytes = (f"{int(size) / 2**20:.1f}" for size in (beyond, results))
            report.row(name, *sizes, *mebibytes, f"{float(seconds):.2f}")
    whole = chosen.heads * chosen.tokens**2 * 4 / 2**20
    report.say(f"\nThe whole matrix of weights would be {whole:,.0f} MiB in float32.")
