"""Shared parts of the benchmarks of a GPU: the device, times by its own clock, memory, and the report.

Every benchmark prints a markdown table row by row, and appends it to a file of benchmarks/results/ with the date, the device, its driver and the versions. Without
a GPU it ends with an error. `--device cpu --quick` tries it out, with figures that mean nothing.
"""

import argparse
import datetime
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

import uwaga

RESULTS = Path(__file__).parents[1] / "results"
OURS = "uwaga"
Sides = dict[str, Callable[[], object]]


class Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help with the lines of the docstring and the default of each option."""


class Bench(NamedTuple):
    """The options of a run."""

    device: torch.device
    quick: bool
    seconds: float
    report: Path | None

    def say(self, line: str) -> None:
        print(line, flush=True)
        if self.report is not None:
            self.report.parent.mkdir(parents=True, exist_ok=True)
            with self.report.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def table(self, question: str, headings: Sequence[str]) -> None:
        self.say(f"\n## {question}\n\n{facts(self)}\n")
        self.row(*headings)
        self.row(*("---" for _ in headings))

    def row(self, *entries: object) -> None:
        self.say("| " + " | ".join(map(str, entries)) + " |")

    def randn(self, *shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype, requires_grad=grad)


def parse(question: str) -> Bench:
    """Parse the options of the command line. Raises SystemExit without a GPU."""
    parser = argparse.ArgumentParser(prog=_program(), description=question, formatter_class=Formatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ...; cpu tries the script out")
    parser.add_argument("--seconds", type=float, default=2.0, help="time per measurement; at least five rounds run")
    parser.add_argument("--quick", action="store_true", help="sizes too small for meaningful figures")
    parser.add_argument("--no-report", action="store_true", help="print the tables alone")
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            why = "this PyTorch is built without CUDA" if torch.version.cuda is None else "PyTorch sees no CUDA device"
            parser.exit(1, f"{parser.prog}: needs a GPU: {why} (torch {torch.__version__})\n")
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            name = torch.cuda.get_device_name()
            parser.exit(1, f"{parser.prog}: measures in bfloat16, which {name} does not compute in\n")
    torch.manual_seed(0)
    report = None
    if device.type == "cuda" and not (chosen.quick or chosen.no_report):
        name = "-".join(torch.cuda.get_device_name().lower().split())
        report = RESULTS / f"{_today()}-gpu-{name}.md"
    return Bench(device, chosen.quick, 0.0 if chosen.quick else chosen.seconds, report)


def facts(bench: Bench) -> str:
    """Return the date, device, driver and versions, without names of hosts and paths."""
    command = " ".join(["python", _program(), *sys.argv[1:]])
    triton = metadata.version("triton") if find_spec("triton") else "not installed"
    versions = f"uwaga {uwaga.__version__}{_revision()}, torch {torch.__version__}, triton {triton}"
    if bench.device.type != "cuda":
        return f"{_today()}, no GPU: these figures mean nothing; {versions}; `{command}`."
    result = torch.cuda.get_device_properties(bench.device)
    return (
        f"{_today()}, {result.name}, {result.total_memory / 2**30:.0f} GiB, compute capability {result.major}.{result.minor}, "
        f"driver {_driver()}, CUDA {torch.version.cuda}; {versions}; `{command}`.\nTimes are medians, after three runs that are not counted."
    )


def milliseconds(bench: Bench, sides: Sides) -> dict[str, float | None]:
    """Return the median time of each side, in turns, by the device's own clock; None if a side does not fit into memory."""
    results: dict[str, list[float]] = {}
    failed: set[str] = set()

    def attempt(name: str, run: Callable[[], object]) -> None:
        try:
            spent = _timed(bench.device, run)
        except torch.OutOfMemoryError:
            failed.add(name)
            return
        results.setdefault(name, []).append(spent)

    for name, run in sides.items():  # compilations, and kernels that are loaded when first called
        for _ in range(1 if bench.quick else 3):
            if name not in failed:
                attempt(name, run)
    results.clear()
    started, rounds = perf_counter(), 0
    while rounds < (1 if bench.quick else 5) or perf_counter() - started < bench.seconds * len(sides):
        for name, run in sides.items():
            if name not in failed:
                attempt(name, run)
        rounds += 1
    return {name: None if name in failed else median(results[name]) for name in sides}


def peak_bytes(bench: Bench, run: Callable[[], object]) -> int | None:
    """Return the most memory of the device that a run takes beyond what was allocated before; None if it does not fit."""
    if bench.device.type != "cuda":
        return 0
    torch.cuda.synchronize(bench.device)
    torch.cuda.reset_peak_memory_stats(bench.device)
    before = torch.cuda.memory_allocated(bench.device)
    try:
        run()
    except torch.OutOfMemoryError:
        return None
    torch.cuda.synchronize(bench.device)
    return torch.cuda.max_memory_allocated(bench.device) - before


def shown(milliseconds: float | None) -> str:
    return "out of memory" if milliseconds is None else f"{milliseconds:.4g}"


def megabytes(size: int | None) -> str:
    return "out of memory" if size is None else f"{size / 1e6:.0f}"


def ratio(one: float | None, other: float | None) -> str:
    """one / other."""
    return "-" if one is None or other is None else f"{one / other:.3f}"


def need_agreement(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """AssertionError where two sides differ, as a root mean square, by more than 32 roundings of their type."""
    difference = (ours.float() - theirs.float()).square().mean().sqrt()
    allowed = 32 * torch.finfo(ours.dtype).eps * theirs.float().std()
    if not difference <= allowed:
        raise AssertionError(f"{what}: the sides differ by {difference:.2e}, more than {allowed:.2e}")


def _timed(device: torch.device, run: Callable[[], object]) -> float:
    if device.type != "cuda":
        started = perf_counter()
        run()
        return (perf_counter() - started) * 1e3
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _program() -> str:
    name = Path(sys.argv[0]).name
    return "benchmarks/gpu" if name in ("gpu", "__main__.py") else f"benchmarks/gpu/{name}"


def _today() -> datetime.date:
    return datetime.datetime.now(tz=datetime.UTC).date()


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def _revision() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    result = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return f" ({result.stdout.strip()})" if result.returncode == 0 else ""
