"""The strict state-dict check: a file must have exactly the weights of the model's table; all differences in one error.

Names and shapes are compared before any weight is read, and values while they are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.tables import Row, Table
from uwaga.models.weight_files import Weights

FLOATING = ("float64", "float32", "float16", "bfloat16")
# A file from somebody else may disagree on a million names; a person reads a screen or two.
MOST_LINES = 200

# What can be wrong with a weight, in the order in which it is told.
KINDS = ("there twice", "missing", "unexpected", "misshapen", "no number", "not finite", "not tied")
Lines = list[tuple[str, str]]  # one of KINDS, and with which weight


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The rows of a table, each with the name that the file at hand has for it."""

    weights: Weights
    rows: tuple[tuple[str, Row], ...]
    tied: tuple[tuple[str, str], ...]  # the file's second name for a weight, and its first


def match(table: Table, weights: Weights, ours: Mapping[str, Tensor]) -> Matched:
    """Find every row in the file and every name of the file in the table.

    `ours` are the model's tensors; only their shapes are looked at. Raises CheckpointError.
    """
    rows = table.rows()
    assert {name for row in rows for name in row.ours} == ours.keys(), "the table and the model disagree"
    found, lines = _canonical(table, weights)
    known = {row.theirs for row in rows} | table.tied.keys() | table.unread.keys()
    shapes = {row.theirs: _shape(row, ours) for row in rows}
    shapes |= {second: shapes[first] for second, first in table.tied.items()}
    lines += [("missing", f"{name} {shapes[row.theirs]}") for name, row in table.saved() if row.theirs not in found]
    lines += [("unexpected", _described(weights, name)) for bare, name in found.items() if bare not in known]
    lines += _misshapen(weights, found, shapes)
    _raise(weights, lines)
    return Matched(
        weights=weights,
        rows=tuple((found[row.theirs], row) for row in rows),
        tied=tuple((found[second], found[first]) for second, first in table.tied.items() if second in found),
    )


def read(matched: Matched, dtype: torch.dtype | None, *, allow_nonfinite: bool) -> dict[str, Tensor]:
    """Our tensors by our names, in memory of their own. Raises CheckpointError."""
    weights = matched.weights
    dtype = dtype or _only_dtype(matched)
    lines: Lines = []
    state: dict[str, Tensor] = {}
    for name, row in matched.rows:
        # A copy, since the file may be written over while the model lives.
        stored = weights.read(name).to(dtype, copy=True)
        if not allow_nonfinite and not _is_finite(stored):
            lines.append(("not finite", f"{_described(weights, name)} in {str(dtype).removeprefix('torch.')}"))
        parts = row.layout.read(stored)
        state |= {ours: part.contiguous() for ours, part in zip(row.ours, parts, strict=True)}
    for second, first in matched.tied:
        if not torch.allclose(weights.read(second), weights.read(first), rtol=0, atol=0, equal_nan=True):
            lines.append(("not tied", f"{_described(weights, second)} differs from {printable(first)}"))
    _raise(weights, lines)
    return state


def write(table: Table, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors by their names. Tied names are left out, as transformers leaves them out."""
    return {
        name: row.layout.write(tuple(ours[each].detach() for each in row.ours)).contiguous()
        for name, row in table.saved()
    }


def _canonical(table: Table, weights: Weights) -> tuple[dict[str, str], Lines]:
    """The file's names by the names of the table's rows; a line for every weight that has two."""
    found: dict[str, str] = {}
    lines: Lines = []
    for name in weights.stored:
        bare = table.canonical(name)
        if bare in found:
            lines.append(("there twice", f"{_described(weights, name)} is also {printable(found[bare])}"))
        found.setdefault(bare, name)
    return found, lines


def _shape(row: Row, ours: Mapping[str, Tensor]) -> tuple[int, ...]:
    """The shape that a row's weight has in a file."""
    return tuple(row.layout.write(tuple(ours[name].detach().to("meta") for name in row.ours)).shape)


def _misshapen(weights: Weights, found: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> Iterable:
    for bare, shape in shapes.items():
        if bare not in found:
            continue
        stored = weights.stored[found[bare]]
        if stored.shape != shape:
            yield "misshapen", f"{_described(weights, found[bare])} must be {shape}"
        if stored.dtype not in FLOATING:
            yield "no number", f"{_described(weights, found[bare])} is {stored.dtype}, which no weight is stored in"


def _only_dtype(matched: Matched) -> torch.dtype:
    """The dtype that all weights are stored in."""
    dtypes = sorted({matched.weights.stored[name].dtype for name, _ in matched.rows})
    if len(dtypes) > 1:
        raise CheckpointError(f"{matched.weights.path} mixes {' and '.join(dtypes)}: name the dtype to load it in")
    return getattr(torch, dtypes[0])


def _is_finite(x: Tensor) -> bool:
    # One pass without a copy; both are nan where there is one.
    return x.numel() == 0 or all(bool(extreme.isfinite()) for extreme in x.aminmax())


def _described(weights: Weights, name: str) -> str:
    stored = weights.stored[name]
    where = "" if stored.file == weights.path.name else f" in {stored.file}"
    return f"{printable(name)} {stored.shape}{where}"


def _raise(weights: Weights, lines: Lines) -> None:
    if not lines:
        return
    width = max(len(kind) for kind, _ in lines)
    said = [f"  {kind:<{width}}  {what}" for each in KINDS for kind, what in lines if kind == each]
    if len(said) > MOST_LINES:
        said[MOST_LINES:] = [f"  and {len(said) - MOST_LINES} more"]
    raise CheckpointError("\n".join([f"{weights.path} does not fit the model that config.json describes", *said]))
