"""Tables of names: which weight of a checkpoint is which weight here, read in both directions.

    Row("encoder.layer.{n}.attention.self.query.weight", "layers.{n}.attention.query.weight")

A letter in braces counts layers. A row may change the layout on the way: a transposed weight, or several of ours stacked
into one of theirs. What is not in the table is an error, so everything that a checkpoint may hold has to be declared:
ties (a second name for the same weight), and names that no computation reads, with the reason.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

_COUNTER = re.compile(r"\{(\w)\}")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one stored weight becomes one or more of ours, and how they become it again."""

    read: Callable[[Tensor], tuple[Tensor, ...]]
    write: Callable[[tuple[Tensor, ...]], Tensor]


AS_IS = Layout(read=lambda x: (x,), write=lambda parts: parts[0])
TRANSPOSED = Layout(read=lambda x: (x.T,), write=lambda parts: parts[0].T)


def stacked(parts: int, dimension: int = 0) -> Layout:
    """Several weights of equal shape in one, such as fused query, key and value."""
    return Layout(read=lambda x: x.chunk(parts, dimension), write=lambda ours: torch.cat(ours, dimension))


def stacked_transposed(parts: int) -> Layout:
    """The same of weights that are stored transposed, as GPT-2's are: (in, parts * out)."""
    return Layout(
        read=lambda x: tuple(part.T for part in x.chunk(parts, 1)),
        write=lambda ours: torch.cat([part.T for part in ours], 1),
    )


class Row:
    """One name of theirs, and the name or names here that it holds."""

    __slots__ = ("layout", "ours", "theirs")

    def __init__(self, theirs: str, *ours: str, layout: Layout = AS_IS) -> None:
        self.theirs, self.ours, self.layout = theirs, ours, layout

    def expand(self, counts: Mapping[str, int]) -> Iterator["Row"]:
        """This row once for every layer, or once where it has no counter."""
        counter = _COUNTER.search(self.theirs)
        if counter is None:
            yield self
            return
        for n in range(counts[counter[1]]):
            names = (name.replace(counter[0], str(n)) for name in (self.theirs, *self.ours))
            yield Row(*names, layout=self.layout)


def pair(theirs: str, ours: str) -> tuple[Row, Row]:
    """The rows of a module's weight and bias."""
    return Row(f"{theirs}.weight", f"{ours}.weight"), Row(f"{theirs}.bias", f"{ours}.bias")


@dataclass(frozen=True, kw_only=True)
class Table:
    """All names of one model.

    transformers writes `embeddings.x` for a bare model and `bert.embeddings.x` for one inside another with a head; the
    rows of the body are written bare here, and files of either kind are read.
    """

    body: tuple[Row, ...]
    heads: tuple[Row, ...] = ()
    prefix: str = ""
    is_prefixed: bool = False  # whether a saved file has the prefix before the names of the body
    counts: Mapping[str, int] = field(default_factory=dict)  # what the letters in braces count to
    tied: Mapping[str, str] = field(
        default_factory=dict
    )  # a second name of theirs -> the first, whose weight it repeats
    unread: Mapping[str, str] = field(default_factory=dict)  # a name of theirs that no computation reads -> why
    legacy: Mapping[str, str] = field(default_factory=dict)  # the end of a name in old files -> its end today

    def rows(self) -> list[Row]:
        """The rows of every layer."""
        return [row for _, row in self.saved()]

    def saved(self) -> list[tuple[str, Row]]:
        """The same, each with the name that a saved file has for it."""
        prefix = self.prefix if self.is_prefixed else ""
        body = [(prefix + row.theirs, row) for pattern in self.body for row in pattern.expand(self.counts)]
        return body + [(row.theirs, row) for pattern in self.heads for row in pattern.expand(self.counts)]

    def canonical(self, name: str) -> str:
        """A name from a file as the rows write it: without the prefix, in today's spelling."""
        name = name.removeprefix(self.prefix)
        old = next((old for old in self.legacy if name.endswith(old)), "")
        return name.removesuffix(old) + self.legacy[old] if old else name


class Config(Protocol):
    """A frozen dataclass of plain settings."""

    @property
    def model_type(self) -> str:
        """The name that transformers has for the kind of model, as in config.json."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Everything that loading and saving need to know of one kind of model; `FAMILY` of its checkpoint.py."""

    read_config: Callable[[Mapping[str, Any], str, Set[str]], Config]  # config.json, its path, names of weights
    # Of the family's own configs alone, which a type cannot say of a value that is looked up by name.
    write_config: Callable[[Any], dict[str, object]]  # config.json as transformers reads it
    table: Callable[[Any], Table]
    build: Callable[[Any], nn.Module]  # a module with the attribute `config`
