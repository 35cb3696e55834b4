"""What does a ragged batch cost, compared with each document by itself at full speed, and with padding and a mask?

Document lengths are spread like those of a real collection (see document_lengths); about 91 % of the padded square is waste. GFLOP/s count useful work
only: the pairs inside documents.
"""

from cases import OURS, THEIRS, document_lengths, ragged, wasted
from harness import DTYPES, Report, options, parse
from timing import compare

HEADINGS = ("documents", "H", "D", "type", "waste", "padded/ragged", "ragged/alone", "ragged ms", "alone ms",
            "padded ms", "useful GFLOP/s", "alone", "padded", "of peak")  # fmt: skip

if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--documents", type=int, default=40, help="number of documents")
    parser.add_argument("--median", type=int, default=160, help="median length of a document in tokens")
    chosen = parse(parser)
    if chosen.quick:
        chosen.documents, chosen.median = 6, 5
    lengths = document_lengths(chosen.documents, chosen.median)
    report = Report(
        chosen, f"Ragged: {chosen.documents} documents of {min(lengths)} to {max(lengths)} tokens", HEADINGS
    )
    for dtype in chosen.dtype:
        for heads, width in ((12, 32), (12, 64), (12, 128)):
            case = ragged(lengths, heads, width, DTYPES[dtype])
            case.check()
            measured = compare(case.sides, seconds=chosen.seconds)
            speeds = [case.flops / measured.seconds(side) / 1e9 for side in (OURS, "alone", THEIRS)]
            report.row(
                str(chosen.documents), str(heads), str(width), dtype, f"{wasted(lengths):.0%}",
                f"{measured.ratio(THEIRS, to=OURS):.2f}",
                f"{measured.ratio(OURS, to='alone'):.3f}",
                *(f"{measured.seconds(side) * 1e3:.4g}" for side in (OURS, "alone", THEIRS)),
                *(f"{speed:.1f}" for speed in speeds),
                report.share_of_peak(speeds[0]),
            )  # fmt: skip
