"""Forward and backward on a GPU: how long does uwaga.attention take compared with the best of PyTorch's kernels called by hand?

Letters: B sequences, H query heads, G key/value heads, N tokens, D width.
"""

from collections.abc import Callable

import torch
from device import OURS, Bench, milliseconds, need_agreement, parse, ratio, shown
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import uwaga

HEADINGS = ("pass", "B", "H", "G", "N", "D", "mask", "ratio", "uwaga ms", "best", "best ms", "engine")
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def main(bench: Bench) -> None:
    bench.table("Forward, and forward with backward, in bfloat16", HEADINGS)
    grid = [(16, 16, 16, 1024, 64), (4, 16, 16, 4096, 128), (1, 32, 8, 16384, 128), (1, 32, 8, 65536, 128)]
    for batch, heads, groups, tokens, width in [(1, 2, 1, 64, 16)] if bench.quick else grid:
        for is_causal in (False, True):
            for backward in (False, True):
                measure(bench, (batch, heads, groups, tokens, width), is_causal, backward)


def measure(bench: Bench, sizes: tuple[int, int, int, int, int], is_causal: bool, backward: bool) -> None:
    batch, heads, groups, tokens, width = sizes
    query = bench.randn(batch, heads, tokens, width, grad=backward)
    key, value = (bench.randn(batch, groups, tokens, width, grad=backward) for _ in range(2))
    mask = uwaga.Causal() if is_causal else None

    def ours() -> Tensor:
        return uwaga.attention(query, key, value, mask=mask)

    def theirs(backend: SDPBackend) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(query, key, value, is_causal=is_causal, enable_gqa=heads != groups)

        return run

    def whole(forward: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(forward(), (query, key, value), upstream)

    sides: dict[str, Callable[[], Tensor]] = {OURS: ours}
    for name, backend in BACKENDS.items():
        try:
            output = theirs(backend)()
        except RuntimeError:  # this backend does not serve these sizes on this device
            continue
        need_agreement(name, ours(), output)
        sides[name] = theirs(backend)
    if len(sides) == 1:
        sides["math"] = theirs(SDPBackend.MATH)
    upstream = torch.randn_like(ours())
    result = milliseconds(bench, {name: whole(run) if backward else run for name, run in sides.items()})
    times = {name: spent for name, spent in result.items() if name != OURS and spent is not None}
    best = min(times, key=lambda name: times[name]) if times else "-"
    engine = uwaga.explain(query, key, value, mask=mask).engine
    bench.row(
        "both" if backward else "forward", *sizes, "causal" if is_causal else "none", ratio(result[OURS], times.get(best)),
        shown(result[OURS]), best, shown(times.get(best)), engine,
    )  # fmt: skip


if __name__ == "__main__":
    main(parse(__doc__))
