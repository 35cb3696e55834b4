"""The progress of encoding: counts for a callback, or a progress bar."""

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


Listener = Callable[[Progress], object]


@contextmanager
def bar(total: float | None) -> Iterator[Callable[..., None]]:
    """Show a progress bar of documents, tokens and time on standard error.

    Yields a Listener. It also takes `done`, the full part of the bar if that is not the number of documents, and `earlier`, the part that
    earlier runs did, whose time is not counted. total: the length of the bar; None if it is unknown.
    """
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.BarColumn(), rich.TaskProgressColumn(), rich.TextColumn("{task.fields[documents]:,} documents"),
        rich.TextColumn("{task.fields[tokens]:,} tokens"), rich.TextColumn("{task.fields[rate]:,.0f} tokens/s"),
        rich.TimeRemainingColumn(),
    )  # fmt: skip
    with rich.Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("", total=total, documents=0, tokens=0, rate=0.0)

        def show(progress: Progress, done: float | None = None, earlier: float = 0.0) -> None:
            done = progress.documents if done is None else done
            fields = {"documents": progress.documents, "tokens": progress.tokens, "rate": progress.tokens_per_second}
            (shown.reset if done <= earlier else shown.update)(task, completed=done, **fields)  # type: ignore[arg-type]

        yield show
