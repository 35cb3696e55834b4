"""What the contracts share: the root of the repository, and Python in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from factories import factory


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).parents[2]


@factory
def fresh_python(program: str, **variables: str) -> str:
    """Run a program in a new process with the given variables on top; its output. Fails where the program fails."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
