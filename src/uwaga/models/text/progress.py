"""How far an encoding is: as numbers for a program, or as a bar for people."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Progress(NamedTuple):
    """How far an encoding is."""

    documents: int  # finished
    tokens: int  # that the model has read
    seconds: float  # since it began
    total: int | None  # documents in all, where that is known

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """If the documents to come are like those before; None where their number is not known."""
        if self.total is None or not self.documents:
            return None
        return self.seconds * (self.total - self.documents) / self.documents


Listener = Callable[[Progress], object]


class Meter:
    """Counts, and tells a listener."""

    def __init__(self, listener: Listener | None, total: int | None = None) -> None:
        self._listener, self._total = listener, total
        self._started = time.perf_counter()
        self._tokens = 0

    def read(self, tokens: int, documents: int) -> None:
        """The model has read so many more tokens, and so many documents in all are finished."""
        self._tokens += tokens
        if self._listener is not None:
            seconds = time.perf_counter() - self._started
            self._listener(Progress(documents, self._tokens, seconds, self._total))


@contextmanager
def listening(progress: bool | Listener | None, total: int | None) -> Iterator[Listener | None]:
    """The listener of a call: a bar for True, none for False and None."""
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
    """A bar on standard error, with documents, tokens per second and the time left.

    total, done: the length of the bar, and how much of it is full; None where only the counts are known.
    """
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.BarColumn(), rich.TaskProgressColumn(), rich.TextColumn("{task.fields[documents]:,} documents"),
        rich.TextColumn("{task.fields[rate]:,.0f} tokens/s"), rich.TimeRemainingColumn(compact=True),
    )  # fmt: skip
    with rich.Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("", total=total, documents=0, rate=0.0)

        def listener(progress: Progress) -> None:
            rate = progress.tokens_per_second
            shown.update(task, completed=done(progress), documents=progress.documents, rate=rate)

        yield listener
