"""What do statistics of the weights cost, compared with one plain forward pass in the same process?

"of forward" is the time of the statistic divided by the time of the forward pass: the median over rounds in which both ran. A cold map has only its query and
key. A warm map also has its lse, as after `uwaga.attend`.
"""

from collections.abc import Mapping

import torch
from harness import DTYPES, Report, options, parse
from timing import Side, compare

import uwaga

FORWARD = "forward"
HEADINGS = ("statistic", "map", "B*H", "N", "D", "type", "of forward", "ms", "forward ms")
CELLS = 256  # along each axis of a pooled map


def sides(heads: int, tokens: int, width: int, dtype: torch.dtype, mask: uwaga.Causal | None) -> Mapping[str, Side]:
    """Return what is timed, by name: "statistic/map"."""
    query, key, value = (torch.randn(1, heads, tokens, width).to(dtype) for _ in range(3))
    lse = uwaga.attend(query, key, value, mask=mask).lse

    def cold() -> uwaga.AttentionMap:
        return uwaga.AttentionMap(query, key, mask=mask)

    def warm() -> uwaga.AttentionMap:
        return uwaga.AttentionMap(query, key, mask=mask, lse=lse)

    return {
        FORWARD: lambda: uwaga.attention(query, key, value, mask=mask),
        "output, lse/one pass": lambda: uwaga.attend(query, key, value, mask=mask),
        "output, lse, entropy, top 8/one pass": lambda: uwaga.attend(
            query, key, value, mask=mask, entropy=True, topk=8
        ),
        "lse, entropy, top 8/cold": lambda: cold().prepare(entropy=True, topk=8),
        "lse/cold": lambda: cold().lse,
        "received/cold": lambda: cold().received(),
        "received/warm": lambda: warm().received(),
        "all diagonals/cold": lambda: cold().diagonal_sums(),
        "all diagonals/warm": lambda: warm().diagonal_sums(),
        **{
            f"pool {CELLS} x {CELLS} {pooling}/{name}": lambda pooling=pooling, made=made: made().pool(
                CELLS, CELLS, pooling=pooling
            )
            for pooling in ("sum", "max")
            for name, made in (("cold", cold), ("warm", warm))
        },
    }


def check(result: Mapping[str, Side], tokens: int) -> None:
    """Time means nothing where the result is wrong: what every query gives is 1 in all."""
    for name, side in result.items():
        if name.startswith(("received", "all diagonals")):
            total = side().double().sum(-1) / tokens
        elif "sum" in name:
            total = side().weights.double().sum(-1)
            total = total[total != 0]  # ranges without queries, where there are fewer tokens than cells
        else:
            continue
        if not torch.allclose(total, torch.ones_like(total), atol=1e-3):
            raise AssertionError(f"{name}: rows sum to {total.min():.6f} to {total.max():.6f}")


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--heads", type=int, default=12, help="B*H")
    parser.add_argument("--tokens", type=int, default=4096, help="N")
    parser.add_argument("--width", type=int, default=64, help="D and E")
    parser.add_argument("--causal", action="store_true", help="under a causal mask")
    chosen = parse(parser)
    if chosen.quick:
        chosen.heads, chosen.tokens, chosen.width = 2, 48, 16
    report = Report(chosen, "Statistics of the weights" + ", causal" * chosen.causal, HEADINGS)
    for dtype in chosen.dtype:
        mask = uwaga.Causal() if chosen.causal else None
        timed = sides(chosen.heads, chosen.tokens, chosen.width, DTYPES[dtype], mask)
        check(timed, chosen.tokens)
        # One statistic at a time next to the forward pass, so that every ratio is of neighbours in time.
        for name in list(timed)[1:]:
            measured = compare({FORWARD: timed[FORWARD], name: timed[name]}, seconds=chosen.seconds)
            report.row(
                *name.split("/"), str(chosen.heads), str(chosen.tokens), str(chosen.width), dtype,
                f"{measured.ratio(name, to=FORWARD):.2f}",
                f"{measured.seconds(name) * 1e3:.4g}",
                f"{measured.seconds(FORWARD) * 1e3:.4g}",
            )  # fmt: skip
