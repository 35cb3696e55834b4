"""Does one query over very many keys run at the speed of memory?

Two yardsticks run in turn with it. A sum reads every byte of keys and values once, which is the least that attention must do. A copy of the keys
reads and writes every byte, and counts both. Both treat the bytes as float32, whatever the type, because widening would cost more than reading.
"""

import torch
from cases import OURS, THEIRS, decode
from harness import DTYPES, Report, options, parse
from timing import Side, compare

HEADINGS = ("H", "keys", "D", "type", "ratio", "of reading", "torch", "of copying", "torch", "uwaga ms", "torch ms",
            "GB/s", "torch", "sum", "copy")  # fmt: skip

if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--heads", type=int, default=8, help="H")
    parser.add_argument("--keys", type=int, default=1_000_000, help="K")
    parser.add_argument("--width", type=int, default=64, help="D")
    chosen = parse(parser)
    if chosen.quick:
        chosen.keys = 500
    report = Report(chosen, "Decode: one query", HEADINGS)
    for dtype in chosen.dtype:
        case = decode(chosen.heads, chosen.keys, chosen.width, DTYPES[dtype])
        case.check()
        source = torch.randn(chosen.heads, chosen.keys, chosen.width).to(DTYPES[dtype])
        target = torch.empty_like(source)
        words = [x.zero_().view(-1).view(torch.float32) for x in (source.clone(), target)]
        yardsticks: dict[str, Side] = {
            "sum": lambda a=words: [x.sum() for x in a],
            "copy": lambda a=source, b=target: b.copy_(a),
        }
        measured = compare(case.sides | yardsticks, seconds=chosen.seconds)
        # Keys and values are two tensors of this size, and so are what a copy reads and what it writes.
        speeds = {side: 2 * source.nbytes / measured.seconds(side) / 1e9 for side in (OURS, THEIRS, *yardsticks)}
        report.row(
            str(chosen.heads), f"{chosen.keys:,}", str(chosen.width), dtype,
            f"{measured.ratio(THEIRS, to=OURS):.2f}",
            *(f"{measured.ratio(yardstick, to=side):.2f}" for yardstick in yardsticks for side in (OURS, THEIRS)),
            *(f"{measured.seconds(side) * 1e3:.4g}" for side in (OURS, THEIRS)),
            *(f"{speed:.1f}" for speed in speeds.values()),
        )  # fmt: skip
