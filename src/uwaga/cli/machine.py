"""The processor and versions that timings and failures depend on; no host name and no paths."""

import os
import platform
from importlib import metadata

from uwaga._base.processor import detect


def processor() -> str:
    """The model name of the processor, as the system reports it.

    >>> len(processor()) > 0
    True
    """
    return detect().name or platform.processor() or platform.machine()


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def version(distribution: str) -> str | None:
    """The installed version, or None. Reads metadata; imports nothing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
