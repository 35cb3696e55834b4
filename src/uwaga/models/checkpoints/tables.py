"""Tables of weight names: which weight of a checkpoint is which weight of our model, used for loading and saving.

A row may have a layout: a transposed weight, or several of our weights in one of theirs. A weight that is not in the table is an error, so
a table also declares tied weights (a second name for the same weight), and weights that are not read, with the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class WeightLayout:
    """How one stored weight is split into one or more of ours (read), and how they are joined (write)."""

    read: Callable[[Tensor], Sequence[Tensor]]
    write: Callable[[Sequence[Tensor]], Tensor]


AS_IS = WeightLayout(read=lambda x: (x,), write=lambda parts: parts[0])
ROW = WeightLayout(read=lambda x: (x[0],), write=lambda parts: parts[0][None])


def joined(sizes: Sequence[int], *, transposed: bool = False) -> WeightLayout:
    """Weights of these numbers of rows in one, such as fused QKV; transposed: as in GPT-2, (in, out)."""
    if not transposed:
        return WeightLayout(read=lambda x: x.split(sizes), write=lambda ours: torch.cat(list(ours)))
    return WeightLayout(
        read=lambda x: [part.T for part in x.split(sizes, 1)],
        write=lambda ours: torch.cat([part.T for part in ours], 1),
    )


def shared(layers: int) -> WeightLayout:
    """One weight that so many layers have in common."""
    return WeightLayout(read=lambda x: (x,) * layers, write=lambda parts: parts[0])


class WeightMapping:
    """One name of theirs, and our name or names of the same weight."""

    __slots__ = ("layout", "ours", "theirs")

    def __init__(self, theirs: str, *ours: str, layout: WeightLayout = AS_IS) -> None:
        self.theirs, self.ours, self.layout = theirs, ours, layout


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
    tied: Mapping[str, str] = field(default_factory=dict)  # the second name of a tied weight -> the first
    unread: Mapping[str, str] = field(default_factory=dict)  # a name of theirs that is not read -> why
    legacy: Mapping[str, str] = field(default_factory=dict)  # the end of a name in old files -> its current end

    def rows(self) -> tuple[WeightMapping, ...]:
        """All rows."""
        return self.body + self.heads

    def saved(self) -> list[tuple[str, WeightMapping]]:
        """All rows, each with its name in a saved file."""
        prefix = self.prefix if self.is_prefixed else ""
        return [(prefix + row.theirs, row) for row in self.body] + [(row.theirs, row) for row in self.heads]

    def canonical(self, name: str) -> str:
        """A name from a file in the form of the rows: without the prefix, with the current ending."""
        for prefix in (self.prefix, *self.old_prefixes):
            name = name.removeprefix(prefix)
        old = next((old for old in self.legacy if name.endswith(old)), "")
        return name.removesuffix(old) + self.legacy[old] if old else name
