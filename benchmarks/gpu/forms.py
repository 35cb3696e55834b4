"""Masks, softcap, biases, sinks and dropout on a GPU: how long do they take compared with plain causal attention, and how much memory?

Letters: B sequences, H query heads, G key/value heads, N tokens, D width.
"""

from collections.abc import Callable

import torch
from device import Bench, megabytes, milliseconds, parse, peak_bytes, ratio, shown

import uwaga
from uwaga import AlibiBias, Causal, Documents, KeyLengths, RelativeBias, Window

HEADINGS = ("form", "engine", "forward ms", "of causal", "both ms", "of causal", "forward MB", "both MB")


def forms(bench: Bench, heads: int, tokens: int) -> dict[str, dict]:
    on = bench.device
    return {
        "causal": {"mask": Causal()},
        "window of 1/16": {"mask": Window(tokens // 16, 0)},
        "lengths of 3/4": {"mask": KeyLengths(torch.tensor([tokens * 3 // 4], device=on)) & Causal(start=0)},
        "documents of 1/16": {"mask": Documents(torch.arange(tokens, device=on) // (tokens // 16)) & Causal()},
        "softcap": {"mask": Causal(), "softcap": 30.0},
        "alibi": {"mask": Causal(), "bias": AlibiBias(torch.linspace(0.5, 0.01, heads, device=on))},
        "relative": {"mask": Causal(), "bias": RelativeBias(torch.randn(32, heads, device=on))},
        "sinks": {"mask": Causal(), "sinks": torch.zeros(heads, device=on)},
        "dropout": {"mask": Causal(), "dropout": 0.1},
    }


def main(bench: Bench) -> None:
    heads, groups, tokens, width = (2, 1, 64, 16) if bench.quick else (32, 8, 16384, 128)
    question = f"Forms of attention in bfloat16: {heads} heads, {groups} key heads, {tokens} tokens, width {width}"
    bench.table(question, HEADINGS)
    query = bench.randn(1, heads, tokens, width, grad=True)
    key, value = (bench.randn(1, groups, tokens, width, grad=True) for _ in range(2))
    upstream = torch.randn_like(query)
    causal: dict[str, float | None] = {}
    for name, options in forms(bench, heads, tokens).items():

        def forward(options: dict = options) -> object:
            with torch.no_grad():
                return uwaga.attention(query, key, value, **options)

        def both(options: dict = options) -> object:
            return torch.autograd.grad(uwaga.attention(query, key, value, **options), (query, key, value), upstream)

        runs: dict[str, Callable[[], object]] = {"forward": forward, "both": both}
        result = milliseconds(bench, runs)
        causal = causal or result
        engine = uwaga.explain(query, key, value, **options).engine
        columns = [x for way in runs for x in (shown(result[way]), ratio(result[way], causal[way]))]
        bench.row(name, engine, *columns, *(megabytes(peak_bytes(bench, run)) for run in runs.values()))


if __name__ == "__main__":
    main(parse(__doc__))
