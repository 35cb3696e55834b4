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


class TimeLeft:
    """Estimates the time that is left from what this run has done alone: what earlier runs have done took none of its time."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, done: float, earlier: float = 0.0, total: float | None = 1.0) -> str:
        """Minutes and seconds, for a bar. done: of the total, with what earlier runs have done. total: None if it is not known."""
        now = time.monotonic()
        if done <= earlier:
            self._started = now  # nothing of this run yet: it begins here
        if done <= earlier or total is None:
            return "--:-- left"
        seconds = round((now - self._started) * (total - done) / (done - earlier))
        return f"{seconds // 60:02d}:{seconds % 60:02d} left"


@contextmanager
def bar(
    total: float | None,
    done: Callable[[Progress], float] = lambda progress: progress.documents,
    earlier: Callable[[], float] = lambda: 0.0,
) -> Iterator[Listener]:
    """A progress bar on standard error, with documents, tokens, tokens per second and the time left.

    total: the length of the bar; None where it is not known. done: how much of the bar is full; earlier: by earlier runs.
    """
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.BarColumn(), rich.TaskProgressColumn(), rich.TextColumn("{task.fields[documents]:,} documents"),
        rich.TextColumn("{task.fields[tokens]:,} tokens"), rich.TextColumn("{task.fields[rate]:,.0f} tokens/s"),
        rich.TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    with rich.Progress(*columns, console=Console(stderr=True)) as shown:
        left = TimeLeft()
        task = shown.add_task("", total=total, documents=0, tokens=0, rate=0.0, left=left(0.0))

        def listener(progress: Progress) -> None:
            completed, rate = done(progress), progress.tokens_per_second
            said = left(completed, earlier(), total)
            shown.update(
                task, completed=completed, documents=progress.documents, tokens=progress.tokens, rate=rate, left=said
            )

        yield listener
