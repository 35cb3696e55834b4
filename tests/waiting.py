"""Waiting for a state. Its deadline is one that a hang alone reaches: a busy machine is slow, and is no failure."""

import time
from collections.abc import Callable

HANG = 600  # seconds; a test's own limit, in pyproject.toml, is longer, so that what is waited for is named


def until(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, "this does not come to an end"
        time.sleep(0.005)
