"""How fast is each engine of the CPU on this machine, compared with PyTorch, in attention and in the linear map?

The figures of a processor in ops/engine_table.py come from this program. The sizes of the linear map are those of MiniLM (384 wide) and
BERT (768 wide) at a few hundred tokens.
"""

import cases
from cases import THEIRS
from harness import DTYPES, Report, options, parse
from timing import compare

HEADINGS = ("operation", "sizes", "type", "engine", "ratio", "ms", "GFLOP/s", "of peak")

if __name__ == "__main__":
    chosen = parse(options(__doc__, grid=False))
    heads, tokens, width = (2, (8, 16), 16) if chosen.quick else (12, (128, 1024), 64)
    maps = ((8, 16, 32),) if chosen.quick else ((512, 384, 1536), (512, 1536, 384), (512, 768, 768), (512, 768, 3072))
    report = Report(chosen, "Engines of the CPU", HEADINGS)
    for name in chosen.dtype:
        dtype = DTYPES[name]
        trials = [
            ("attention", f"{heads} x {count} x {width}", cases.forward(1, heads, count, width, dtype))
            for count in tokens
        ]
        trials += [
            ("linear", f"{rows} x {inputs} to {outputs}", cases.linear_engines(rows, inputs, outputs, dtype))
            for rows, inputs, outputs in maps
        ]
        for operation, sizes, case in trials:
            case.check()
            measured = compare(case.sides, seconds=chosen.seconds)
            for side in case.sides:
                seconds = measured.seconds(side)
                speed = case.flops / seconds
                report.row(
                    operation, sizes, name, "PyTorch alone" if side == THEIRS else side,
                    f"{measured.ratio(THEIRS, to=side):.2f}", f"{seconds * 1e3:.3g}", f"{speed / 1e9:.0f}",
                    report.share_of_peak(speed / 1e9),
                )  # fmt: skip
