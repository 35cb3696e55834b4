"""The progress of encoding: counts for a callback, or a progress bar."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Progress(NamedTuple):
    """Counts of an encoding that is running."""

    documents: int  # finished
    tokens: int  # that the model has read
    seconds: float  # since it started
    total: int | None  # number of documents; None if it is not known

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the mean time of a document; None if the number of documents is unknown."""
        if self.total is None or not self.documents:
            return None
        return self.seconds * (self.total - self.documents) / self.documents


Listener = Callable[[Progress], object]


def time_left(clock: Callable[[], float] = time.monotonic) -> Callable[..., str]:
    """Return a function of (done, earlier=0.0, total=1.0) that returns the time left in words.

    The estimate is from the work of this run. done: includes the work of earlier runs, `earlier`. total: None if it is unknown.
    """
    started = clock()

    def left(done: float, earlier: float = 0.0, total: float | None = 1.0) -> str:
        nonlocal started
        now = clock()
        if done <= earlier:
            started = now  # this run has done nothing yet
        if done <= earlier or total is None:
            return "--:-- left"
        seconds = round((now - started) * (total - done) / (done - earlier))
        return f"{seconds // 60:02d}:{seconds % 60:02d} left"

    return left


@contextmanager
def bar(total: float | None) -> Iterator[Callable[..., None]]:
    """Show a progress bar of documents, tokens and time on standard error.

    Yields a Listener. It also takes `done`, the full part of the bar if that is not the number of documents, and `earlier`, the part that
    earlier runs did. total: the length of the bar; None if it is unknown.
    """
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.BarColumn(), rich.TaskProgressColumn(), rich.TextColumn("{task.fields[documents]:,} documents"),
        rich.TextColumn("{task.fields[tokens]:,} tokens"), rich.TextColumn("{task.fields[rate]:,.0f} tokens/s"),
        rich.TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    with rich.Progress(*columns, console=Console(stderr=True)) as shown:
        left = time_left()
        task = shown.add_task("", total=total, documents=0, tokens=0, rate=0.0, left=left(0.0))

        def show(progress: Progress, done: float | None = None, earlier: float = 0.0) -> None:
            done = progress.documents if done is None else done
            rate, remaining = progress.tokens_per_second, left(done, earlier, total)
            shown.update(
                task, completed=done, documents=progress.documents, tokens=progress.tokens, rate=rate, left=remaining
            )

        yield show
