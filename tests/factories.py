"""Fixtures that are functions."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest


def factory(function: Callable[..., Any]) -> Any:
    """Make a function a fixture: its parameters before the / are fixtures, and a test passes the others. Without any it is the session's."""
    names = [name for name, x in inspect.signature(function).parameters.items() if x.kind is x.POSITIONAL_ONLY]

    def made(**fixtures: Any) -> Callable[..., Any]:
        return partial(function, *(fixtures[name] for name in names))

    made.__doc__ = function.__doc__
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return pytest.fixture(made, scope="function" if names else "session")
