"""The engines of attention and of the linear map timed against each other: the engine profile of this machine.

Shapes are those of MiniLM (384 wide) and BERT (768 wide), at a batch of a few hundred tokens.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

import uwaga
from uwaga.cli import cases
from uwaga.cli.cases import THEIRS, Case
from uwaga.cli.timing import compare
from uwaga.ops import engine_profile
from uwaga.ops.linear import api as linear_api

if TYPE_CHECKING:
    from rich.table import Table

_ATTENTION = ((12, 128, 64), (12, 512, 64))  # heads, tokens, width
_LINEAR = ((512, 384, 1536), (512, 1536, 384), (512, 768, 768), (512, 768, 3072))  # rows, inputs, outputs
_TINY_ATTENTION = ((2, 8, 8),)
_TINY_LINEAR = ((8, 16, 32),)


class Trial(NamedTuple):
    """One shape and dtype of an operation. The case is made just before it is timed."""

    operation: str
    dtype: str
    what: str
    make: Callable[[], Case]


def attention_trials(tiny: bool) -> Iterator[Trial]:
    """Dense attention in every dtype; `tiny`: sizes too small for meaningful figures, for tests."""
    for name in engine_profile.DTYPES:
        for sizes in _TINY_ATTENTION if tiny else _ATTENTION:
            make = partial(cases.attention_engines, *sizes, getattr(torch, name))
            yield Trial("attention", name, " x ".join(map(str, sizes)), make)


def linear_trials(tiny: bool) -> Iterator[Trial]:
    """The linear map in every dtype."""
    for name in engine_profile.DTYPES:
        for rows, inputs, outputs in _TINY_LINEAR if tiny else _LINEAR:
            make = partial(cases.linear_engines, rows, inputs, outputs, getattr(torch, name))
            yield Trial("linear", name, f"{rows} x {inputs} to {outputs}", make)


class LinearSpeed(NamedTuple):
    """The engine that serves the linear map of a dtype, why, and its GFLOP/s at a batch of BERT's."""

    engine: str
    why: str
    gflops: float


def linear_speed(dtype: torch.dtype, seconds: float) -> LinearSpeed:
    """Measured in about so many seconds."""
    rows, inputs, outputs = 512, 768, 768
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    chosen = linear_api.explain(x, weight)
    result = compare({chosen.engine: partial(uwaga.linear, x, weight)}, seconds=seconds)
    return LinearSpeed(chosen.engine, chosen.reason, 2 * rows * inputs * outputs / result.seconds(chosen.engine) / 1e9)


class Saved(NamedTuple):
    """A profile that was written, and what was measured: for each operation, dtype and engine the ratios by shape."""

    path: Path
    orders: engine_profile.Orders
    measured: dict[str, dict[str, dict[str, dict[str, float]]]]


def save_profile(path: Path, *, seconds: float, tiny: bool, progress: Callable[[float], None]) -> Saved:
    """Times every trial for `seconds` in all, and writes the profile of this machine.

    progress: is called with the completed share, from 0 to 1.

    Raises OSError.
    """
    measured: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    todo = [*attention_trials(tiny), *linear_trials(tiny)]
    for number, trial in enumerate(todo):
        case = trial.make()
        case.check()
        result = compare(case.sides, seconds=seconds / len(todo))
        ratios = measured.setdefault(trial.operation, {}).setdefault(trial.dtype, {})
        for engine in case.sides:
            ratios.setdefault(engine, {})[trial.what] = result.ratio(THEIRS, to=engine)
        progress((number + 1) / len(todo))
    return Saved(path, engine_profile.write(path, measured, torch.get_num_threads()), measured)


def table(saved: Saved) -> "Table":
    """The ratios and the orders of a profile."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("what", "type", "PyTorch's time / the engine's, by shape", "order"):
        table.add_column(heading)
    for operation, dtypes in saved.measured.items():
        for dtype, ratios in dtypes.items():
            figures = [
                f"{name} " + ", ".join(f"{ratio:.2f}x" for ratio in values.values()) for name, values in ratios.items()
            ]
            table.add_row(operation, dtype, "; ".join(figures), " > ".join(saved.orders[operation][dtype]))
    return table
