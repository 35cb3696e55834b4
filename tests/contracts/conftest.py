"""What the contracts share: the root of the repository, and Python in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def fresh_python() -> Callable[..., str]:
    """Run a program in a new process with the given variables on top; its output. Fails where the program fails."""

    def run(program: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            capture_output=True,
            text=True,
            env=os.environ | variables,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def program(root: Path) -> Callable[[str], ModuleType]:
    """Load a Python file by its path in the repository."""

    def load(path: str) -> ModuleType:
        name = f"repository_{Path(path).stem}"
        spec = importlib.util.spec_from_file_location(name, root / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    return load
