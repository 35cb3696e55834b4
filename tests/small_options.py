"""Options with a field of each kind, one section within another."""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import StringConstraints

from uwaga._base.options import FractionBelow1, Name, Positive, Size, Text, Words, options


@options
class Inner:
    size: Size = 3
    rate: Positive = 1.0
    names: tuple[Name, ...] = ()
    pair: tuple[FractionBelow1, FractionBelow1] = (0.0, 0.0)
    kind: Literal["a", "b"] = "a"
    limit: Size | None = None
    either: Size | tuple[Size, ...] | None = None
    digits: Annotated[Text, StringConstraints(pattern="^[0-9]+$"), Words("digits")] = "1"

    def __post_init__(self) -> None:
        if self.size == 7:
            raise ValueError("size must not be seven")


@options
class Outer:
    inner: Inner
    tables: dict[str, Inner] = field(default_factory=dict)
