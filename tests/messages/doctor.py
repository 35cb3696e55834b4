"""What `uwaga doctor` finds where something is missing, wrong or another processor."""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import processors
import pytest

from uwaga._base import native
from uwaga.cli import doctor
from uwaga.sequence_parallel import Process

OLD, NEW = (SimpleNamespace(name="A card", total_memory=80 * 2**30, major=major, minor=0) for major in (6, 9))
WHY_NO_FLEX = "FlexAttention's kernels need Triton and a GPU of compute capability 7.0 or more"
PROCESSES = [Process(0, "a", 7, "gloo", "avx512", 2, 0.0, True), Process(1, "b", 8, "gloo", "avx2", 4, 1234.5, False)]


class FindingError(Exception):
    """What `uwaga doctor` finds."""


def show(findings: Iterable[tuple]) -> None:
    """Raise findings, as `doctor` yields them, without the figures of this machine."""
    read = [doctor.Finding("", *finding) for finding in findings]
    lines = [f"{finding.value} ({finding.status})" + f": {finding.why}" * bool(finding.why) for finding in read]
    raise FindingError(re.sub(r"\d+ GFLOP/s of a float32 peak of \d+", "SPEED", "\n".join(lines)))


def find(*names: str, **variables: str) -> None:
    """Raise findings by topic/name. variables: of the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        topics = {name.partition("/")[0] for name in names}
        found = {f"{topic}/{finding.name}": finding[1:] for topic in topics for finding in doctor.findings_of(topic)}
    show(found[name] for name in names)


def find_without(patch: pytest.MonkeyPatch, name: str, package: str) -> None:
    patch.setitem(sys.modules, package, None)
    find(name)


def find_engine(*names: str, **variables: str) -> None:
    processors.forget()
    try:
        find(*names, **variables)
    finally:
        processors.forget()


def find_on(on: Callable, here: object, *names: str) -> None:
    on(here)
    find_engine(*names)


def find_without_library(folder: Path, *names: str) -> None:
    native.load.cache_clear()
    try:
        find_engine(*names, UWAGA_LIBRARY=str(folder / "gone.so"))
    finally:
        native.load.cache_clear()
