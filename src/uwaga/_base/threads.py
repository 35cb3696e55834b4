"""Where the hooks of a `with` act: in the thread that began it and in tasks that begin inside it, until it ends.

Every thread that runs a model calls the hooks of its modules, so that each must know where it acts. A task has the context in which it
began, also after the `with` has ended; `asyncio.to_thread` takes that context into another thread.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(slots=True, eq=False)
class Block:
    """One `with`, and what acts in it, by the place where it acts."""

    of: Mapping[Any, Any]
    thread: int = field(default_factory=threading.get_ident)
    is_open: bool = True


_BLOCKS: ContextVar[tuple[Block, ...]] = ContextVar("uwaga_blocks", default=())
_LOCK = threading.Lock()
_count = 0
any_open = False  # whether any thread is in a block: torch.compile guards this, and cannot trace a ContextVar

if hasattr(os, "register_at_fork"):  # another thread may hold the lock, which nobody would release in the child
    os.register_at_fork(after_in_child=lambda: globals().update(_LOCK=threading.Lock()))


@contextmanager
def block(of: Mapping[Any, Any] | None = None, *, first: bool = False) -> Iterator[Block]:
    """A context in which this acts. Contexts of a thread may end in any order, and in another context than they began.

    Args:
        of: what acts, by the place where it acts.
        first: before all others, and not after those that began before it.
    """
    global _read
    _read = untraced(_read)
    mine = Block({} if of is None else of)
    others = _BLOCKS.get()
    _BLOCKS.set((mine, *others) if first else (*others, mine))
    _add(1)
    try:
        yield mine
    finally:
        mine.is_open, mine.of = False, {}  # a task's context may keep it for long
        _BLOCKS.set(tuple(each for each in _BLOCKS.get() if each is not mine))
        _add(-1)


def acting(where: object) -> tuple[Any, ...]:
    """What acts at a place, in this thread and task."""
    return _read(where) if any_open else ()


def _read(where: object) -> tuple[Any, ...]:
    return tuple(each.of[where] for each in _here() if where in each.of)


def _here() -> list[Block]:
    """The blocks that act in this thread and task."""
    thread = threading.get_ident()
    return [each for each in _BLOCKS.get() if each.is_open and each.thread == thread]


def untraced(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function as torch.compile calls it, between two graphs; importing its compiler takes seconds where nothing is compiled."""
    if "torch._dynamo" not in sys.modules or hasattr(function, "_torchdynamo_disable"):
        return function
    import torch

    return torch.compiler.disable(function)


@contextmanager
def calling_here() -> Iterator[Callable[[Callable[_P, _R]], Callable[_P, _R | None]]]:
    """A context with a decorator for hooks of torch's modules: a function is called where the context acts, and gives None elsewhere.

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


def _add(more: int) -> None:
    global _count, any_open
    with _LOCK:
        _count += more
        any_open = _count > 0
