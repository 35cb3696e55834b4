"""`uwaga doctor`: what is installed, what the kernels run on, and what is missing and why.

It also works without the native library, and reports why that is missing. The exit code is 0 in both cases.
"""

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from uwaga._base import env
from uwaga._base.install import torch_command
from uwaga.cli.terminal import echo_json, fail

Status = Literal["ok", "note", "missing"]

# Variables of OpenMP, which set the number of threads and the cores that they run on.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    topic: str
    name: str
    value: str
    status: Status = "ok"
    why: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list of findings, for programs.")] = False,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed", help="Under torchrun: who is there, how fast, and whether all compute the same bits."
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Also say how TextEncoder or Reranker runs this model: a directory, or an id of the hub."),
    ] = None,
) -> None:
    """Say what is installed, what the kernels run on, and what is missing and why."""
    findings = list(_processes() if distributed else examine())
    if model is not None:
        findings.append(_encoder(model))
    if distributed and os.environ["RANK"] != "0":
        return
    if as_json:
        import json

        echo_json(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)


def examine() -> Iterator[Finding]:
    """Every finding, in the order in which they are shown."""
    versions = list(_versions())
    yield from versions
    if any(each.name == "torch" and each.status == "missing" for each in versions):
        return  # all else computes with it
    yield from _native()
    yield from _threads()
    yield from _engines()
    yield from _devices()
    yield from _optional()
    caches = list(_caches())  # before the check of a bundled model remembers its digest there
    yield from _models()
    yield from caches
    yield from _environment()


def _processes() -> Iterator[Finding]:
    """The processes that torchrun started."""
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
    for each in result:
        speed = f", {each.megabytes_per_second:,.0f} MB/s to and from rank 0" if each.rank else ""
        value = f"{each.host}, process {each.pid}, {each.backend}, {each.level}, {each.threads} threads{speed}"
        status: Status = "ok" if each.has_same_bits else "missing"
        why = "computes the bits of rank 0"
        if not each.has_same_bits:
            others = sorted({x.level for x in result})
            why = "does not compute the bits of rank 0"
            if len(others) > 1:
                why += f": instruction sets differ ({', '.join(others)}); set UWAGA_LEVEL to one that all have"
        yield Finding(topic="processes", name=f"rank {each.rank}", value=value, status=status, why=why)
    dist.destroy_process_group()


def _versions() -> Iterator[Finding]:
    from importlib.util import find_spec

    import uwaga
    from uwaga.cli import machine

    yield Finding(topic="versions", name="python", value=platform.python_version())
    yield Finding(topic="versions", name="uwaga", value=uwaga.__version__)
    for distribution in ("torch", "numpy"):
        version = machine.version(distribution) if find_spec(distribution) is not None else None
        if version is None:
            command = torch_command() if distribution == "torch" else f"pip install {distribution}"
            why = f"not installed: {command}"
            yield Finding(topic="versions", name=distribution, value="none", status="missing", why=why)
        else:
            yield Finding(topic="versions", name=distribution, value=version)
    yield Finding(topic="machine", name="system", value=f"{platform.system()} {platform.machine()}")
    yield Finding(topic="machine", name="processor", value=f"{machine.processor()}, {machine.processors()} usable")


def _native() -> Iterator[Finding]:
    from uwaga._base import native

    if (why := native.reason_unavailable()) is not None:
        why += "; the PyTorch engine serves. To build it: pip install with a C++ compiler present"
        yield Finding(topic="kernels", name="native library", value="none", status="missing", why=why)
        return
    library = native.library()
    yield Finding(topic="kernels", name="native library", value=str(library.path))
    possible = native.supported_levels()
    chosen = "UWAGA_LEVEL" if env.level() else "the best that this processor has"
    yield Finding(topic="kernels", name="instruction set", value=native.level(), why=chosen)
    others = ", ".join(level for level in native.levels() if level not in possible)
    why = f"built but not on this processor: {others}" if others else ""
    yield Finding(topic="kernels", name="possible", value=", ".join(possible), why=why)
    status: Status = "ok" if library.shares_threads else "note"
    value = "shared with PyTorch" if library.shares_threads else "of its own"
    yield Finding(topic="kernels", name="thread pool", value=value, status=status, why=library.why_threads)


def _threads() -> Iterator[Finding]:
    import torch

    yield Finding(topic="threads", name="PyTorch", value=str(torch.get_num_threads()))
    try:
        fixed = env.threads()
    except ValueError as error:
        yield Finding(topic="threads", name="uwaga", value="none", status="missing", why=str(error))
        return
    why = "as PyTorch" if fixed is None else "UWAGA_THREADS"
    yield Finding(topic="threads", name="uwaga", value=str(fixed or torch.get_num_threads()), why=why)
    policy = ", ".join(f"{name}={os.environ[name]}" for name in env.WAITING if os.environ.get(name))
    why = (
        "commands set OMP_WAIT_POLICY=passive unless you set one of these; in a program, set it before you import torch"
    )
    yield Finding(topic="threads", name="waiting", value=policy or "OpenMP's default", why=why)


def _engines() -> Iterator[Finding]:
    """The engine that comes first for dense calls on the CPU, by dtype, and why."""
    import warnings

    import torch

    import uwaga
    from uwaga.ops import engine_profile, engine_table

    yield Finding(topic="engines", name="processor", value=engine_table.row().name)
    try:
        with warnings.catch_warnings():  # a profile that does not apply is a finding below
            warnings.simplefilter("ignore")
            profile, why, is_refused = engine_profile.active()
    except ValueError as error:
        yield Finding(topic="engines", name="profile", value="none", status="missing", why=str(error))
        return
    yield Finding(
        topic="engines",
        name="profile",
        value="none" if profile is None else str(profile.path),
        status="note" if is_refused else "ok",
        why=why if profile is None else f"of {profile.date}, by `uwaga bench --save`",
    )
    for name in engine_profile.DTYPES:
        x = torch.zeros(1, 1, 8, 8, dtype=getattr(torch, name))
        result = uwaga.explain(x, x, x)
        is_measured = engine_table.dense_attention(x.dtype).is_measured
        status: Status = "ok" if is_measured and result.engine == "cpu" else "note"
        yield Finding(topic="engines", name=f"attention {name}", value=result.engine, status=status, why=result.reason)
    yield from _linear()


def _linear() -> Iterator[Finding]:
    """The engine of the linear map by dtype, why, and its measured speed: in about a second."""
    import torch

    from uwaga._base import native
    from uwaga.cli import engines
    from uwaga.ops import engine_profile, engine_table
    from uwaga.ops.linear import choose

    for name in engine_profile.DTYPES:
        dtype: torch.dtype = getattr(torch, name)
        try:
            peak = ""
            if native.reason_unavailable() is None:
                peak = f" of a float32 peak of {native.measure_peak(native.threads(), 0.05):.0f}"
            speed = engines.linear_speed(dtype, seconds=0.1)
        except ValueError as error:  # UWAGA_LINEAR or UWAGA_THREADS
            yield Finding(topic="engines", name=f"linear {name}", value="none", status="missing", why=str(error))
            return
        keeps_bits = choose.has_batch_invariant_rows(speed.engine, dtype)
        status: Status = "ok" if engine_table.linear(dtype).is_measured and keeps_bits else "note"
        value = f"{speed.engine}, {speed.gflops:.0f} GFLOP/s{peak}"
        yield Finding(topic="engines", name=f"linear {name}", value=value, status=status, why=speed.why)


def _devices() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        from uwaga.ops.attention.engines import flex

        for index in range(torch.cuda.device_count()):
            result = torch.cuda.get_device_properties(index)
            capability = f"compute capability {result.major}.{result.minor}"
            value = f"{result.name}, {result.total_memory / 2**30:.0f} GiB, {capability}"
            why = "experimental: uwaga was run on one GPU so far, an H100 (docs/gpu.md)"
            if result.major < 8:  # they emulate it
                why += "; it has no arithmetic in bfloat16, float16 is fast"
            yield Finding(topic="devices", name=f"cuda:{index}", value=value, status="note", why=why)
        missing = flex.why_not_on_cuda()
        if missing is None:
            yield Finding(topic="devices", name="FlexAttention", value="compiled by Triton")
        else:
            why = f"{missing}; without it masks and biases become matrices"
            yield Finding(topic="devices", name="FlexAttention", value="none", status="missing", why=why)
    else:
        why = "PyTorch sees no CUDA device; everything here works without one"
        if torch.version.cuda is not None:
            why += f"; this PyTorch has gigabytes of CUDA, and the one without: {torch_command()} --force-reinstall"
        yield Finding(topic="devices", name="cuda", value="none", why=why)


def _optional() -> Iterator[Finding]:
    """The packages of the extras, and what does not work without them."""
    from importlib.util import find_spec

    from uwaga.cli import machine

    for distribution, (package, extra, needs) in OPTIONAL.items():
        if find_spec(package) is None:
            why = f"{needs} needs it: pip install 'uwaga[{extra}]'"
            yield Finding(topic="extras", name=distribution, value="none", status="note", why=why)
        else:
            version = machine.version(distribution) or "installed"
            yield Finding(topic="extras", name=distribution, value=version, why=f"for {needs}")
    # No extra: it is what those have who load such models.
    there = machine.version("transformers")
    needs = "families of models that are not uwaga's own, in TextEncoder and Reranker"
    if there is None:
        why = f"{needs}: pip install 'transformers>=5'"
        yield Finding(topic="extras", name="transformers", value="none", status="note", why=why)
    else:
        yield Finding(topic="extras", name="transformers", value=there, why=f"for {needs}")


def _models() -> Iterator[Finding]:
    """The models that are there without a download."""
    from uwaga._base.errors import CheckpointError
    from uwaga.models.checkpoints import directories

    for name, model in directories.BUNDLED.items():
        try:
            folder = directories.find(name, None)
        except CheckpointError as error:
            yield Finding(topic="models", name=name, value="none", status="note", why=str(error))
        else:
            why = "" if model.distribution == "uwaga" else f"from {model.distribution}"
            yield Finding(topic="models", name=name, value=str(folder), why=why)


def _encoder(model: str) -> Finding:
    """How TextEncoder runs a model, or Reranker one that it takes."""
    from uwaga import Reranker, TextEncoder
    from uwaga._base.errors import CheckpointError

    topic = "encoder"
    try:
        choice = TextEncoder.load(model).explain()
    except (CheckpointError, ValueError) as error:
        try:
            topic, choice = "reranker", Reranker.load(model).explain()
        except (CheckpointError, ValueError):
            return Finding(topic="encoder", name=model, value="none", status="missing", why=str(error))
    whys = [choice.reason, *(f"not {name}: {why}" for name, why in choice.refused.items())]
    return Finding(topic=topic, name=model, value=choice.engine, why="; ".join(whys))


def _caches() -> Iterator[Finding]:
    """Folders that downloads and profiles are kept in; they can be deleted."""
    from huggingface_hub import constants

    places = {
        "downloads of data, profiles, mapped weights": env.data(),
        "models of the hub": Path(constants.HF_HUB_CACHE),
    }
    for name, folder in places.items():
        yield Finding(topic="caches", name=name, value=str(folder), why="" if folder.is_dir() else "not there yet")


def _environment() -> Iterator[Finding]:
    for name, meaning in env.VARIABLES.items():
        value = os.environ.get(name)
        yield Finding(topic="environment", name=name, value="unset" if value is None else value, why=meaning)
    for name in _THREAD_VARIABLES:
        if name in os.environ:
            yield Finding(topic="environment", name=name, value=os.environ[name], why="read by OpenMP")


def _show(findings: list[Finding]) -> None:
    from itertools import groupby

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    signs = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=max(map(len, signs)))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for topic, group in groupby(findings, key=lambda finding: finding.topic):
        table.add_row("", f"[bold]{topic}[/]")
        for finding in group:
            why = f"  [dim]{escape(finding.why)}[/]" if finding.why else ""
            table.add_row(signs[finding.status], finding.name, escape(finding.value) + why)
    Console().print(table)
