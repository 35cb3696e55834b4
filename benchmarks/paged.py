"""What do the blocks of a paged cache cost, compared with contiguous keys, and what do a request's signals cost compared with attention?

Keys lie in blocks in random order. The benchmark checks that both sides have the same bits.
"""

import torch
from harness import DTYPES, Report, options, parse
from timing import compare

import uwaga
from uwaga.maps import request_signals

HEADINGS = (
    "requests",
    "new tokens",
    "keys",
    "H",
    "G",
    "D",
    "block",
    "type",
    "lse",
    "signals",
    "signals / attention",
    "signals ms",
)

if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--requests", type=int, default=8, help="R")
    parser.add_argument("--keys", type=int, default=8192, help="number of keys of each request")
    parser.add_argument("--heads", type=int, default=8, help="H")
    parser.add_argument("--key-heads", type=int, default=2, help="G")
    parser.add_argument("--width", type=int, default=64, help="D")
    chosen = parse(parser)
    if chosen.quick:
        chosen.requests, chosen.keys, chosen.width = 2, 256, 16
    requests, keys = chosen.requests, chosen.keys
    report = Report(chosen, "Maps of a paged cache, and signals of requests", HEADINGS)
    spans = [[(0, keys // 8), (keys // 8, keys // 2), (keys // 2, keys)]] * requests
    for dtype in chosen.dtype:
        for new in (1, 128):
            query = uwaga.Ragged(
                torch.randn(requests * new, chosen.heads, chosen.width).to(DTYPES[dtype]),
                torch.arange(requests + 1) * new,
            )
            packed = torch.randn(requests * keys, chosen.key_heads, chosen.width).to(DTYPES[dtype])
            key = uwaga.Ragged(packed, torch.arange(requests + 1) * keys)
            for block in (1, 16, 256):
                order = torch.randperm(requests * keys // block)
                cache = torch.empty(len(order), block, chosen.key_heads, chosen.width, dtype=packed.dtype)
                cache[order] = packed.view_as(cache)
                operands = query, cache, order.view(requests, -1), torch.full((requests,), keys)

                def contiguous(query: uwaga.Ragged = query, key: uwaga.Ragged = key) -> uwaga.AttentionMap:
                    return uwaga.AttentionMap(query, key, mask=uwaga.Causal())

                def paged(operands: tuple = operands) -> uwaga.AttentionMap:
                    return uwaga.AttentionMap.of_paged(*operands, mask=uwaga.Causal())

                if not torch.equal(contiguous().lse.values, paged().lse.values):
                    raise AssertionError(f"blocks of {block}: other bits than the same keys side by side")
                sides = {
                    "lse": lambda m=contiguous: m().lse,
                    "lse, paged": lambda m=paged: m().lse,
                    "signals": lambda m=contiguous: request_signals(m(), spans),
                    "signals, paged": lambda m=paged: request_signals(m(), spans),
                    "attention": lambda q=query, k=key: uwaga.attention(q, k, k, mask=uwaga.Causal()),
                }
                measured = compare(sides, seconds=chosen.seconds * len(sides))
                ratios = (("lse", "lse, paged"), ("signals", "signals, paged"), ("attention", "signals, paged"))
                report.row(
                    *map(str, (requests, new, keys, chosen.heads, chosen.key_heads, chosen.width, block)), dtype,
                    *(f"{measured.ratio(slow, to=fast):.2f}" for fast, slow in ratios),
                    f"{measured.seconds('signals, paged') * 1e3:.4g}",
                )  # fmt: skip
