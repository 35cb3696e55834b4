"""Which files this process opens, as the interpreter tells it. An audit hook stays for ever; without listeners it does nothing."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_listeners: list[Callable[[Path], object]] = []


def _tell(event: str, arguments: tuple) -> None:
    if event == "open" and _listeners and isinstance(arguments[0], str | bytes | os.PathLike):
        path = Path(os.fsdecode(arguments[0]))
        for listener in tuple(_listeners):
            listener(path)


sys.addaudithook(_tell)


@contextmanager
def listening(listener: Callable[[Path], object]) -> Iterator[None]:
    """Call a function with the path of each file that is about to be opened within the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        if listener in _listeners:
            _listeners.remove(listener)


@contextmanager
def when_opened(is_it: Callable[[Path], bool], act: Callable[[], object]) -> Iterator[None]:
    """Do something once, just before the first file of a kind is opened within the block."""

    def listener(path: Path) -> None:
        if is_it(path):
            _listeners.remove(listener)
            act()

    with listening(listener):
        yield
        assert listener not in _listeners, "no such file was opened"
