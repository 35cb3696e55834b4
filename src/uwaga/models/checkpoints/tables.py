"""Tables of weight names: which weight of a checkpoint is which weight of our model, and the strict check of a file by them.

A weight that is not in the table is an error, so a table also declares tied weights (a second name for the same weight), and weights that are
not read, with the reason. Names, shapes and dtypes are compared before any weight is read, and one error lists all differences; values are
checked while they are read.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints.weight_files import Weights

FLOATING = ("float64", "float32", "float16", "bfloat16")
# Bounds the error message: an untrusted file may differ in a million names.
MOST_LINES = 200

# Kinds of differences, in the order of the message.
KINDS = ("duplicate", "missing", "unexpected", "wrong shape", "wrong dtype", "not finite", "not tied")
Lines = list[tuple[str, str]]  # one of KINDS, and the weight


class WeightMapping(NamedTuple):
    """One name of theirs, and our name or names of the same weight."""

    theirs: str
    ours: tuple[str, ...]
    read: Callable[[Tensor], Sequence[Tensor]] = lambda x: (x,)  # splits one stored weight into ours
    write: Callable[[Sequence[Tensor]], Tensor] = lambda parts: parts[0]  # joins them


class Table(NamedTuple):
    """All weight names of one model.

    transformers names a weight `embeddings.x` in a model without a head and `bert.embeddings.x` in one with a head. The rows of
    the body are without the prefix; files with and without it are read.
    """

    body: Sequence[WeightMapping]
    heads: Sequence[WeightMapping] = ()
    prefix: str = ""  # of the names of the body in a saved file
    tied: Mapping[str, str] = {}  # the second name of a tied weight -> the first
    unread: Mapping[str, str] = {}  # a name of theirs that is not read -> why
    bare: Callable[[str], str] = str  # a name from a file -> as the rows have it

    def rows(self) -> list[WeightMapping]:
        """Return all rows."""
        return [*self.body, *self.heads]

    def saved(self) -> list[tuple[str, WeightMapping]]:
        """Return all rows, each with its name in a saved file."""
        return [(self.prefix + row.theirs, row) for row in self.body] + [(row.theirs, row) for row in self.heads]


def reader(
    table: Table,
    weights: Weights,
    ours: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
    *,
    widens_float16: bool = False,
    shared: bool = False,
) -> Callable[[], dict[str, Tensor]]:
    """Compare names, shapes and dtypes of a file with a table, and return a function that reads our state dict.

    Args:
        ours: the model's tensors, for their shapes.
        dtype: of all weights; None: that of the file.
        widens_float16: without a dtype, float16 becomes float32.
        shared: map weights that have the dtype and the layout of ours from the file. False: copy them, since the file may be overwritten.

    Raises CheckpointError that lists all differences, or if there are several dtypes and no `dtype`. The function raises it for values that are
    NaN or infinite, and for tied weights that differ.
    """
    rows = table.rows()
    assert {name for row in rows for name in row.ours} == ours.keys(), "the table and the model disagree"
    names, lines = _canonical(table, weights)
    declared = {row.theirs for row in rows} | table.tied.keys() | table.unread.keys()
    like = {name: x.detach().to("meta") for name, x in ours.items()}
    shapes = {row.theirs: tuple(row.write(tuple(like[name] for name in row.ours)).shape) for row in rows}  # in a file
    shapes |= {second: shapes[first] for second, first in table.tied.items()}
    lines += [("missing", f"{name} {shapes[row.theirs]}") for name, row in table.saved() if row.theirs not in names]
    lines += [("unexpected", _described(weights, name)) for bare, name in names.items() if bare not in declared]
    for name, shape in ((names[bare], shape) for bare, shape in shapes.items() if bare in names):
        stored = weights.stored[name]
        if stored.shape != shape:
            lines.append(("wrong shape", f"{_described(weights, name)} must be {shape}"))
        if stored.dtype not in FLOATING:
            what = f"{_described(weights, name)} is {stored.dtype}"
            lines.append(("wrong dtype", f"{what}, not a floating dtype of weights"))
    _raise(weights, lines)
    of_file = sorted({weights.stored[names[row.theirs]].dtype for row in rows})
    if dtype is None and len(of_file) > 1:
        raise CheckpointError(f"{weights.path} mixes {' and '.join(of_file)}: choose one with the argument dtype")
    chosen: torch.dtype = dtype or getattr(torch, of_file[0])
    if dtype is None and widens_float16 and chosen is torch.float16:
        chosen = torch.float32
    tied = [(names[second], names[first]) for second, first in table.tied.items() if second in names]
    tied = [(second, first) for second, first in tied if second != first]

    def read() -> dict[str, Tensor]:
        lines: Lines = []
        state: dict[str, Tensor] = {}
        for row in rows:
            name = names[row.theirs]
            stored = weights.read(name).to(chosen, copy=not shared)
            if not is_finite(stored):
                lines.append(("not finite", f"{_described(weights, name)} in {str(chosen).removeprefix('torch.')}"))
            state |= {ours: part.contiguous() for ours, part in zip(row.ours, row.read(stored), strict=True)}
        for second, first in tied:
            if not torch.allclose(weights.read(second), weights.read(first), rtol=0, atol=0, equal_nan=True):
                lines.append(("not tied", f"{_described(weights, second)} differs from {printable(first)}"))
        _raise(weights, lines)
        return state

    return read


def write(table: Table, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict by their names, without the second names of tied weights, as transformers saves it."""
    return {name: row.write([ours[part].detach() for part in row.ours]).contiguous() for name, row in table.saved()}


def _canonical(table: Table, weights: Weights) -> tuple[dict[str, str], Lines]:
    """Return the file's names by the table's names, and a line for every weight with two names.

    A tied weight may have any one of its names, as in transformers.
    """
    stored_names: dict[str, str] = {}
    lines: Lines = []
    for name in weights.stored:
        bare = table.bare(name)
        if bare in stored_names:
            lines.append(("duplicate", f"{_described(weights, name)} is also {printable(stored_names[bare])}"))
        stored_names.setdefault(bare, name)
    for second, first in table.tied.items():
        if second in stored_names:
            stored_names.setdefault(first, stored_names[second])
    return stored_names, lines


def is_finite(x: Tensor) -> bool:
    """Return whether no element is NaN or infinite."""
    # One pass without a copy; both extremes are NaN where any element is.
    return x.numel() == 0 or all(bool(extreme.isfinite()) for extreme in x.aminmax())


def _described(weights: Weights, name: str) -> str:
    stored = weights.stored[name]
    where = "" if stored.file == weights.path.name else f" in {stored.file}"
    return f"{printable(name)} {stored.shape}{where}"


def _raise(weights: Weights, lines: Lines) -> None:
    if not lines:
        return
    width = max(len(kind) for kind, _ in lines)
    shown = [f"  {kind:<{width}}  {what}" for kind in KINDS for kind_of_line, what in lines if kind_of_line == kind]
    if len(shown) > MOST_LINES:
        shown[MOST_LINES:] = [f"  and {len(shown) - MOST_LINES} more"]
    raise CheckpointError("\n".join([f"{weights.path} does not match the model of config.json", *shown]))
