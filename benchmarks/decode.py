"""Does one query over very many keys run at the speed of memory?

The yardstick is a copy of the keys in the same run; a copy reads and writes every byte and counts both, attention
reads every key and value once.
"""

import torch
from harness import DTYPES, Report, options, parse

from uwaga.cli.cases import OURS, THEIRS, decode
from uwaga.cli.timing import compare

HEADINGS = ("H", "keys", "D", "type", "ratio", "of copy bandwidth", "torch", "uwaga ms", "torch ms", "GB/s", "torch",
            "copy")  # fmt: skip

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
        measured = compare(case.sides | {"copy": lambda a=source, b=target: b.copy_(a)}, seconds=chosen.seconds)
        # Keys and values are two tensors of this size, and so are what a copy reads and what it writes.
        speeds = {side: 2 * source.nbytes / measured.seconds(side) / 1e9 for side in (OURS, THEIRS, "copy")}
        report.row(
            str(chosen.heads), f"{chosen.keys:,}", str(chosen.width), dtype,
            f"{measured.ratio(THEIRS, to=OURS):.2f}",
            *(f"{measured.ratio('copy', to=side):.2f}" for side in (OURS, THEIRS)),
            *(f"{measured.seconds(side) * 1e3:.4g}" for side in (OURS, THEIRS)),
            *(f"{speed:.1f}" for speed in speeds.values()),
        )  # fmt: skip
