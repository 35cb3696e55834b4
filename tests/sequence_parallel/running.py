"""Runs jobs of processes.py in several processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

_PATIENCE = 900  # seconds; a whole run takes some forty alone


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
