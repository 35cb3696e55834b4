"""Statistics of attention on a GPU: how long do maximum, entropy, the eight largest weights and the received weight take beyond the forward pass?

Letters: H query heads, G key/value heads, N tokens, D width.
"""

from collections.abc import Callable

import torch
from device import Bench, megabytes, milliseconds, parse, peak_bytes, ratio, shown

import uwaga

HEADINGS = (
    "H",
    "G",
    "N",
    "D",
    "batch",
    "engine of maps",
    "forward ms",
    "statistics ms",
    "beyond / forward",
    "forward MB",
    "statistics MB",
)


def main(bench: Bench) -> None:
    bench.table("Statistics of a causal map in bfloat16", HEADINGS)
    grid = [(32, 32, 8192, 128), (32, 8, 32768, 128), (32, 32, 131072, 128), (32, 8, 131072, 128)]
    for heads, groups, tokens, width in [(2, 1, 64, 16)] if bench.quick else grid:
        measure(bench, heads, groups, tokens, width, documents=1)
    heads, groups, tokens, width = (2, 1, 64, 16) if bench.quick else (32, 8, 131072, 128)
    measure(bench, heads, groups, tokens, width, documents=4)


def measure(bench: Bench, heads: int, groups: int, tokens: int, width: int, documents: int) -> None:
    values = [bench.randn(tokens, count, width) for count in (heads, groups, groups)]
    offsets = torch.arange(documents + 1, device=bench.device) * (tokens // documents)
    operands = [uwaga.Ragged(x, offsets) if documents > 1 else x.transpose(0, 1)[None] for x in values]

    def forward() -> object:
        with torch.no_grad():
            return uwaga.attention(*operands, mask=uwaga.Causal())

    def statistics() -> object:
        with torch.no_grad():
            output = uwaga.attend(*operands, mask=uwaga.Causal(), entropy=True, topk=8)
            return (
                output.output,
                output.map.entropy(),
                output.map.topk(8),
                output.map.received(),
            )

    runs: dict[str, Callable[[], object]] = {"forward": forward, "statistics": statistics}
    result = milliseconds(bench, runs)
    one, other = result["forward"], result["statistics"]
    beyond = None if one is None or other is None else other - one
    made = uwaga.AttentionMap(*operands[:2], mask=uwaga.Causal())
    bench.row(
        heads, groups, tokens, width, "one text" if documents == 1 else f"{documents} documents", engine_of(made),
        shown(one), shown(other), ratio(beyond, one), *(megabytes(peak_bytes(bench, run)) for run in runs.values()),
    )  # fmt: skip


def engine_of(made: uwaga.AttentionMap) -> str:
    from uwaga.maps.engines import available

    return available.name(made._rows.engine)


if __name__ == "__main__":
    main(parse(__doc__))
