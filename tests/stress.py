"""Parameters of tests of which `make test` runs some and `make nightly` all."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def mostly_stress(values: Iterable[Any], in_gate: Callable[[Any], bool]) -> list[Any]:
    """Return the values, with the marker `stress` on each that `in_gate` is false for; a tuple has one value for each argument."""
    return [
        value
        if in_gate(value)
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.stress)
        for value in values
    ]
