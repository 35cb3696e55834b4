"""TOML as text: the standard library reads it and does not write it."""

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def written(tables: Mapping[str, Any]) -> str:
    r"""Tables and values as TOML, which `tomllib` reads back equal. None is left out: TOML has no word for it.

    >>> print(written({"steps": 3, "rates": [1e-05, 2.0], "run": {"out": "a\\b", "model": {"layers": 2}}}), end="")
    steps = 3
    rates = [1e-05, 2.0]
    <BLANKLINE>
    [run]
    out = "a\\b"
    <BLANKLINE>
    [run.model]
    layers = 2
    """
    lines: list[str] = []
    _write(tables, (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    given = {name: value for name, value in table.items() if value is not None}
    values = {name: value for name, value in given.items() if not isinstance(value, Mapping)}
    if path and (values or not given):
        lines.extend(("", f"[{'.'.join(map(key, path))}]"))
    lines.extend(f"{key(name)} = {value_text(value)}" for name, value in values.items())
    for name, value in given.items():
        if isinstance(value, Mapping):
            _write(value, (*path, name), lines)


def key(name: str) -> str:
    """A key, in quotes where it needs them."""
    return name if _BARE.fullmatch(name) else _string(name)


def value_text(value: object) -> str:
    """One value that is no table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _string(text: str) -> str:
    # JSON's escapes are TOML's too; TOML alone forbids a raw DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
