"""The processor and versions that timings and failures depend on; no host name and no paths."""

import platform
from importlib import metadata

from uwaga._base.processor import detect


def processor() -> str:
    """Return the model name of the processor, as the system reports it.

    >>> len(processor()) > 0
    True
    """
    return detect().name or platform.processor() or platform.machine()


def version(distribution: str) -> str | None:
    """Return the installed version, or None. Reads metadata; imports nothing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
