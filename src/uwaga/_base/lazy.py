"""Lazy imports: the public names of a package are imported when they are first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from uwaga._base.install import missing


def names(
    package: str, home: Mapping[str, str], packages: tuple[str, ...] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        home: for each public name the module that defines it.
        packages: packages and modules inside it that are reached in the same way.
    """

    def get(name: str) -> object:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # Set as an attribute of the package, so that __getattr__ is called once per name.
        try:
            value = getattr(import_module(home[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(f"{package}.{name} {missing(error, '')}", name="torch") from error
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted([*home, *packages])

    return get, listed
