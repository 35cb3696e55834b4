"""What `uwaga doctor` finds where something is missing, wrong or another processor."""

import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import processors
import pytest

from uwaga._base import native
from uwaga.cli import doctor


class FindingError(Exception):
    """What `uwaga doctor` finds."""


def find(*names: str, **variables: str) -> None:
    """Raise findings by name. variables: of the environment."""
    processors.forget()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        topics = (doctor.kernels(), doctor.engines(), doctor.models(), doctor.extras())
        found = {finding.name: finding for finding in chain(*topics)}
    processors.forget()
    raise FindingError("\n".join(f"{found[name].value}: {found[name].why}" for name in names))


def find_without(patch: pytest.MonkeyPatch, name: str, package: str) -> None:
    patch.setitem(sys.modules, package, None)
    find(name)


def find_on(on: Callable, here: object, *names: str) -> None:
    on(here)
    find(*names)


def find_without_library(folder: Path, *names: str) -> None:
    native.load.cache_clear()
    try:
        find(*names, UWAGA_LIBRARY=str(folder / "gone.so"))
    finally:
        native.load.cache_clear()
