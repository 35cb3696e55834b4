"""Operations on padded tensors and Ragged batches alike.

Letters: B batch, Q tokens of a padded row, M model width, N packed tokens, R ragged rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from uwaga._base.shapes import NamedShape, shape_error
from uwaga._base.tracing import check_in_graph, is_readable
from uwaga.ops.ragged import Operand, Ragged

INTEGERS = (torch.int64, torch.int32)  # dtypes of ids and lengths


def map_values(function: Callable[..., Tensor], x: Operand, *others: Operand) -> Operand:
    """Compute `function` of the tensors, or of the values of Ragged batches over the same sequences; the result is of the kind of x.

    >>> import torch
    >>> batch = Ragged(torch.ones(3, 2), torch.tensor([0, 1, 3]))
    >>> map_values(torch.add, batch, batch).values.sum()
    tensor(12.)
    """
    if isinstance(x, Ragged):
        return x.with_values(function(x.values, *(other.values for other in others)))
    return function(x, *others)


def values_of(x: Operand) -> Tensor:
    """Return the tensor itself, or the packed values of a Ragged batch."""
    return x.values if isinstance(x, Ragged) else x


def detached(x: Operand) -> Operand:
    """Return the same numbers, without their graph."""
    return map_values(torch.Tensor.detach, x)


def tokens_of_rows(name: str, x: Operand, only: str) -> Tensor:
    """Return (R,): indices of the "first" or the "last" tokens of the rows of a Ragged batch. name: of who asks.

    Raises ValueError: another `only`, a padded batch, or an empty row.
    """
    if only not in ("first", "last"):
        wrong = f"only must be None, 'first' or 'last', not {only!r}"
    elif not isinstance(x, Ragged):
        wrong = f"only={only!r} is for Ragged batches, not for padded ones"
    elif x.first is not None:
        wrong = f"the first row of this part of a batch began in another process, and has no {only} token here"
    elif is_readable(x.offsets) and bool((is_empty := x.lengths == 0).any()):
        wrong = f"row {int(is_empty.int().argmax())} is empty: it has no {only} token"
    else:
        wrong = ""
    if wrong or not isinstance(x, Ragged):
        raise ValueError(f"{name}: {wrong}")
    check_in_graph(x.offsets, lambda: (x.lengths > 0).all(), f"{name}: a row is empty: it has no {only} token")
    return x.offsets[:-1] if only == "first" else x.offsets[1:] - 1


def one_per_row(x_R: Tensor) -> Ragged:
    """Return a batch with one token in each row, Ragged (R, ...)."""
    return Ragged(x_R, torch.arange(len(x_R) + 1, device=x_R.device), max_length=min(1, len(x_R)))


def check_width(layer: str, name: str, x: Operand, width: int) -> None:
    """Raise ShapeError unless x is (..., Q, width), or Ragged with values (N, width)."""
    values = values_of(x)
    rank = values.dim()
    if (rank == 2 or (rank > 2 and not isinstance(x, Ragged))) and values.shape[-1] == width:
        return
    letters = ("N", "M") if isinstance(x, Ragged) else _letters(rank)
    shown = NamedShape(name=name, shape=tuple(values.shape), letters=letters)
    if rank < 2 or len(letters) != rank:
        form = "Ragged with values (N, M)" if isinstance(x, Ragged) else "(..., Q, M)"
        raise shape_error(layer, f"{name} must be {form}", [shown], name, f"has rank {values.dim()}")
    rule = f"{name} must have the width {width} that this layer was made for"
    raise shape_error(layer, rule, [shown], name, f"has width {values.shape[-1]}")


def _letters(rank: int) -> tuple[str, ...]:
    leading = {2: (), 3: ("B",)}.get(rank, tuple(f"B{n + 1}" for n in range(rank - 2)))
    return (*leading, "Q", "M")


def check_ids(model: str, name: str, ids: Operand, size: int, max_tokens: int | None = None) -> None:
    """Raise ShapeError or ValueError unless ids are int64 or int32 (..., Q), or Ragged (N,), from 0 to size - 1.

    No row may be longer than max_tokens, the number of the model's positions.

    Values are read only where that needs no synchronisation: not while tracing, and not on an accelerator.
    """
    values = values_of(ids)
    if values.dtype not in INTEGERS:
        raise ValueError(f"{model}: {name} must be int64 or int32, not {values.dtype}")
    if values.dim() < 1 or (isinstance(ids, Ragged) and values.dim() != 1):
        form = "Ragged with values (N,)" if isinstance(ids, Ragged) else "(..., Q)"
        raise shape_error(
            model, f"{name} must be {form}", [named_shape(name, values)], name, f"has rank {values.dim()}"
        )
    if is_readable(values) and values.numel():
        low, high = map(int, values.aminmax())
        if low < 0 or high >= size:
            raise ValueError(f"{model}: {name} must lie between 0 and {size - 1}, but range from {low} to {high}")
    if max_tokens is None:
        return
    tokens = ids.max_length if isinstance(ids, Ragged) else ids.shape[-1]
    if isinstance(ids, Ragged) and ids.first:  # of a part of a batch
        tokens = max(tokens, ids.first + int(ids.offsets[1]))
    if tokens > max_tokens and not (isinstance(ids, Ragged) and torch.compiler.is_compiling()):
        raise ValueError(f"{model}: a row has {tokens} tokens; the model has {max_tokens} positions")


def named_shape(name: str, values: Tensor) -> NamedShape:
    return NamedShape(name=name, shape=tuple(values.shape), letters=("",) * values.dim())
