"""How long does a study of caches over a long text take, and how much memory beyond the recording?

The recording has --layers of GPT-2's shape (--heads of width 64) over --tokens tokens. The study runs all policies at --budgets in a process of
its own, after a tiny study of the same kind. Memory is the peak of resident memory less the resident memory just before. Queries and keys of a
layer share one direction, and the first key has a large part of it, so that heads have sinks like trained ones. Layers are studied one after
another, so that more layers take more time and no more memory than their losses.
"""

import argparse
import sys
from functools import partial
from time import process_time

import torch
from harness import DTYPES, Report, in_a_process, options, parse, peak

import uwaga
from uwaga.inspect import cache, cache_study
from uwaga.maps.map import MapOptions
from uwaga.nn.attention_id import AttentionId

HEADINGS = ("layers", "H", "N", "D", "type", "budgets", "every", "beyond MiB", "recording MiB", "s", "processor s")
WIDTH = 64


def recorded(layers: int, heads: int, tokens: int, dtype: torch.dtype) -> uwaga.Recording:
    """Return a recording of causal layers."""
    recording = uwaga.Recording()
    map_options = MapOptions(mask=uwaga.Causal(), bias=None, scale=None, softcap=None, sinks=None)
    for layer in range(layers):
        query, key, value = (torch.randn(1, heads, tokens, WIDTH) for _ in range(3))
        common = torch.randn(heads, 1, WIDTH)
        query, key = query + common, key + 0.5 * common
        key[:, :, 0] += 2 * common[:, 0]
        where, operands = AttentionId("decoder", layer), tuple(x.to(dtype) for x in (query, key, value))
        recording.record(where, operands[0], operands[1], map_options, None)
        recording.store(where, operands[0], operands[1], map_options, operands[2])
    recording.close()
    return recording


def measure(
    layers: int, heads: int, tokens: int, budgets: list[int], every: int, dtype: torch.dtype
) -> tuple[int, int, float, float]:
    """Return the bytes beyond the recording, its own bytes, seconds, and processor seconds."""
    least = min(budgets)
    observed = min(32, least // 2)
    policies = {policy.__name__: policy for policy in cache.POLICIES} | {
        "snap_kv": partial(cache.snap_kv, observed=observed),
        "pyramid_kv": partial(cache.pyramid_kv, observed=observed),
        "quest": partial(cache.quest, page=min(16, least)),
    }
    cache_study(recorded(layers, heads, 128, dtype), policies, budgets=budgets, every=every)
    recording = recorded(layers, heads, tokens, dtype)

    def shown(done: int, total: int) -> None:
        if done % 4 == 0 or done == total:
            print(f"{done} of {total}", file=sys.stderr, flush=True)

    before = process_time()
    result = peak(lambda: cache_study(recording, policies, budgets=budgets, every=every, progress=shown))
    for name in result.result.policies:
        errors = ", ".join(f"{x:.3f}" for x in result.result.mean("error", name).mean(-1).tolist())
        print(f"{name}: mean error {errors}", file=sys.stderr, flush=True)
    return result.bytes, recording.nbytes, result.seconds, process_time() - before


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.set_defaults(dtype=["float32"])
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--heads", type=int, default=12, help="H")
    parser.add_argument("--tokens", type=int, default=32_768, help="N")
    parser.add_argument("--budgets", default="256,1024,4096", help="budgets in keys, comma-separated")
    parser.add_argument("--every", type=int, default=1, help="compute the losses of every N-th query")
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)
    chosen = parse(parser)
    if chosen.one:
        layers, heads, tokens, budgets, every, dtype = chosen.one
        limits = [int(part) for part in budgets.split(",")]
        print(*measure(int(layers), int(heads), int(tokens), limits, int(every), DTYPES[dtype]))
        sys.exit()
    if chosen.quick:
        chosen.heads, chosen.tokens, chosen.budgets = 2, 192, "16,32"
    report = Report(chosen, "A study of caches", HEADINGS)
    for dtype in chosen.dtype:
        sizes = (str(chosen.layers), str(chosen.heads), str(chosen.tokens), chosen.budgets, str(chosen.every), dtype)
        beyond, kept, seconds, processor = in_a_process(chosen, *sizes)
        mebibytes = (f"{int(size) / 2**20:.0f}" for size in (beyond, kept))
        times = (f"{float(x):.0f}" for x in (seconds, processor))
        report.row(*sizes[:3], str(WIDTH), dtype, *sizes[3:5], *mebibytes, *times)
    whole = chosen.layers * chosen.heads * chosen.tokens**2 * 4 / 2**20
    report.say(f"\nThe whole matrices of weights would be {whole:,.0f} MiB in float32.")
