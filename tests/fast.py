"""The order of tests, and the fast tier: `pytest --fast` leaves out what is marked slow, and fails on what should have been.

Slow is what starts a browser, a process, a training or a compiler, or takes seconds; `@pytest.mark.slow` says so. A test of the
fast tier that does one of these fails, so that the tier stays fast.
"""

import multiprocessing.process
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out tests that are marked slow or timing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files whose tests are mostly slow come first, so that of several processes none gets a long one at the end."""
    slow_of_file: dict[object, list[bool]] = defaultdict(list)
    for item in items:
        slow_of_file[item.path].append(item.get_closest_marker("slow") is not None)
    share = {path: sum(slow) / len(slow) for path, slow in slow_of_file.items()}
    items.sort(key=lambda item: -share[item.path])  # stable: within a file nothing changes
    if config.getoption("--fast"):
        slow = [item for item in items if item.get_closest_marker("slow") or item.get_closest_marker("timing")]
        config.hook.pytest_deselected(items=slow)
        gone = set(map(id, slow))
        items[:] = [item for item in items if id(item) not in gone]


@pytest.fixture(scope="session", autouse=True)
def _nothing_slow(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.config.getoption("--fast"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", _refused("starts a process"))
        patch.setattr(multiprocessing.process.BaseProcess, "start", _refused("starts a process"))
        patch.setattr(torch, "compile", _refused("compiles"))
        patch.setattr("uwaga.train.loop.Loop.run", _refused("trains"))
        yield


def _refused(what: str) -> Any:
    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail(f"a test of the fast tier {what}: mark it slow")

    return refuse
