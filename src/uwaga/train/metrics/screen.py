"""What people see of a training: a bar with loss, tokens/s and the time left, and lines above it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from uwaga._base.terminal import escape_controls

# A file that a terminal's output goes to gets a line of training every so many seconds.
_SECONDS = 30.0


class Screen(Protocol):
    """Whoever is told how a training goes."""

    def step(self, step: int, loss: float, rate: float) -> None:
        """So many steps are taken; the loss of the last one; tokens per second."""

    def line(self, text: str) -> None:
        """Something that happened."""


class Silent:
    """Nobody."""

    def step(self, step: int, loss: float, rate: float) -> None:
        pass

    def line(self, text: str) -> None:
        pass


@contextmanager
def shown(steps: int, done: int) -> Iterator[Screen]:
    """On standard error; with a bar where that is a terminal."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (
        rich.BarColumn(), rich.MofNCompleteColumn(), rich.TextColumn("loss {task.fields[loss]:.4f}"),
        rich.TextColumn("{task.fields[rate]:,.0f} tokens/s"), rich.TimeRemainingColumn(compact=True),
    )  # fmt: skip
    with rich.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=steps, completed=done, loss=float("nan"), rate=0.0)
        yield _Terminal(bar, task, console, steps, done)


class _Terminal:
    def __init__(self, bar: object, task: object, console: object, steps: int, done: int) -> None:
        self._bar, self._task, self._console, self._steps, self._done = bar, task, console, steps, done
        self._started = self._told = time.monotonic()

    def step(self, step: int, loss: float, rate: float) -> None:
        self._bar.update(self._task, completed=step, loss=loss, rate=rate)  # type: ignore[attr-defined]
        now = time.monotonic()
        if self._console.is_terminal or now - self._told < _SECONDS:  # type: ignore[attr-defined]
            return
        self._told = now
        left = (now - self._started) / (step - self._done) * (self._steps - step)
        self.line(f"step {step:,} of {self._steps:,}: loss {loss:.4f}, {rate:,.0f} tokens/s, {_time(left)} left")

    def line(self, text: str) -> None:
        # What a model writes is neither markup nor a command to the terminal.
        self._console.print(escape_controls(text), markup=False)  # type: ignore[attr-defined]


def _time(seconds: float) -> str:
    """
    >>> _time(59), _time(3599), _time(90000)
    ('59 s', '59 min', '25 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.0f} h"
