"""The engine profile: a file of `uwaga bench --save` that says which engine is fastest on this machine.

`engine_table` reads it once per process, and prefers its orders to its own table. It is JSON that one can read, edit and delete:
UWAGA_DATA/engines.json. It is read as untrusted: a size limit, known keys only, and only engine names come out of it. A profile
of another processor, instruction set or version does not apply, since its figures may not.
"""

import datetime
import functools
import json
import math
import sys
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from uwaga._base import durable, env, native, processor, untrusted
from uwaga._base.terminal import printable

PROFILE_BYTES = 2**16  # a profile has about 3,000
DTYPES = ("float32", "bfloat16", "float16")
# The engines that serve dense calls on the CPU, of each operation.
ENGINES: Mapping[str, tuple[str, ...]] = {"attention": ("cpu", "torch"), "linear": ("cpu", "onednn", "torch")}
_FORMAT = 1
# Of the speed of the fastest engine: within the noise of a measurement, and worth the same bits in any batch.
_LEVEL = 0.9
_ABOUT = (
    "Written by `uwaga bench --save`: which engine was fastest on this machine, and cpu where it is within 10 % of that. `order` "
    "decides; `ratios` are PyTorch's time divided by the engine's. Without this file, or with UWAGA_PROFILE=0, the table of uwaga decides."
)

Ratios = Mapping[str, Mapping[str, float]]  # engine -> what was measured -> PyTorch's time divided by the engine's
Orders = Mapping[str, Mapping[str, tuple[str, ...]]]  # operation -> dtype -> engines, the fastest first


class ProfileError(ValueError):
    """An engine profile that does not apply; the message begins with the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The orders of a file that applies to this machine."""

    path: Path
    date: str
    orders: Orders


class Active(NamedTuple):
    """The profile in use, or why there is none."""

    profile: Profile | None
    why: str = ""  # empty where there is a profile
    is_refused: bool = False  # there is a file that does not apply


def default_path() -> Path:
    return env.data() / "engines.json"


@functools.cache
def active() -> Active:
    """Return the profile that this process uses: that of `default_path`, unless UWAGA_PROFILE is 0.

    Warns once where there is a file that does not apply.
    """
    path = default_path()
    if not env.profile():
        return Active(None, "UWAGA_PROFILE is 0")
    try:
        profile = read(path)
    except ProfileError as error:
        warnings.warn(
            f"{error}. It is not used; `uwaga bench --save` replaces it, UWAGA_PROFILE=0 ignores it", stacklevel=2
        )
        return Active(None, str(error), is_refused=True)
    return Active(profile) if profile else Active(None, "not measured on this machine; `uwaga bench --save` measures")


def read(path: Path) -> Profile | None:
    """Return the profile in a file; None where there is no file. Raises ProfileError where it does not apply."""
    try:
        text = untrusted.read_file_if_exists(path, PROFILE_BYTES)
        if text is None:
            return None
        parsed = untrusted.parse_json(text)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: is not JSON: {error}") from error
    table = _table(path, parsed, "the file", {"about", "format", "date", "threads", *_machine(), *ENGINES})
    if table["format"] != _FORMAT or isinstance(table["format"], bool):
        raise ProfileError(f"{path}: has format {_shown(table['format'])}, and this version reads {_FORMAT}")
    for name, here in _machine().items():
        if table[name] != here:
            raise ProfileError(f"{path}: was measured with {name} {_shown(table[name])}, and this is {_shown(here)}")
    if not (isinstance(table["date"], str) and isinstance(table["about"], str)):
        raise ProfileError(f"{path}: date and about must be text")
    orders = {operation: _orders(path, operation, table[operation]) for operation in ENGINES}
    return Profile(path=path, date=printable(table["date"]), orders=orders)


def write(path: Path, measured: Mapping[str, Mapping[str, Ratios]], threads: int) -> Orders:
    """Write a profile, atomically, and return its orders.

    Args:
        path: is replaced where it exists.
        measured: of each operation and dtype the ratios of each engine that can serve.
        threads: how many were used.

    Raises OSError.
    """
    orders = {name: {dtype: order(ratios) for dtype, ratios in values.items()} for name, values in measured.items()}
    table = {
        "about": _ABOUT,
        "format": _FORMAT,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        **_machine(),
        "threads": threads,
    }
    for operation in ENGINES:
        table[operation] = {
            dtype: {"order": orders[operation][dtype], "ratios": _rounded(ratios)}
            for dtype, ratios in measured.get(operation, {}).items()
        }
    durable.make_folder(path.parent)
    with durable.atomic_replace(path) as file:
        file.write((json.dumps(table, indent=2) + "\n").encode())
    active.cache_clear()
    return orders


def order(ratios: Ratios) -> tuple[str, ...]:
    """Return the engines by the geometric mean of their ratios, the fastest first; equal ones in the order given. The native kernels come first
    where they have 0.9 of the fastest one's speed, since by them a row has the same bits in any batch.

    >>> order({"cpu": {"128": 1.5, "512": 1.2}, "torch": {"128": 1.0, "512": 1.0}})
    ('cpu', 'torch')
    >>> order({"torch": {"128": 1.0}, "onednn": {"128": 1.1}, "cpu": {"128": 1.0}})
    ('cpu', 'onednn', 'torch')
    """
    means = {engine: math.exp(sum(map(math.log, values.values())) / len(values)) for engine, values in ratios.items()}
    if "cpu" in means and means["cpu"] >= _LEVEL * max(means.values()):
        means["cpu"] = math.inf
    return tuple(sorted(means, key=lambda engine: -means[engine]))


def _machine() -> dict[str, Any]:
    """Return what must be the same for a profile to apply."""
    here = processor.detect()
    return {
        "processor": {"vendor": here.vendor, "family": here.family, "model": here.model, "name": here.name},
        "level": native.level() if native.reason_unavailable() is None else "none",
        "versions": {"uwaga": sys.modules["uwaga"].__version__, "torch": str(torch.__version__)},
    }


def _table(path: Path, value: object, what: str, keys: Collection[str]) -> dict[str, Any]:
    """Return the value, an object with these keys and no other."""
    if not isinstance(value, dict):
        raise ProfileError(f"{path}: {what} must be an object, not {_shown(value)}")
    for name in sorted(value.keys() ^ set(keys)):
        wrong = "has an unknown key" if name in value else "has no key"
        raise ProfileError(f"{path}: {what} {wrong} {_shown(name)}")
    return value


def _orders(path: Path, operation: str, value: object) -> dict[str, tuple[str, ...]]:
    """Return the orders of an operation by dtype."""
    if not (isinstance(value, dict) and value.keys() <= set(DTYPES)):
        raise ProfileError(f"{path}: {operation} must be an object with the keys {', '.join(DTYPES)} or some of them")
    results = {}
    for dtype, entry in value.items():
        what, choices = f"{operation}.{dtype}", ENGINES[operation]
        table = _table(path, entry, what, ("order", "ratios"))
        engines = table["order"]
        if not (isinstance(engines, list) and engines and all(engine in choices for engine in engines)):
            raise ProfileError(f"{path}: {what}.order must be a list of {', '.join(choices)}, not {_shown(engines)}")
        if len(set(engines)) < len(engines):
            raise ProfileError(f"{path}: {what}.order names an engine twice")
        results[dtype] = tuple(engines)
    return results


def _rounded(ratios: Ratios) -> dict[str, dict[str, float]]:
    return {engine: {what: round(ratio, 3) for what, ratio in values.items()} for engine, values in ratios.items()}


def _shown(value: object) -> str:
    """Return a value from the file, or one to compare it with, on one line."""
    return printable(json.dumps(value, ensure_ascii=True))
