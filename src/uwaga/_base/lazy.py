"""Lazy imports: the public names of a package are imported when they are first used.

A package lists each of its names once, as an import that type checkers and editors follow and Python does not run:

    if TYPE_CHECKING:
        from uwaga.ops.masks import Causal as Causal
    else:
        __all__, __getattr__, __dir__ = names(__name__)
"""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from uwaga._base.install import missing


def names(package: str, *also: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package, from the imports in its source.

    Args:
        package: its `__name__`. Its own modules can be imported too; `__all__` leaves them out.
        also: further names of `__all__`: those that the package defines, and modules.
    """
    module = sys.modules[package]
    loader: Any = module.__loader__
    source = loader.get_data(module.__file__).decode()
    home = {name: place for place, name in re.findall(r"^    from (\S+) import (\w+) as \2\b", source, re.MULTILINE)}
    public = sorted([*(name for name, place in home.items() if place != package), *also])
    home |= dict.fromkeys(also, package)

    def get(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            if home[name] == package:
                return import_module(f"{package}.{name}")
            value = getattr(import_module(home[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(f"{package}.{name} {missing(error, '')}", name="torch") from error
        # Set as an attribute of the package, so that __getattr__ is called once per name.
        setattr(module, name, value)
        return value

    return public, get, lambda: sorted(home)
