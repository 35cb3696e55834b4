"""Functions that belong to one thread."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def of_this_thread(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """The function, called in the thread that makes it alone; None elsewhere. Hooks of a model are called by every thread that runs it.

    >>> of_this_thread(len)("abc")
    3
    """
    thread = threading.get_ident()

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        return function(*args, **kwargs) if threading.get_ident() == thread else None

    return called
