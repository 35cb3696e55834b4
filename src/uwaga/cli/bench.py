"""`uwaga bench`: about a minute of timings next to PyTorch on this machine."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from uwaga._base import processor
from uwaga.cli.terminal import new_table, progress_bar

if TYPE_CHECKING:
    from uwaga.cli.cases import Trial


def bench(
    seconds: Annotated[float, typer.Option(help="How long to measure in all, without the set-up.")] = 40.0,
    tiny: Annotated[bool, typer.Option("--tiny", help="Sizes too small for meaningful figures, for tests.")] = False,
) -> None:
    """Time attention and the linear map next to PyTorch's own, on this machine."""
    import torch
    from rich.console import Console

    from uwaga.cli.cases import OURS, THEIRS, linear_trials, timed
    from uwaga.ops.linear.choose import NAMES

    table = new_table(
        ("what", "heads x tokens x width"), ("ratio", "uwaga\nms", "torch\nms", "GFLOP\n/s"), pad_edge=False
    )
    engines = [f"{engine}\nratio, GFLOP/s" for engine in NAMES]
    linear_table = new_table(("linear map: rows x inputs to outputs",), engines, pad_edge=False)
    trials = [*_trials(tiny), *linear_trials(tiny)]
    with progress_bar("bench") as progress:
        for labels, case, measured in timed(trials, seconds, progress):
            speeds = {side: f"{case.flops / measured.seconds(side) / 1e9:.0f}" for side in case.sides}
            ratios = {side: _in_colour(measured.ratio(THEIRS, to=side)) for side in case.sides}
            if OURS in case.sides:
                times = (f"{measured.seconds(side) * 1e3:.3g}" for side in (OURS, THEIRS))
                table.add_row(*labels, ratios[OURS], *times, speeds[OURS])
            else:
                figures = (f"{ratios[name]} {speeds[name]:>4}" if name in ratios else "-" for name in NAMES)
                linear_table.add_row(*labels, *figures)
    console = Console()
    console.print(table)
    console.print(linear_table)
    console.print(
        f"{processor.model_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}. "
        "Medians of runs in turn; more than 1x: uwaga is faster."
    )
    if torch.cuda.is_available():
        console.print(f"These are times of the CPU. For {torch.cuda.get_device_name()}: make gpu, in the sources.")


def _in_colour(ratio: float) -> str:
    return f"[{'green' if ratio >= 1 else 'red'}]{ratio:.2f}x[/]"


def _trials(tiny: bool) -> Iterator["Trial"]:
    import torch

    from uwaga.cli import cases

    heads, width, short, middle, long, keys, median = (2, 16, 8, 12, 16, 64, 5) if tiny else (
        12, 64, 128, 512, 1024, 2**18, 64
    )  # fmt: skip
    for name, dtype in {"float32": torch.float32, "bfloat16": torch.bfloat16}.items():
        for what, tokens, make in (
            ("forward", short, cases.forward),
            ("forward", long, cases.forward),
            ("causal", middle, partial(cases.forward, causal=True)),
            ("with backward", middle, cases.backward),
        ):
            yield (what, f"{heads} x {tokens} x {width} {name}"), partial(make, 1, heads, tokens, width, dtype)
    lengths = cases.document_lengths(16, median)
    sizes = f"{len(lengths)} documents, {cases.wasted(lengths):.0%} padding"
    yield ("ragged", sizes), partial(cases.ragged, lengths, heads, width, torch.float32)
    yield ("decode", f"8 x {keys:,} keys x {width}"), partial(cases.decode, 8, keys, width, torch.float32)
