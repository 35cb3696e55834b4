"""Every environment variable that uwaga reads, in one table; nothing else in the package reads os.environ.

>>> sorted(VARIABLES)
['UWAGA_DATA', 'UWAGA_LEVEL', 'UWAGA_LIBRARY', 'UWAGA_LINEAR', 'UWAGA_THREADS']
"""

import os
from pathlib import Path

MAX_THREADS = 4096  # kMaxThreads of the native library

VARIABLES = {
    "UWAGA_LEVEL": "instruction set of the native kernels; unset: the best possible",
    "UWAGA_LIBRARY": "path of the native library; unset: the one installed in the package",
    "UWAGA_LINEAR": "engine of the linear map: cpu or torch; unset: cpu",
    "UWAGA_DATA": "folder for downloads and caches; unset: ~/.cache/uwaga",
    "UWAGA_THREADS": "threads of the native kernels; unset: torch.get_num_threads()",
}

# Variables of OpenMP for how threads wait for work: by default they spin, which takes the processor from others.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def wait_asleep() -> None:
    """Let OpenMP's threads sleep while they wait, unless the user set how they wait.

    This holds for this process, if PyTorch is not imported yet, and for the processes that it starts.
    """
    if not any(map(os.environ.get, WAITING)):
        os.environ["OMP_WAIT_POLICY"] = "passive"


def level() -> str | None:
    """Return UWAGA_LEVEL, unchecked: the native library rejects an unknown level."""
    return _text("UWAGA_LEVEL")


def library() -> Path | None:
    """Return UWAGA_LIBRARY as a path, which need not exist."""
    text = _text("UWAGA_LIBRARY")
    return Path(text) if text else None


def linear() -> str | None:
    """Return UWAGA_LINEAR, unchecked: ops/linear/choose.py rejects an unknown engine."""
    return _text("UWAGA_LINEAR")


def data() -> Path:
    """Return UWAGA_DATA, else ~/.cache/uwaga. The folder need not exist."""
    text = _text("UWAGA_DATA")
    return Path(text).expanduser() if text else Path.home() / ".cache" / "uwaga"


def threads() -> int | None:
    """Return UWAGA_THREADS, a whole number from 1 to MAX_THREADS."""
    text = _text("UWAGA_THREADS")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= MAX_THREADS):
        raise ValueError(f"UWAGA_THREADS must be a whole number from 1 to {MAX_THREADS}, not {text!r}")
    return int(text)


def _text(name: str) -> str | None:
    # An empty variable counts as unset: `UWAGA_LEVEL= command` clears it for one command.
    assert name in VARIABLES
    return os.environ.get(name) or None
