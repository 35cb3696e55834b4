"""`uwaga doctor`: what is installed, what the kernels run on, and which engines are chosen and why.

It also works without the native library and without PyTorch, and reports what is missing. The exit code is 0 in both cases.
"""

import importlib.util
import json
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Annotated, NamedTuple

import typer

from uwaga._base import env, processor
from uwaga._base.errors import CheckpointError
from uwaga._base.install import torch_command
from uwaga.cli.terminal import echo_json

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
    """A line of the report."""

    name: str
    value: str  # "none" if it is missing
    why: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON list.")] = False,
) -> None:
    """Show what is installed, what the kernels run on, and which engines are chosen and why."""
    findings = list(examine())
    if as_json:
        echo_json(json.dumps([finding._asdict() for finding in findings], indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value, why in findings:
        table.add_row(name, escape(value) + (f"  [dim]{escape(why)}[/]" if why else ""))
    Console().print(table)


def examine() -> Iterator[Finding]:
    """Yield every finding, in the order in which they are shown."""
    import uwaga

    yield Finding("python", platform.python_version())
    yield Finding("uwaga", uwaga.__version__)
    yield _package("torch", "torch", torch_command())
    yield _package("numpy", "numpy", "pip install numpy")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("system", f"{platform.system()} {platform.machine()}")
    yield Finding("processor", f"{processor.model_name()}, {usable} usable")
    if importlib.util.find_spec("torch") is not None:  # what follows computes with it
        yield from kernels()
        yield from engines()
        yield from models()
    yield from extras()
    for name, meaning in env.VARIABLES.items():
        yield Finding(name, os.environ.get(name, "unset"), meaning)


def extras() -> Iterator[Finding]:
    """Yield what is not installed with uwaga alone."""
    for name, (package, extra, needs) in OPTIONAL.items():
        yield _package(name, package, f"pip install 'uwaga[{extra}]'", needs)
    families = "families of models that are not uwaga's own, in TextEncoder and Reranker"
    yield _package("transformers", "transformers", "pip install 'transformers>=5'", families)


def _package(distribution: str, package: str, command: str, needs: str = "") -> Finding:
    """Return the version of a package, or the command that installs it. needs: what needs it."""
    if importlib.util.find_spec(package) is None:
        return Finding(distribution, "none", f"{needs} needs it: {command}" if needs else f"not installed: {command}")
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        version = "installed"
    return Finding(distribution, version, needs and f"for {needs}")


def kernels() -> Iterator[Finding]:
    """Yield the native library, its instruction set and its threads."""
    from uwaga._base import native

    if (why := native.reason_unavailable()) is not None:
        way = "the PyTorch engine serves. To build it: pip install with a C++ compiler present"
        yield Finding("native library", "none", f"{why}; {way}")
        return
    library = native.library()
    others = f"UWAGA_LEVEL selects one of {', '.join(native.supported_levels())}"
    pool = "shared with PyTorch" if library.shares_threads else "of its own"
    yield Finding("native library", str(library.path))
    yield Finding("instruction set", native.level(), others)
    yield Finding("thread pool", pool, library.why_threads)
    try:
        yield Finding("threads", str(native.threads()), "UWAGA_THREADS" if env.threads() else "as PyTorch")
    except ValueError as error:
        yield Finding("threads", "none", str(error))


def engines() -> Iterator[Finding]:
    """Yield the engines of dense calls on the CPU by dtype, and why; and the GPUs."""
    import torch

    import uwaga
    from uwaga.ops import engine_table
    from uwaga.ops.linear import api

    for name in engine_table.DTYPES:
        x = torch.zeros(1, 1, 8, 8, dtype=getattr(torch, name))
        for operation in ("attention", "linear"):
            try:
                engine, why, _ = uwaga.explain(x, x, x) if operation == "attention" else api.explain(x, x[0, 0])
            except ValueError as error:  # UWAGA_LINEAR or UWAGA_THREADS
                yield Finding(f"{operation} {name}", "none", str(error))
                continue
            measured = f"; {engine_table.evidence(operation, name)}" if engine == "cpu" else ""
            yield Finding(f"{operation} {name}", engine, why + measured)
    for index in range(torch.cuda.device_count()):
        why = "experimental: uwaga was run on one GPU so far, an H100 (docs/contributors/gpu.md)"
        yield Finding(f"cuda:{index}", torch.cuda.get_device_name(index), why)


def models() -> Iterator[Finding]:
    """Yield the models that are there without a download."""
    from uwaga.models.checkpoints import directories

    for name in directories.BUNDLED:
        try:
            yield Finding(name, str(directories.find(name, None)))
        except CheckpointError as error:
            yield Finding(name, "none", str(error))
