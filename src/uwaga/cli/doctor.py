"""`uwaga doctor`: what is installed, what the kernels run on, and what is missing and why.

It also works without the native library, and reports why that is missing. The exit code is 0 in both cases.
"""

import importlib.util
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from uwaga._base import env, processor
from uwaga._base.errors import CheckpointError
from uwaga._base.install import torch_command
from uwaga.cli.terminal import echo_json, fail

if TYPE_CHECKING:
    from uwaga.sequence_parallel import Process

Status = Literal["ok", "note", "missing"]

# What is not installed with uwaga alone: the importable package, the extra that brings it, and what needs it. By distribution.
OPTIONAL = {
    "pyarrow": ("pyarrow", "encode", "uwaga encode and uwaga store with Parquet"),
    "ray": ("ray", "ray", "uwaga encode --ray"),
    "pyspark": ("pyspark", "spark", "uwaga.encode on Spark"),
    "prometheus-client": ("prometheus_client", "serve", "uwaga serve"),
    "tensorboard": ("tensorboard", "train", "uwaga train with run.tensorboard"),
    "anywidget": ("anywidget", "view", "uwaga.view in notebooks"),
    "matplotlib": ("matplotlib", "plots", "uwaga.plots"),
}


class Finding(NamedTuple):
    """A line of the report. The functions below yield it without its topic."""

    topic: str
    name: str
    value: str
    status: Status = "ok"
    why: str = ""


Found = Iterator[tuple[Any, ...]]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON list.")] = False,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed", help="Check torchrun's processes: their speed, and whether all compute the same bits."
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Also say how TextEncoder or Reranker runs this model: a directory, or an id of the hub."),
    ] = None,
) -> None:
    """Say what is installed, what the kernels run on, and what is missing and why."""
    findings = [Finding("processes", *process) for process in _processes()] if distributed else list(examine())
    if model is not None:
        findings.append(_encoder(model))
    if distributed and os.environ["RANK"] != "0":
        return
    if as_json:
        echo_json(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        _show(findings)


def examine() -> Iterator[Finding]:
    """Yield every finding, in the order in which they are shown."""
    versions = [Finding("versions", *version) for version in _versions()]
    yield from versions
    yield Finding("machine", "system", f"{platform.system()} {platform.machine()}")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("machine", "processor", f"{processor.model_name()}, {usable} usable")
    if any(version.name == "torch" and version.status == "missing" for version in versions):
        return  # all else computes with it
    for topic in TOPICS:
        yield from findings_of(topic)


def findings_of(topic: str) -> list[Finding]:
    return [Finding(topic, *finding) for finding in TOPICS[topic]()]


def _processes() -> Found:
    """Yield findings about the processes that torchrun started."""
    import datetime

    import torch.distributed as dist

    from uwaga import sequence_parallel

    if "RANK" not in os.environ:
        fail(
            "doctor",
            "--distributed is for processes that torchrun starts: torchrun --nproc-per-node 2 -m uwaga.cli doctor --distributed",
        )
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=1))
        result = sequence_parallel.doctor()
    except (RuntimeError, ValueError) as error:  # the store of torchrun is out of reach, or a process has ended
        fail("doctor", str(error))
    yield from process_findings(result)
    dist.destroy_process_group()


def process_findings(result: Sequence["Process"]) -> Found:
    for process in result:
        speed = f", {process.megabytes_per_second:,.0f} MB/s to and from rank 0" if process.rank else ""
        value = f"{process.host}, process {process.pid}, {process.backend}, {process.level}, {process.threads} threads{speed}"
        if process.has_same_bits:
            yield f"rank {process.rank}", value, "ok", "computes the bits of rank 0"
            continue
        why, others = "does not compute the bits of rank 0", sorted({x.level for x in result})
        if len(others) > 1:
            why += f": instruction sets differ ({', '.join(others)}); set UWAGA_LEVEL to one that all have"
        yield f"rank {process.rank}", value, "missing", why


def _versions() -> Found:
    import uwaga

    yield "python", platform.python_version()
    yield "uwaga", uwaga.__version__
    for distribution in ("torch", "numpy"):
        if (version := _installed(distribution, distribution)) is None:
            command = torch_command() if distribution == "torch" else f"pip install {distribution}"
            yield distribution, "none", "missing", f"not installed: {command}"
        else:
            yield distribution, version


def _installed(package: str, distribution: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return None
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "installed"


def _native() -> Found:
    from uwaga._base import native

    if (why := native.reason_unavailable()) is not None:
        why += "; the PyTorch engine serves. To build it: pip install with a C++ compiler present"
        yield "native library", "none", "missing", why
        return
    library, possible = native.library(), native.supported_levels()
    yield "native library", str(library.path)
    yield "instruction set", native.level(), "ok", "UWAGA_LEVEL" if env.level() else "the best that this processor has"
    others = ", ".join(level for level in native.levels() if level not in possible)
    yield "possible", ", ".join(possible), "ok", f"built but not on this processor: {others}" if others else ""
    pool = ("shared with PyTorch", "ok") if library.shares_threads else ("of its own", "note")
    yield "thread pool", *pool, library.why_threads


def _threads() -> Found:
    import torch

    yield "PyTorch", str(torch.get_num_threads())
    try:
        fixed = env.threads()
    except ValueError as error:
        yield "uwaga", "none", "missing", str(error)
        return
    yield "uwaga", str(fixed or torch.get_num_threads()), "ok", "as PyTorch" if fixed is None else "UWAGA_THREADS"
    policy = ", ".join(f"{name}={os.environ[name]}" for name in env.WAITING if os.environ.get(name))
    why = (
        "commands set OMP_WAIT_POLICY=passive unless you set one of these; in a program, set it before you import torch"
    )
    yield "waiting", policy or "OpenMP's default", "ok", why


def _engines() -> Found:
    """Yield the engine that comes first for dense calls on the CPU, by dtype, and why."""
    import torch

    import uwaga
    from uwaga.ops import engine_table

    yield "processor", engine_table.row().name
    for name in engine_table.DTYPES:
        x = torch.zeros(1, 1, 8, 8, dtype=getattr(torch, name))
        engine, why, _ = uwaga.explain(x, x, x)
        yield f"attention {name}", engine, *_evidence("attention", name, engine, why)
    yield from _linear()


def _evidence(operation: str, dtype: str, engine: str, why: str) -> tuple[str, str]:
    """Return the status of an engine, and why: only the native kernels were measured, and give a row the same bits in any batch."""
    from uwaga.ops import engine_table

    if engine != "cpu":
        return "note", why
    evidence, is_measured = engine_table.evidence(operation, dtype)
    return "ok" if is_measured else "note", f"{why}; {evidence}"


def _linear() -> Found:
    """Yield the engine of the linear map by dtype, and the reason."""
    import torch

    from uwaga.ops import engine_table
    from uwaga.ops.linear import api

    for name in engine_table.DTYPES:
        dtype: torch.dtype = getattr(torch, name)
        x = torch.zeros(8, 8, dtype=dtype)
        try:
            engine, why, _ = api.explain(x, x)
        except ValueError as error:  # UWAGA_LINEAR or UWAGA_THREADS
            yield f"linear {name}", "none", "missing", str(error)
            return
        yield f"linear {name}", engine, *_evidence("linear", name, engine, why)


def _devices() -> Found:
    import torch

    from uwaga.ops.attention.engines import flex

    cards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    yield from device_findings(cards, flex.why_not_on_cuda() if cards else None, torch.version.cuda)


def device_findings(cards: Sequence[Any], why_no_flex: str | None, cuda: str | None) -> Found:
    """Yield findings about GPUs, with PyTorch's description of each. cuda: the version that PyTorch was built with."""
    for index, card in enumerate(cards):
        value = f"{card.name}, {card.total_memory / 2**30:.0f} GiB, compute capability {card.major}.{card.minor}"
        why = "experimental: uwaga was run on one GPU so far, an H100 (docs/contributors/gpu.md)"
        if card.major < 8:  # they emulate it
            why += "; it has no arithmetic in bfloat16, float16 is fast"
        yield f"cuda:{index}", value, "note", why
    if not cards:
        why = "PyTorch sees no CUDA device; everything here works without one"
        if cuda is not None:
            why += f"; this PyTorch has gigabytes of CUDA, and the one without: {torch_command()} --force-reinstall"
        yield "cuda", "none", "ok", why
    elif why_no_flex is None:
        yield "FlexAttention", "compiled by Triton"
    else:
        yield "FlexAttention", "none", "missing", f"{why_no_flex}; without it masks and biases become matrices"


def _optional() -> Found:
    """Yield the packages of the extras, and what does not work without them."""
    packages = [
        (name, package, needs, f"{needs} needs it: pip install 'uwaga[{extra}]'")
        for name, (package, extra, needs) in OPTIONAL.items()
    ]
    # No extra: it is what those have who load such models.
    needs = "families of models that are not uwaga's own, in TextEncoder and Reranker"
    packages.append(("transformers", "transformers", needs, f"{needs}: pip install 'transformers>=5'"))
    for name, package, needs, why in packages:
        version = _installed(package, name)
        yield (name, "none", "note", why) if version is None else (name, version, "ok", f"for {needs}")


def _models() -> Found:
    """Yield the models that are there without a download."""
    from uwaga.models.checkpoints import directories

    for name, model in directories.BUNDLED.items():
        try:
            folder = directories.find(name, None)
        except CheckpointError as error:
            yield name, "none", "note", str(error)
        else:
            yield name, str(folder), "ok", "" if model.distribution == "uwaga" else f"from {model.distribution}"


def _encoder(model: str) -> Finding:
    """Return how TextEncoder runs a model, or Reranker one that it takes."""
    from uwaga import Reranker, TextEncoder

    topic = "encoder"
    try:
        choice = TextEncoder.load(model).explain()
    except (CheckpointError, ValueError) as error:
        try:
            topic, choice = "reranker", Reranker.load(model).explain()
        except (CheckpointError, ValueError):
            return Finding("encoder", model, "none", "missing", str(error))
    whys = [choice.reason, *(f"not {name}: {why}" for name, why in choice.refused.items())]
    return Finding(topic, model, choice.engine, "ok", "; ".join(whys))


def _caches() -> Found:
    """Yield the folders of downloads, which can be deleted."""
    from huggingface_hub import constants

    for name, folder in (
        ("downloads of data, mapped weights", env.data()),
        ("models of the hub", Path(constants.HF_HUB_CACHE)),
    ):
        yield name, str(folder), "ok", "" if folder.is_dir() else "not there yet"


def _environment() -> Found:
    for name, meaning in env.VARIABLES.items():
        yield name, os.environ.get(name, "unset"), "ok", meaning
    # They set the number of threads and the cores that they run on.
    for name in ("OMP_NUM_THREADS", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        if name in os.environ:
            yield name, os.environ[name], "ok", "read by OpenMP"


# In the order in which they are shown. The check of a bundled model remembers its digest in the folder of caches.
TOPICS: Mapping[str, Callable[[], Found]] = {
    "kernels": _native, "threads": _threads, "engines": _engines, "devices": _devices, "extras": _optional, "caches": _caches,
    "models": _models, "environment": _environment,
}  # fmt: skip


def _show(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    signs = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=max(map(len, signs)))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for topic, group in groupby(findings, key=attrgetter("topic")):
        table.add_row("", f"[bold]{topic}[/]")
        for _, name, value, status, why in group:
            table.add_row(signs[status], name, escape(value) + (f"  [dim]{escape(why)}[/]" if why else ""))
    Console().print(table)
