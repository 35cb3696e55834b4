"""Progress of an encoding: counts for a callback, or a progress bar."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Progress(NamedTuple):
    """Counts of an encoding that is running."""

    documents: int  # finished
    tokens: int  # that the model has read
    seconds: float  # since it started
    total: int | None  # number of documents; None where it is not known

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the mean time of a document; None where the number of documents is not known."""
        if self.total is None or not self.documents:
            return None
        return self.seconds * (self.total - self.documents) / self.documents


Listener = Callable[[Progress], object]


class Meter:
    """Counts documents and tokens, and calls a listener after every batch."""

    def __init__(self, listener: Listener | None, total: int | None = None) -> None:
        self._listener, self._total = listener, total
        self._started = time.perf_counter()
        self._tokens = 0

    def add(self, tokens: int, documents: int) -> None:
        """tokens: read by the model since the last call. documents: finished since the start."""
        self._tokens += tokens
        if self._listener is not None:
            seconds = time.perf_counter() - self._started
            self._listener(Progress(documents, self._tokens, seconds, self._total))


@contextmanager
def listening(progress: bool | Listener | None, total: int | None) -> Iterator[Listener | None]:
    """The listener for a `progress` argument: a progress bar for True, none for False and None."""
    if not progress:
        yield None
    elif callable(progress):
        yield progress
    else:
        with bar(total) as listener:
            yield listener


@contextmanager
def bar(
    total: float | None, done: Callable[[Progress], float] = lambda progress: progress.documents
) -> Iterator[Listener]:
    """A progress bar on standard error, with documents, tokens, tokens per second and the time left.

    total: the length of the bar; None where it is not known. done: how much of the bar is full.
    """
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.BarColumn(), rich.TaskProgressColumn(), rich.TextColumn("{task.fields[documents]:,} documents"),
        rich.TextColumn("{task.fields[tokens]:,} tokens"), rich.TextColumn("{task.fields[rate]:,.0f} tokens/s"),
        rich.TimeRemainingColumn(compact=True),
    )  # fmt: skip
    with rich.Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("", total=total, documents=0, tokens=0, rate=0.0)

        def listener(progress: Progress) -> None:
            completed, rate = done(progress), progress.tokens_per_second
            shown.update(task, completed=completed, documents=progress.documents, tokens=progress.tokens, rate=rate)

        yield listener
