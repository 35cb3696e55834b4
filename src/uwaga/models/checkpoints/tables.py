"""Tables of weight names: which weight of a checkpoint is which weight of our model, used for loading and saving.

    WeightMapping("encoder.layer.{n}.attention.self.query.weight", "layers.{n}.attention.query.weight")

A letter in braces is the index of a layer. A row may have a layout: a transposed weight, or several of our weights in one of
theirs. A weight that is not in the table is an error, so a table also declares tied weights (a second name for the same
weight), and weights that are not read, with the reason.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

_COUNTER = re.compile(r"\{(\w)\}")


@dataclass(frozen=True, kw_only=True)
class WeightLayout:
    """How one stored weight is split into one or more of ours (read), and how they are joined (write)."""

    read: Callable[[Tensor], tuple[Tensor, ...]]
    write: Callable[[tuple[Tensor, ...]], Tensor]


AS_IS = WeightLayout(read=lambda x: (x,), write=lambda parts: parts[0])
TRANSPOSED = WeightLayout(read=lambda x: (x.T,), write=lambda parts: parts[0].T)


def stacked(parts: int, dimension: int = 0) -> WeightLayout:
    """Several weights of equal shape in one, such as fused QKV."""
    return WeightLayout(read=lambda x: x.chunk(parts, dimension), write=lambda ours: torch.cat(ours, dimension))


def shared(layers: int) -> WeightLayout:
    """One weight that so many layers have in common."""
    return WeightLayout(read=lambda x: (x,) * layers, write=lambda parts: parts[0])


def stacked_transposed(parts: int) -> WeightLayout:
    """As `stacked`, for weights that are stored transposed, as in GPT-2: (in, parts * out)."""
    return WeightLayout(
        read=lambda x: tuple(part.T for part in x.chunk(parts, 1)),
        write=lambda ours: torch.cat([part.T for part in ours], 1),
    )


class WeightMapping:
    """One name of theirs, and our name or names of the same weight."""

    __slots__ = ("layout", "ours", "theirs")

    def __init__(self, theirs: str, *ours: str, layout: WeightLayout = AS_IS) -> None:
        self.theirs, self.ours, self.layout = theirs, ours, layout

    def expand(self, counts: Mapping[str, int]) -> Iterator["WeightMapping"]:
        """This row for every layer, or once where it has no letter in braces."""
        counter = _COUNTER.search(self.theirs)
        if counter is None:
            yield self
            return
        for n in range(counts[counter[1]]):
            names = (name.replace(counter[0], str(n)) for name in (self.theirs, *self.ours))
            yield WeightMapping(*names, layout=self.layout)


def pair(theirs: str, ours: str, *, bias: bool = True) -> tuple[WeightMapping, ...]:
    """The rows of a module's weight and bias; of its weight alone where it has no bias."""
    return tuple(WeightMapping(f"{theirs}.{part}", f"{ours}.{part}") for part in ("weight", "bias")[: 1 + bias])


@dataclass(frozen=True, kw_only=True)
class Table:
    """All weight names of one model.

    transformers names a weight `embeddings.x` in a model without a head and `bert.embeddings.x` in one with a head. The rows of
    the body are without the prefix; files with and without it are read.
    """

    body: tuple[WeightMapping, ...]
    heads: tuple[WeightMapping, ...] = ()
    prefix: str = ""
    old_prefixes: tuple[str, ...] = ()  # of other programs' files, read in its place
    is_prefixed: bool = False  # whether saved names of the body have the prefix
    counts: Mapping[str, int] = field(default_factory=dict)  # the number of layers, by letter
    tied: Mapping[str, str] = field(default_factory=dict)  # the second name of a tied weight -> the first
    unread: Mapping[str, str] = field(default_factory=dict)  # a name of theirs that is not read -> why
    legacy: Mapping[str, str] = field(default_factory=dict)  # the end of a name in old files -> its current end

    def rows(self) -> list[WeightMapping]:
        """All rows, those of layers for every layer."""
        return [row for _, row in self.saved()]

    def saved(self) -> list[tuple[str, WeightMapping]]:
        """All rows, each with its name in a saved file."""
        prefix = self.prefix if self.is_prefixed else ""
        body = [(prefix + row.theirs, row) for pattern in self.body for row in pattern.expand(self.counts)]
        return body + [(row.theirs, row) for pattern in self.heads for row in pattern.expand(self.counts)]

    def canonical(self, name: str) -> str:
        """A name from a file in the form of the rows: without the prefix, with the current ending."""
        for prefix in (self.prefix, *self.old_prefixes):
            name = name.removeprefix(prefix)
        old = next((old for old in self.legacy if name.endswith(old)), "")
        return name.removesuffix(old) + self.legacy[old] if old else name


class Config(Protocol):
    """The configuration of a model: a frozen dataclass."""

    @property
    def model_type(self) -> str:
        """model_type of config.json."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What loading and saving use of a family of models; `FAMILY` in its checkpoint.py."""

    read_config: Callable[[Mapping[str, Any], str, Set[str]], Config]  # (config.json, its path, names of the weights)
    # Any: the config class of the family, which is looked up by model_type at run time.
    write_config: Callable[[Any], dict[str, object]]  # gives config.json
    table: Callable[[Any], Table]
    build: Callable[[Any], nn.Module]  # gives a module with the attribute `config`
