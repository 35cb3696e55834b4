"""Public names that changed: the old one is refused, and the message says the new one.

An old name is never read as the new one: two spellings of one setting would both have to be documented and tested forever.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

_Callable = TypeVar("_Callable", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


class RenamedParameter(NamedTuple):
    """A keyword argument of a public function or class that changed its name."""

    owner: str  # module.qualname
    old: str
    new: str


# Every renamed keyword argument of the modules imported so far; tests try each.
PARAMETERS: list[RenamedParameter] = []


def parameters(**renamed: str) -> Callable[[_Callable], _Callable]:
    """A decorator of a public function or class: `@parameters(old="new")` refuses keyword arguments under their old names.

    A class keeps its identity; its __init__ is what is wrapped, and instances that lack an old name as an attribute say the
    new one too.

    Raises:
        TypeError: from what is decorated, "encode: long is now called overflow".
    """

    def decorate(target: _Callable) -> _Callable:
        name = target.__name__
        PARAMETERS.extend(
            RenamedParameter(f"{target.__module__}.{target.__qualname__}", *pair) for pair in renamed.items()
        )
        if not inspect.isclass(target):
            return _refusing(name, target, renamed)
        cls: Any = target
        cls.__init__ = _refusing(name, cls.__init__, renamed)
        if not hasattr(cls, "__getattr__"):
            cls.__getattr__ = _missing(name, renamed)
        return target

    return decorate


def attributes(**renamed: str) -> Callable[[_Class], _Class]:
    """A decorator of a public NamedTuple or class: instances that lack an old name as an attribute say the new one."""

    def decorate(target: _Class) -> _Class:
        target.__getattr__ = _missing(target.__name__, renamed)  # type: ignore[attr-defined]
        return target

    return decorate


def _refusing(name: str, function: Callable[..., Any], renamed: Mapping[str, str]) -> Any:
    former = tuple(renamed)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        for old in former:  # torch.compile traces this loop, and no set operation on the keys
            if old in options:
                refuse(name, options, renamed, TypeError)
        return function(*args, **options)

    return call


def _missing(name: str, renamed: Mapping[str, str]) -> Callable[[object, str], Any]:
    def get(_: object, attribute: str) -> Any:
        now = f"; it is now called {renamed[attribute]}" if attribute in renamed else ""
        raise AttributeError(f"{name!r} object has no attribute {attribute!r}{now}")

    return get


def refuse(where: str, given: Iterable[str], renamed: Mapping[str, str], error: type[Exception]) -> None:
    """Raises `error` for the first of the given keys that is an old name: "BertConfig: width is now called d_model"."""
    for key in given:
        if key in renamed:
            raise error(f"{where}: {key} is now called {renamed[key]}")
