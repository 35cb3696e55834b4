"""How long does it take to look into a map over a hundred thousand tokens?

A cold map is made for every reading, from its query and key only; a warm one knows its lse, as after `uwaga.attend`. The reading is at the end, where a
causal mask shows the most.
"""

import torch
from harness import DTYPES, Report, options, parse
from timing import compare

import uwaga

HEADINGS = ("reading", "map", "H", "N", "D", "type", "ms", "weights", "us per 1000 weights")


def readings(query: torch.Tensor, key: torch.Tensor, lse: torch.Tensor, mask: uwaga.Causal | None, side: int) -> dict:
    """Return what is timed, by name: "reading/map". Each gives the weights that it read."""
    tokens = query.shape[-2]
    rows, columns = slice(tokens - side, tokens), slice(tokens // 2, tokens // 2 + side)

    def made(cached: torch.Tensor | None) -> uwaga.AttentionMap:
        return uwaga.AttentionMap(query, key, mask=mask, lse=cached)

    return {
        f"{reading}/{name}": lambda read=read, cached=cached: read(made(cached))
        for name, cached in (("cold", None), ("warm", lse))
        for reading, read in (
            (f"rectangle {side} x {side}", lambda m: m[0, rows, columns]),
            ("row", lambda m: m[0, -1, :]),
            ("entry", lambda m: m[0, -1, 0]),
        )
    } | {"column/warm": lambda: made(lse)[0, :, tokens // 2]}


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--tokens", type=int, default=100_000, help="N")
    parser.add_argument("--width", type=int, default=64, help="D")
    parser.add_argument("--side", type=int, default=256, help="side of the rectangle")
    parser.add_argument("--causal", action="store_true", help="under a causal mask")
    chosen = parse(parser)
    if chosen.quick:
        chosen.tokens, chosen.width, chosen.side = 96, 16, 8
    report = Report(chosen, "Reading a large map" + ", causal" * chosen.causal, HEADINGS)
    for dtype in chosen.dtype:
        query, key = (torch.randn(1, chosen.tokens, chosen.width).to(DTYPES[dtype]) for _ in range(2))
        mask = uwaga.Causal() if chosen.causal else None
        lse = uwaga.AttentionMap(query, key, mask=mask).lse
        timed = readings(query, key, lse, mask, chosen.side)
        for reading in ("row", f"rectangle {chosen.side} x {chosen.side}"):
            cold, warm = timed[f"{reading}/cold"](), timed[f"{reading}/warm"]()
            if not torch.allclose(cold, warm, rtol=1e-3, atol=0):
                raise AssertionError(f"{reading}: a cold map and a warm one differ by {(cold - warm).abs().max():.2e}")
        measured = compare(timed, seconds=chosen.seconds * len(timed))
        for name in timed:
            weights, seconds = timed[name]().numel(), measured.seconds(name)
            report.row(
                *name.split("/"), "1", str(chosen.tokens), str(chosen.width), dtype,
                f"{seconds * 1e3:.4g}", str(weights), f"{seconds * 1e9 / weights:.4g}",
            )  # fmt: skip
