"""What `uwaga doctor` finds where something is missing, wrong or another processor."""

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import processors
import pytest
import torch
import torch.distributed
from typer.testing import CliRunner

import uwaga
from uwaga._base import native
from uwaga.cli import app
from uwaga.models.checkpoints import directories
from uwaga.ops import engine_profile
from uwaga.ops.attention.engines import flex


class FindingError(Exception):
    """What `uwaga doctor` finds."""


def find(*names: str, distributed: bool = False, **variables: str) -> None:
    """Raise findings, without the figures of this machine. variables: of the environment."""
    result = CliRunner().invoke(app, ["doctor", "--json", *["--distributed"] * distributed], env=variables)
    found = {f"{finding['topic']}/{finding['name']}": finding for finding in json.loads(result.stdout)}
    lines = [
        f"{each['value']} ({each['status']})" + f": {each['why']}" * bool(each["why"]) for each in map(found.get, names)
    ]
    raise FindingError(re.sub(r"\d+ GFLOP/s of a float32 peak of \d+", "SPEED", "\n".join(lines)))


def find_without(patch: pytest.MonkeyPatch, name: str, package: str) -> None:
    there = importlib.util.find_spec
    patch.setattr(importlib.util, "find_spec", lambda each, *of: None if each == package else there(each, *of))
    patch.setattr(directories, "find_spec", importlib.util.find_spec)
    find(name)


def find_gpu(patch: pytest.MonkeyPatch, *, is_new: bool) -> None:
    why = None if is_new else "FlexAttention's kernels need Triton and a GPU of compute capability 7.0 or more"
    card = SimpleNamespace(name="A card", total_memory=80 * 2**30, major=9 if is_new else 6, minor=0)
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "device_count", lambda: 1)
    patch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    patch.setattr(flex, "why_not_on_cuda", lambda: why)
    find("devices/cuda:0", "devices/FlexAttention")


def find_no_gpu(patch: pytest.MonkeyPatch, platform: str) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: False)
    patch.setattr(torch.version, "cuda", "13.0")
    patch.setattr(sys, "platform", platform)
    find("devices/cuda")


def find_engine(folder: Path, *names: str, profile: str | Mapping | None = None, **variables: str) -> None:
    """Raise findings where the folder of caches has an engine profile, or none."""
    if isinstance(profile, str):
        (folder / "engines.json").write_text(profile)
    elif profile is not None:
        engine_profile.write(folder / "engines.json", profile, threads=1)
    processors.forget()
    try:
        find(*names, **{"UWAGA_DATA": str(folder), "UWAGA_PROFILE": "1"} | variables)
    finally:
        processors.forget()


def find_on(on: Callable, folder: Path, here: object, *names: str) -> None:
    on(here)
    find_engine(folder, *names)


def find_without_library(patch: pytest.MonkeyPatch, folder: Path, *names: str) -> None:
    patch.setattr(native, "reason_unavailable", lambda: "it was left at home")
    find_engine(folder, *names)


def find_processes(patch: pytest.MonkeyPatch) -> None:
    processes = [
        uwaga.sequence_parallel.Process(0, "a", 7, "gloo", "avx512", 2, 0.0, True),
        uwaga.sequence_parallel.Process(1, "b", 8, "gloo", "avx2", 4, 1234.5, False),
    ]
    patch.setenv("RANK", "0")
    patch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    patch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    patch.setattr(uwaga.sequence_parallel, "doctor", lambda: processes)
    find("processes/rank 0", "processes/rank 1", distributed=True)
