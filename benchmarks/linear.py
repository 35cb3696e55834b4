"""How long does attention without softmax take over very many tokens, whole and causal?

The yardstick is PyTorch's Q (K^T V) by hand, which is the whole form; PyTorch has no causal one.
"""

import torch
from cases import OURS, THEIRS
from harness import DTYPES, Report, options, parse
from timing import compare

import uwaga

HEADINGS = ("N", "D", "type", "form", "uwaga s", "Q (K^T V) s", "ratio", "GFLOP/s")

if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="N")
    parser.add_argument("--width", type=int, default=64, help="D and E")
    chosen = parse(parser)
    if chosen.quick:
        chosen.tokens = 300
    report = Report(chosen, "Without softmax, one head", HEADINGS)
    for dtype in chosen.dtype:
        query, key, value = torch.randn(3, chosen.tokens, chosen.width).to(DTYPES[dtype])
        for form, mask in (("whole", None), ("causal", uwaga.Causal())):
            sides = {
                OURS: lambda: uwaga.attention(query, key, value, mask=mask, normalize=None, scale=1.0),  # noqa: B023
                THEIRS: lambda: query @ (key.mT @ value),  # noqa: B023
            }  # both run before the loop goes on
            measured = compare(sides, seconds=chosen.seconds)
            flops = 4 * chosen.tokens * chosen.width**2
            report.row(
                f"{chosen.tokens:,}", str(chosen.width), dtype, form,
                *(f"{measured.seconds(side):.4g}" for side in (OURS, THEIRS)),
                f"{measured.ratio(THEIRS, to=OURS):.2f}",
                f"{flops / measured.seconds(OURS) / 1e9:.1f}",
            )  # fmt: skip
