"""How much memory does a pass need beyond its inputs and outputs?

Each pass runs in a process of its own, after a tiny one of the same kind that loads everything that the first use needs. Memory is the peak of Linux's count
of resident memory during the pass, less the resident memory just before, less the results.
"""

import argparse
import sys

import torch
from cases import OURS, THEIRS, backward, forward
from harness import DTYPES, Report, in_a_process, options, parse, peak

HEADINGS = ("pass", "side", "H", "N", "D", "type", "results MiB", "beyond MiB", "per thread / (N*E) bytes", "s")
PASSES = {"forward": forward, "with backward": backward}


def measure(name: str, side: str, heads: int, tokens: int, width: int, dtype: torch.dtype) -> tuple[int, int, float]:
    """Return the bytes of the results, the bytes beyond them, and seconds."""
    PASSES[name](1, heads, 8, width, dtype).sides[side]()
    result = peak(PASSES[name](1, heads, tokens, width, dtype).sides[side])
    tensors = result.result if isinstance(result.result, tuple) else (result.result,)
    results = sum(tensor.nbytes for tensor in tensors)
    return results, result.bytes - results, result.seconds


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--heads", type=int, default=1, help="H")
    parser.add_argument("--tokens", type=int, default=65_536, help="N")
    parser.add_argument("--width", type=int, default=64, help="D and E")
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)
    chosen = parse(parser)
    if chosen.one:
        name, side, heads, tokens, width, dtype = chosen.one
        print(*measure(name, side, int(heads), int(tokens), int(width), DTYPES[dtype]))
        sys.exit()
    if chosen.quick:
        chosen.tokens = 256
    report = Report(chosen, "Memory", HEADINGS)
    for dtype in chosen.dtype:
        for name in PASSES:
            for side in (OURS, THEIRS):
                sizes = (str(chosen.heads), str(chosen.tokens), str(chosen.width), dtype)
                results, beyond, seconds = in_a_process(chosen, name, side, *sizes)
                per_thread = int(beyond) / chosen.threads / (chosen.tokens * chosen.width)
                mebibytes = (f"{int(size) / 2**20:.1f}" for size in (results, beyond))
                report.row(name, side, *sizes, *mebibytes, f"{per_thread:.1f}", f"{float(seconds):.2f}")
    whole = chosen.tokens**2 * 4 / 2**20
    report.say(f"\nOne whole matrix of weights would be {whole:,.0f} MiB per head in float32.")
