"""The strict state-dict check: a file must contain exactly the weights of the model's table; one error lists all differences.

Names, shapes and dtypes are compared before any weight is read; values are checked while they are read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints.tables import Table, WeightMapping
from uwaga.models.checkpoints.weight_files import Weights

FLOATING = ("float64", "float32", "float16", "bfloat16")
# Bounds the error message: an untrusted file may differ in a million names.
MOST_LINES = 200

# Kinds of differences, in the order of the message.
KINDS = ("duplicate", "missing", "unexpected", "wrong shape", "wrong dtype", "not finite", "not tied")
Lines = list[tuple[str, str]]  # one of KINDS, and the weight


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The rows of a table, each with its weight's name in the file."""

    weights: Weights
    rows: tuple[tuple[str, WeightMapping], ...]
    tied: tuple[tuple[str, str], ...]  # (second name, first name) in the file of a tied weight


def match(table: Table, weights: Weights, ours: Mapping[str, Tensor]) -> Matched:
    """Compare the names, shapes and dtypes of a file with a table; `ours` are the model's tensors, for their shapes.

    Raises CheckpointError: all differences.
    """
    rows = table.rows()
    assert {name for row in rows for name in row.ours} == ours.keys(), "the table and the model disagree"
    stored_names, lines = _canonical(table, weights)
    known = {row.theirs for row in rows} | table.tied.keys() | table.unread.keys()
    shapes = {row.theirs: _shape(row, ours) for row in rows}
    shapes |= {second: shapes[first] for second, first in table.tied.items()}
    lines += [
        ("missing", f"{name} {shapes[row.theirs]}") for name, row in table.saved() if row.theirs not in stored_names
    ]
    lines += [("unexpected", _described(weights, name)) for bare, name in stored_names.items() if bare not in known]
    lines += _wrong_shapes_and_dtypes(weights, stored_names, shapes)
    _raise(weights, lines)
    return Matched(
        weights=weights,
        rows=tuple((stored_names[row.theirs], row) for row in rows),
        tied=tuple(
            (stored_names[second], stored_names[first])
            for second, first in table.tied.items()
            if second in stored_names and stored_names[second] != stored_names[first]
        ),
    )


def read(matched: Matched, dtype: torch.dtype | None, *, allow_nonfinite: bool) -> dict[str, Tensor]:
    """The state dict by our names, copied from the files; dtype None: that of the files.

    Raises CheckpointError: NaN or infinite values unless allow_nonfinite, tied weights that differ, several dtypes without `dtype`.
    """
    weights = matched.weights
    dtype = dtype or only_dtype(matched)
    lines: Lines = []
    state: dict[str, Tensor] = {}
    for name, row in matched.rows:
        # A copy: the file may be overwritten while the model is in use.
        stored = weights.read(name).to(dtype, copy=True)
        if not allow_nonfinite and not is_finite(stored):
            lines.append(("not finite", f"{_described(weights, name)} in {str(dtype).removeprefix('torch.')}"))
        parts = row.layout.read(stored)
        state |= {ours: part.contiguous() for ours, part in zip(row.ours, parts, strict=True)}
    for second, first in matched.tied:
        if not torch.allclose(weights.read(second), weights.read(first), rtol=0, atol=0, equal_nan=True):
            lines.append(("not tied", f"{_described(weights, second)} differs from {printable(first)}"))
    _raise(weights, lines)
    return state


def write(table: Table, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict by their names, without the second names of tied weights, as transformers saves it."""
    return {
        name: row.layout.write(tuple(ours[each].detach() for each in row.ours)).contiguous()
        for name, row in table.saved()
    }


def _canonical(table: Table, weights: Weights) -> tuple[dict[str, str], Lines]:
    """The file's names by the table's names, and a line for every weight with two names. A tied weight may have any one of its names, as
    in transformers, which reads whichever is there."""
    stored_names: dict[str, str] = {}
    lines: Lines = []
    for name in weights.stored:
        bare = table.canonical(name)
        if bare in stored_names:
            lines.append(("duplicate", f"{_described(weights, name)} is also {printable(stored_names[bare])}"))
        stored_names.setdefault(bare, name)
    for second, first in table.tied.items():
        if second in stored_names:
            stored_names.setdefault(first, stored_names[second])
    return stored_names, lines


def _shape(row: WeightMapping, ours: Mapping[str, Tensor]) -> tuple[int, ...]:
    """The shape that a row's weight has in a file."""
    return tuple(row.layout.write(tuple(ours[name].detach().to("meta") for name in row.ours)).shape)


def _wrong_shapes_and_dtypes(
    weights: Weights, stored_names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> Iterable:
    for bare, shape in shapes.items():
        if bare not in stored_names:
            continue
        stored = weights.stored[stored_names[bare]]
        if stored.shape != shape:
            yield "wrong shape", f"{_described(weights, stored_names[bare])} must be {shape}"
        if stored.dtype not in FLOATING:
            yield (
                "wrong dtype",
                f"{_described(weights, stored_names[bare])} is {stored.dtype}, not a floating dtype of weights",
            )


def only_dtype(matched: Matched) -> torch.dtype:
    """The dtype of all weights in the file. Raises CheckpointError: there are several."""
    dtypes = sorted({matched.weights.stored[name].dtype for name, _ in matched.rows})
    if len(dtypes) > 1:
        raise CheckpointError(
            f"{matched.weights.path} mixes {' and '.join(dtypes)}: choose one with the argument dtype"
        )
    return getattr(torch, dtypes[0])


def is_finite(x: Tensor) -> bool:
    """Whether no element is NaN or infinite."""
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
    said = [f"  {kind:<{width}}  {what}" for each in KINDS for kind, what in lines if kind == each]
    if len(said) > MOST_LINES:
        said[MOST_LINES:] = [f"  and {len(said) - MOST_LINES} more"]
    raise CheckpointError("\n".join([f"{weights.path} does not match the model of config.json", *said]))
