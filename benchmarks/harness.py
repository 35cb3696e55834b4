"""Shared parts of the benchmarks: the grid, the options, the table and the report.

Letters: B*H sequences times heads, N tokens, D width.

Every benchmark takes the same options (see --help) and prints a markdown table row by row. With --report it also appends each row to a file of
benchmarks/results/, with the date, the machine, the versions and the command. A run that is cut short keeps the rows that it measured.
"""

import argparse
import datetime
import math
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from cases import OURS, THEIRS, Case
from timing import Comparison, compare

import uwaga
from uwaga._base import native, processor

HEADS = 12  # H; B*H of the grid is a multiple
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RESULTS = Path(__file__).parent / "results"


class Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help with the lines of the docstring and the default of each option."""


class Cell(NamedTuple):
    """One cell of the grid."""

    batch: int
    heads: int
    tokens: int
    width: int
    dtype: str

    @property
    def bytes(self) -> int:
        """One operand (B, H, N, D)."""
        return self.batch * self.heads * self.tokens * self.width * DTYPES[self.dtype].itemsize


def options(question: str, *, grid: bool = True) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=question, formatter_class=Formatter)
    if grid:
        parser.add_argument("--bh", type=_integers, default=[12, 96, 384], help="B*H, multiples of 12")
        parser.add_argument("--n", type=_integers, default=[64, 128, 256, 512, 1024, 2048, 4096], help="tokens")
        parser.add_argument("--d", type=_integers, default=[32, 64, 128], help="widths")
    parser.add_argument("--dtype", type=some_of(DTYPES), default=["float32", "bfloat16"], help="element types")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of threads of both sides")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="measuring time per row; at least three rounds run, however long"
    )
    parser.add_argument("--quick", action="store_true", help="sizes too small for meaningful figures, for tests")
    parser.add_argument("--report", metavar="NAME", help="append to benchmarks/results/NAME.md")
    return parser


def some_of(names: Collection[str]) -> Callable[[str], list[str]]:
    """Return the type of an option that takes several of these names, separated by commas."""

    def chosen(text: str) -> list[str]:
        for name in text.split(","):
            if name not in names:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(names)}")
        return text.split(",")

    return chosen


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the options and set the threads."""
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.seconds = 0.0
        if hasattr(chosen, "bh"):
            chosen.bh, chosen.n, chosen.d = [12], [16, 33], [32]
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    return chosen


def cells(chosen: argparse.Namespace) -> Iterator[Cell]:
    """Return the grid, the cheap cells first, so that a run that is cut short has measured the most cells."""
    grid = [
        Cell(bh // HEADS, HEADS, tokens, width, dtype)
        for dtype in chosen.dtype
        for bh in chosen.bh
        for tokens in chosen.n
        for width in chosen.d
    ]
    yield from sorted(grid, key=lambda cell: (DTYPES[cell.dtype].itemsize != 4, cell.tokens**2 * cell.batch))


class Report:
    """A markdown table, printed and appended to a file row by row."""

    def __init__(self, chosen: argparse.Namespace, question: str, headings: Sequence[str]) -> None:
        self._file = None if chosen.report is None else RESULTS / f"{chosen.report}.md"
        self.peak = _peak(chosen)
        is_continued = self._file is not None and self._file.exists()
        self.say("\n" * is_continued + f"## {question}\n")
        self.say(facts(chosen, self.peak) + "\n")
        self.row(*headings)
        self.row(*("---" for _ in headings))

    def say(self, line: str) -> None:
        print(line, flush=True)
        if self._file is not None:
            RESULTS.mkdir(exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def row(self, *entries: str) -> None:
        self.say("| " + " | ".join(entries) + " |")

    def share_of_peak(self, flops_per_second: float) -> str:
        return f"{flops_per_second / self.peak:.2f}" if self.peak else "-"


Make = Callable[..., Case]


def run_grid(chosen: argparse.Namespace, question: str, make: Make, *, operands: int, full: Make | None = None) -> None:
    """Run a whole benchmark over the grid.

    Args:
        chosen: the options.
        question: the heading of the report.
        make: the case of a cell, from batch, heads, tokens, width and dtype.
        operands: how many tensors of the operands' size a side holds: a cell that does not fit into memory is skipped, and its row says so.
        full: the same without its causal mask; then a column says how much of the full pass uwaga takes.
    """
    headings = ["B*H", "N", "D", "type", "ratio", "uwaga ms", "torch ms", "GFLOP/s", "torch", "of peak", "torch"]
    report = Report(chosen, question, headings + ["of full"] * (full is not None))
    ratios: dict[str, list[float]] = {}
    for cell in cells(chosen):
        sizes = (str(cell.batch * cell.heads), str(cell.tokens), str(cell.width), cell.dtype)
        if (why := _does_not_fit(cell, operands)) is not None:
            report.row(*sizes, why, *[""] * (len(headings) - 5 + (full is not None)))
            continue
        arguments = (cell.batch, cell.heads, cell.tokens, cell.width, DTYPES[cell.dtype])
        case = make(*arguments)
        case.check()
        sides = case.sides if full is None else case.sides | {"full": full(*arguments).sides[OURS]}
        measured = compare(sides, seconds=chosen.seconds)
        ratios.setdefault(cell.dtype, []).append(measured.ratio(THEIRS, to=OURS))
        of_full = () if full is None else (f"{measured.ratio(OURS, to='full'):.2f}",)
        report.row(*sizes, *figures(report, case, measured), *of_full)
    report.say("")
    for dtype, values in ratios.items():
        report.say(f"{dtype}: {summary(values)}.\n")


def _does_not_fit(cell: Cell, operands: int) -> str | None:
    needed, free = operands * cell.bytes, _free_bytes()
    if free is None or needed < free:
        return None
    return f"skipped: needs {needed / 2**30:.0f} GiB, and {free / 2**30:.0f} are free"


def _free_bytes() -> int | None:
    """Return the memory available without swapping, or None if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not a Linux machine
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def figures(report: Report, case: Case, measured: Comparison) -> tuple[str, ...]:
    """Return the ratio, and of both sides milliseconds, GFLOP/s and share of the peak."""
    speeds = [case.flops / measured.seconds(side) / 1e9 for side in (OURS, THEIRS)]
    return (
        f"{measured.ratio(THEIRS, to=OURS):.2f}",
        *(f"{measured.seconds(side) * 1e3:.4g}" for side in (OURS, THEIRS)),
        *(f"{speed:.1f}" for speed in speeds),
        *(report.share_of_peak(speed) for speed in speeds),
    )


def need_agreement(ours: torch.Tensor, theirs: torch.Tensor, *, roundings: int) -> None:
    """A comparison of sides that disagree means nothing: AssertionError where they differ, as a root mean square, by more
    than so many roundings of their type."""
    difference = (ours.float() - theirs.float()).square().mean().sqrt()
    allowed = roundings * torch.finfo(ours.dtype).eps * theirs.float().std()
    if not difference <= allowed:
        raise AssertionError(f"the sides differ by {difference:.2e}, more than {allowed:.2e}")


def summary(ratios: list[float]) -> str:
    """
    >>> summary([1.0, 4.0])
    'lowest 1.00, geometric mean 2.00, highest 4.00, 2 cells, 0 below 1'
    """
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    below = sum(ratio < 1 for ratio in ratios)
    return (
        f"lowest {min(ratios):.2f}, geometric mean {mean:.2f}, highest {max(ratios):.2f}, "
        f"{len(ratios)} cells, {below} below 1"
    )


class Peak(NamedTuple):
    """The result of one run, and the time and memory that it took."""

    result: Any
    bytes: int  # the most that was resident during the run, less what was just before
    seconds: float


def peak(run: Callable[[], Any]) -> Peak:
    """Run a function once and measure its resident memory, in a process that does nothing else."""
    forget_peak()
    before, started = resident("VmRSS"), perf_counter()
    result = run()
    seconds = perf_counter() - started
    return Peak(result, resident("VmHWM") - before, seconds)


def forget_peak() -> None:
    """Start VmHWM again from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def resident(field: str) -> int:
    """Return the bytes of a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def in_a_process(chosen: argparse.Namespace, *arguments: str) -> list[str]:
    """Return what this benchmark prints when it runs in a process of its own for --one measurement."""
    command = [sys.executable, sys.argv[0], "--threads", str(chosen.threads), "--one", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def of_processes(size: int, run: Callable[[int, Path], Any]) -> list[Any]:
    """Return what `run(rank, folder)` returns in each of `size` forked processes of one thread; the folder is empty at first.

    Raises SystemExit: one of them failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, children = Path(name), []
        for rank in range(size):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    torch.set_num_threads(1)
                    torch.save(run(rank, folder), folder / str(rank))
                    code = 0
                finally:
                    if code:
                        traceback.print_exc()
                    os._exit(code)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        if any(codes):
            raise SystemExit(f"a process failed: {codes}")
        return [torch.load(folder / str(rank)) for rank in range(size)]


def facts(chosen: argparse.Namespace, peak: float | None) -> str:
    """Return the date, machine, versions and command, without names of hosts and paths."""
    said = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *said])
    level = "no native library" if native.reason_unavailable() else f"instruction set {native.level()}"
    measured = f", multiply-add peak {peak:.0f} GFLOP/s in float32" if peak else ""
    return (
        f"{datetime.datetime.now(tz=datetime.UTC).date()}, {processor.model_name()}, {chosen.threads} threads, {level}"
        f"{measured}; uwaga {uwaga.__version__}{_revision()}, torch {torch.__version__}; `{command}`.\n"
        "Times are medians. A column called ratio is the other side's time over uwaga's, the median over rounds in which both ran."
    )


def _peak(chosen: argparse.Namespace) -> float | None:
    if native.reason_unavailable() is not None:
        return None
    return native.measure_peak(chosen.threads, 0.02 if chosen.quick else 1.0)


def _revision() -> str:
    result = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f" ({result.stdout.strip()})" if result.returncode == 0 else ""


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
