"""Which tests run where, by markers; no test is in two tiers.

- fast: not marked. What starts a browser, a process, a training or a compiler, or takes seconds, is marked `slow`; a test that is not
  and does one of these fails.
- slow: those that have caught something or stand for a whole part. `make test`, which decides whether a change goes in, runs fast and
  slow, `make fast` the first alone.
- stress: more cases of what `make test` shows on a few. `make nightly` runs them. With `gate(only=lambda name: ...)` on a test, its
  cases are stress except those for which the function is true; its arguments are parameters of the test by name.
- timing: what measures time or a process's memory, or floods. It runs alone, in `make nightly`.

What a test needs and does not find is a failure with `--no-missing`, which the Makefile gives; with plain pytest it is a skip.
"""

import inspect
import multiprocessing.process
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import hypothesis
import pytest
import torch

# The gate decides by the change, not by luck: the same examples every time. `make stress` draws others.
hypothesis.settings.register_profile("gate", derandomize=True, deadline=None)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("gate")

# Skips that are no missing part: what another platform, processor or account has, and data that is not published with the project.
_MAY_SKIP = (
    "the data of the recipes is not in UWAGA_DATA",
    "only root can become another user",
    "only root can become two machines",
    "this processor has one instruction set",
    "there is a GPU",
    "is about glibc's malloc",
    "only Linux says how much memory a process has had",
    "reads ELF, the format of Linux",
    "Triton's compiler for NVIDIA's GPUs is on Linux alone",
    "Spark needs Java",
    "forks, so as to load PyTorch once for many runs",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out what is marked slow, stress or timing")
    parser.addoption(
        "--no-missing", action="store_true", help="fail, in place of skipping, where something is not installed"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files whose tests are mostly slow come first, so that of several processes none gets a long one at the end."""
    narrowed = any("::" in path for path in config.args) or bool(
        {"UWAGA_LEVEL", "UWAGA_CONFORMANCE_DEVICE"} & os.environ.keys()
    )
    _mark_all_but_the_gate(items, is_whole=not narrowed)
    slow_of_file: dict[object, list[bool]] = defaultdict(list)
    for item in items:
        slow_of_file[item.path].append(item.get_closest_marker("slow") is not None)
    share = {path: sum(slow) / len(slow) for path, slow in slow_of_file.items()}
    items.sort(key=lambda item: -share[item.path])  # stable: within a file nothing changes
    if config.getoption("--fast"):
        others = [item for item in items if any(map(item.get_closest_marker, ("slow", "stress", "timing")))]
        config.hook.pytest_deselected(items=others)
        gone = set(map(id, others))
        items[:] = [item for item in items if id(item) not in gone]


def _mark_all_but_the_gate(items: Sequence[pytest.Item], *, is_whole: bool) -> None:
    """Mark as stress what `gate` leaves out. Raises UsageError: it leaves out every case; if single tests, a level or a device were asked
    for (not `is_whole`), the cases may be others."""
    kept: dict[str, bool] = {}
    for item in items:
        if gates := list(item.iter_markers("gate")):
            name = item.nodeid.partition("[")[0]
            in_gate = all(_is_kept(item, gate) for gate in gates)
            kept[name] = kept.get(name, False) or in_gate
            if not in_gate:
                item.add_marker(pytest.mark.stress)
    if is_whole and (empty := [name for name, in_gate in kept.items() if not in_gate]):
        raise pytest.UsageError(f"@pytest.mark.gate leaves out every case: {empty}")


def _is_kept(item: pytest.Item, gate: pytest.Mark) -> bool:
    only, parameters = gate.kwargs["only"], item.callspec.params  # type: ignore[attr-defined]
    return bool(only(**{name: parameters[name] for name in inspect.signature(only).parameters if name in parameters}))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[Any]:
    report = yield
    if item.config.getoption("--no-missing"):
        _fail_if_missing(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    report = yield
    if collector.config.getoption("--no-missing"):
        _fail_if_missing(report)
    return report


def _fail_if_missing(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        _, _, reason = report.longrepr
        if not any(phrase in reason for phrase in _MAY_SKIP):
            report.outcome = "failed"
            report.longrepr = f"{report.nodeid}: what it needs is missing: {reason}"


@pytest.fixture(autouse=True)
def _nothing_slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is not marked slow starts nothing slow."""
    if any(map(request.node.get_closest_marker, ("slow", "stress", "timing"))):
        return
    monkeypatch.setattr(subprocess.Popen, "__init__", _refused("starts a process"))
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", _refused("starts a process"))
    monkeypatch.setattr(torch, "compile", _refused("compiles"))
    monkeypatch.setattr("uwaga.train.api.Loop.run", _refused("trains"))


def _refused(what: str) -> Any:
    return lambda *_, **__: pytest.fail(f"a test that is not marked slow {what}")
