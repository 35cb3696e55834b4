"""A ragged batch on a GPU: how long does it take compared with varlen_attn by hand, and with one document after another?

Letters: H heads, D width.
"""

import math
from collections.abc import Callable
from statistics import NormalDist

import torch
from device import OURS, Bench, milliseconds, need_agreement, parse, ratio, shown
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import uwaga
from uwaga.ops.masks import Both, Mask

HEADINGS = (
    "documents",
    "tokens",
    "H",
    "D",
    "mask",
    "engine",
    "uwaga ms",
    "of varlen",
    "of one by one",
    "varlen ms",
    "one by one ms",
)


def document_lengths(count: int, median: int, spread: float = 0.82) -> list[int]:
    """Return document lengths as in benchmarks/cases.py, which says where the spread is from."""
    normal = NormalDist()
    quantiles = [normal.inv_cdf((rank + 0.5) / count) for rank in range(count)]
    lengths = [max(1, round(median * math.exp(spread * quantile))) for quantile in quantiles]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    return [lengths[position] for position in order]


def main(bench: Bench) -> None:
    bench.table("Ragged batches in bfloat16, forward", HEADINGS)
    grid = [(5, 4, 2, 16)] if bench.quick else [(64, 1000, 16, 64), (64, 1000, 32, 128), (16, 8000, 32, 128)]
    for documents, median, heads, width in grid:
        lengths = document_lengths(documents, median)
        for mask in (None, uwaga.Causal(), uwaga.Causal() & uwaga.Window(256, 0)):
            measure(bench, lengths, heads, width, mask)


def measure(bench: Bench, lengths: list[int], heads: int, width: int, mask: Mask | None) -> None:
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(bench.device)
    values = [bench.randn(sum(lengths), heads, width) for _ in range(3)]
    operands = [uwaga.Ragged(x, offsets, max_length=max(lengths)) for x in values]
    apart = [[x.transpose(0, 1)[None] for x in row] for row in zip(*(x.split(lengths) for x in values), strict=True)]
    is_causal, has_window = mask is not None, isinstance(mask, Both)

    def alone() -> list[Tensor]:
        if has_window:
            return [uwaga.attention(*row, mask=mask) for row in apart]
        return [scaled_dot_product_attention(*row, is_causal=is_causal) for row in apart]

    def ours() -> Tensor:
        return uwaga.attention(*operands, mask=mask).values

    sides: dict[str, Callable[[], object]] = {OURS: ours, "alone": alone}
    need_agreement("one by one", ours(), torch.cat([x[0].transpose(0, 1) for x in alone()]))
    if bench.device.type == "cuda":
        from torch.nn.attention.varlen import varlen_attn

        window = (256 if has_window else -1, 0 if is_causal else -1)
        arguments = (*values, offsets.int(), offsets.int(), max(lengths), max(lengths))
        sides["varlen"] = lambda: varlen_attn(*arguments, window_size=window)
        need_agreement("varlen", ours(), varlen_attn(*arguments, window_size=window))
    result = milliseconds(bench, sides)
    of_varlen = ratio(result[OURS], result.get("varlen"))
    bench.row(
        len(lengths), sum(lengths), heads, width, "none" if mask is None else repr(mask),
        uwaga.explain(*operands, mask=mask).engine, shown(result[OURS]), of_varlen, ratio(result[OURS], result["alone"]),
        shown(result["varlen"]) if "varlen" in result else "-", shown(result["alone"]),
    )  # fmt: skip


if __name__ == "__main__":
    main(parse(__doc__))
