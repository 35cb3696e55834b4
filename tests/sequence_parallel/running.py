"""Runs jobs of processes.py in several processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

_PATIENCE = 900  # seconds; a whole run takes some forty alone


def by_cases(names: Iterable[Any], gate: Collection[Any], sizes: Iterable[int], gate_size: int) -> Callable[[Any], Any]:
    """Parametrize a test by name and size. The gate has the names in `gate`, by `gate_size` processes."""
    in_gate = pytest.mark.gate(only=lambda name, size: name in gate and size == gate_size)
    cases = pytest.mark.parametrize(("name", "size"), list(product(names, sizes)), ids=str)
    return lambda test: in_gate(cases(test))


def job_of(kind: str, name: Any, gate: Collection[Any]) -> str:
    """The job of processes.py that runs a case: those of the gate run together, and all others."""
    return kind if name in gate else f"other {kind}"


def run(folder: Path, jobs: Iterable[str]) -> Callable[[str], list[Any]]:
    """What each process of a job returned, by rank."""
    program = Path(__file__).with_name("processes.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program), str(folder), *jobs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr

    def read(job: str) -> list[Any]:
        return [torch.load(path) for path in sorted(folder.glob(f"{job}.*.pt"))]

    return read
