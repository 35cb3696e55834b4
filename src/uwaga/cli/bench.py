"""`uwaga bench`: about a minute of timings beside PyTorch on this machine; with --save, which engine is fastest here."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from uwaga.cli.cases import Case
    from uwaga.cli.timing import Comparison


class Task(NamedTuple):
    """One row of the table. The case is made just before it is timed, and its tensors are freed afterwards."""

    what: str
    sizes: str
    make: "Callable[[], Case]"


def bench(
    seconds: Annotated[float, typer.Option(help="How long to measure in all, without the set-up.")] = 40.0,
    save: Annotated[
        bool,
        typer.Option(
            "--save", help="Time the engines instead, and save which is fastest: uwaga prefers it from then on."
        ),
    ] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Sizes too small for meaningful figures, for tests.")] = False,
) -> None:
    """Time attention and the linear map beside PyTorch's own, on this machine."""
    if save:
        _save(seconds, tiny)
        return
    import torch
    from rich.console import Console
    from rich.progress import Progress

    from uwaga.cli import engines, machine
    from uwaga.cli.timing import compare

    console = Console()
    table, linear_table = _table(), _linear_table()
    tasks = list(_tasks(tiny))
    trials = list(engines.linear_trials(tiny))
    count = len(tasks) + len(trials)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("", total=count)
        for task in tasks:
            progress.update(bar, description=f"{task.what} {task.sizes}")
            case = task.make()
            case.check()
            table.add_row(task.what, task.sizes, *_figures(case, compare(case.sides, seconds=seconds / count)))
            progress.advance(bar)
        for trial in trials:
            progress.update(bar, description=f"{trial.operation} {trial.what}")
            case = trial.make()
            case.check()
            compared = compare(case.sides, seconds=seconds / count)
            linear_table.add_row(f"{trial.what} {trial.dtype}", *_engine_figures(case, compared))
            progress.advance(bar)
    console.print(table)
    console.print(linear_table)
    console.print(
        f"{machine.processor()}, {torch.get_num_threads()} threads, torch {machine.version('torch')}. "
        "Medians of runs in turn; more than 1x: uwaga is faster."
    )
    if torch.cuda.is_available():
        console.print(f"These are times of the CPU. For {torch.cuda.get_device_name()}: make gpu, in the sources.")


def _save(seconds: float, tiny: bool) -> None:
    """Write the engine profile of this machine, and print it."""
    from rich.console import Console

    from uwaga._base import env
    from uwaga.cli import engines
    from uwaga.cli.terminal import echo, fail, progress_bar
    from uwaga.ops import engine_profile

    path = engine_profile.default_path()
    try:
        with progress_bar("engines") as progress:
            saved = engines.save_profile(path, seconds=seconds, tiny=tiny, progress=progress)
    except OSError as error:
        fail("bench", f"{path}: cannot be written: {error.strerror or error}")
    Console().print(engines.table(saved))
    echo(f"Saved in {path}. Choices follow it from the next process on; delete the file to undo this.")
    if not env.profile():
        echo("UWAGA_PROFILE is 0, so that the file is ignored.")


def _tasks(tiny: bool) -> Iterator[Task]:
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
            yield Task(what, f"{heads} x {tokens} x {width} {name}", partial(make, 1, heads, tokens, width, dtype))
    lengths = cases.document_lengths(16, median)
    sizes = f"{len(lengths)} documents, {cases.wasted(lengths):.0%} padding"
    yield Task("ragged", sizes, partial(cases.ragged, lengths, heads, width, torch.float32))
    yield Task("decode", f"8 x {keys:,} keys x {width}", partial(cases.decode, 8, keys, width, torch.float32))


def _table() -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what", no_wrap=True)
    table.add_column("heads x tokens x width", no_wrap=True)
    for heading in ("ratio", "uwaga\nms", "torch\nms", "GFLOP\n/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _figures(case: "Case", measured: "Comparison") -> tuple[str, ...]:
    from uwaga.cli.cases import OURS, THEIRS

    ratio = measured.ratio(THEIRS, to=OURS)
    style = "green" if ratio >= 1 else "red"
    return (
        f"[{style}]{ratio:.2f}x[/]",
        f"{measured.seconds(OURS) * 1e3:.3g}",
        f"{measured.seconds(THEIRS) * 1e3:.3g}",
        f"{case.flops / measured.seconds(OURS) / 1e9:.0f}",
    )


def _linear_table() -> "Table":
    from rich import box
    from rich.table import Table

    from uwaga.ops.engine_profile import ENGINES

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("linear map: rows x inputs to outputs", no_wrap=True)
    for engine in ENGINES["linear"]:
        table.add_column(f"{engine}\nratio, GFLOP/s", justify="right", no_wrap=True)
    return table


def _engine_figures(case: "Case", measured: "Comparison") -> Iterator[str]:
    """The time of F.linear divided by that of each engine, and its speed."""
    from uwaga.cli.cases import THEIRS
    from uwaga.ops.engine_profile import ENGINES

    for engine in ENGINES["linear"]:
        if engine not in case.sides:
            yield "-"
            continue
        ratio = measured.ratio(THEIRS, to=engine)
        style = "green" if ratio >= 1 else "red"
        yield f"[{style}]{ratio:.2f}x[/] {case.flops / measured.seconds(engine) / 1e9:4.0f}"
