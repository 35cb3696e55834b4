"""Where the hooks of a `with` act: in the thread that began it and in tasks that begin inside it, until it ends.

Every thread that runs a model calls the hooks of its modules, so that each must know where it acts. A task has the context in which it
began, also after the `with` has ended; `asyncio.to_thread` takes that context into another thread.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(slots=True, eq=False)
class _OpenBlock:
    """One `with`, and what acts in it: by the id of the place where it acts, the place, which it keeps, and what acts there."""

    of: dict[int, tuple[Any, Any]]
    thread: int = field(default_factory=threading.get_ident)
    is_open: bool = True


_BLOCKS: ContextVar[tuple[_OpenBlock, ...]] = ContextVar("uwaga_blocks", default=())
_LOCK = threading.Lock()
# Of the blocks of all threads: how many act at a place, by its id. torch.compile guards these two, and cannot trace a ContextVar; the
# first is a bool, so that without blocks no graph is of one place alone.
any_open = False
_PLACES: Counter[int] = Counter()

if hasattr(os, "register_at_fork"):  # another thread may hold the lock, which nobody would release in the child
    os.register_at_fork(after_in_child=lambda: globals().update(_LOCK=threading.Lock()))


@contextmanager
def block(acts: Iterable[tuple[Any, Any]] = (), *, first: bool = False) -> Iterator[_OpenBlock]:
    """Open a context in which this acts. Contexts of a thread may end in any order, and in another context than they began.

    Args:
        acts: places (layers, configs, models), and what acts there.
        first: before all others, and not after those that began before it.
    """
    global _read
    _read = untraced(_read)
    mine = _OpenBlock({id(place): (place, what) for place, what in acts})
    others = _BLOCKS.get()
    _BLOCKS.set((mine, *others) if first else (*others, mine))
    _count(mine, 1)
    try:
        yield mine
    finally:
        _BLOCKS.set(tuple(entry for entry in _BLOCKS.get() if entry is not mine))
        _count(mine, -1)
        mine.is_open, mine.of = False, {}  # a task's context may keep it for long


def acting(place: object) -> tuple[Any, ...]:
    """Return what acts at a place, in this thread and task."""
    return _read(place) if any_open and id(place) in _PLACES else ()


def _read(place: object) -> tuple[Any, ...]:
    return tuple(entry.of[id(place)][1] for entry in _here() if id(place) in entry.of)


def _here() -> list[_OpenBlock]:
    """Return the blocks that act in this thread and task."""
    thread = threading.get_ident()
    return [entry for entry in _BLOCKS.get() if entry.is_open and entry.thread == thread]


def _count(block: _OpenBlock, more: int) -> None:
    global any_open
    with _LOCK:
        for place in block.of:
            _PLACES[place] += more
            if not _PLACES[place]:
                del _PLACES[place]
        any_open = bool(_PLACES)


def untraced(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function as torch.compile calls it, between two graphs; importing its compiler takes seconds where nothing is compiled."""
    if "torch._dynamo" not in sys.modules or hasattr(function, "_torchdynamo_disable"):
        return function
    import torch

    return torch.compiler.disable(function)


@contextmanager
def calling_here() -> Iterator[Callable[[Callable[_P, _R]], Callable[_P, _R | None]]]:
    """Give a decorator for hooks of torch's modules: a function is called where the context acts, and returns None elsewhere.

    >>> with calling_here() as here:
    ...     here(len)("abc")
    3
    """
    with block() as mine:

        def here(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
            @wraps(function)
            def called(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
                return function(*args, **kwargs) if mine in _here() else None

            return untraced(called)

        yield here
