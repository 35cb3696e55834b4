"""What the layers share: one way through padded tensors and Ragged batches, and where their tokens stand.

Letters: B batch, Q tokens of a padded row, M model width, N packed tokens, R ragged rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from uwaga._base.shapes import NamedShape, shape_error
from uwaga._base.tracing import is_readable
from uwaga.ops.ragged import Operand, Ragged


def carry(function: Callable[..., Tensor], x: Operand, *others: Operand) -> Operand:
    """`function` of tensors, or of the values of Ragged batches over the same sequences: the same kind as x comes back.

    >>> batch = Ragged(torch.ones(3, 2), torch.tensor([0, 1, 3]))
    >>> carry(torch.add, batch, batch).values.sum()
    tensor(12.)
    """
    if isinstance(x, Ragged):
        return x.with_values(function(x.values, *(other.values for other in others)))
    return function(x, *others)


def contents(x: Operand) -> Tensor:
    """The tensor itself, or the packed values."""
    return x.values if isinstance(x, Ragged) else x


def dropped(dropout: nn.Module, x: Tensor) -> Tensor:
    """`dropout` of x, without the microseconds of a module where it drops nothing. Another module may stand in its place."""
    if type(dropout) is nn.Dropout and not (dropout.p and dropout.training):
        return x
    found: Tensor = dropout(x)
    return found


def need_width(layer: str, name: str, x: Operand, width: int) -> None:
    """ShapeError unless x is (..., Q, width), or Ragged with values (N, width)."""
    values = contents(x)
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


def places(layer: str, x: Operand, start: int | Tensor) -> Tensor:
    """int64 positions of the tokens: (Q,) for a number `start`, (..., Q) for one start per row, (N,) of a Ragged batch.

    start: the position of the first token of every row, or integers (B,), one per row (ragged: (R,)).
    """
    _need_starts(layer, x, start)
    values = contents(x)
    if not isinstance(x, Ragged):
        first = start[..., None] if isinstance(start, Tensor) else start
        return first + torch.arange(values.shape[-2], device=values.device)
    token_N = torch.arange(values.shape[0], device=values.device)
    row_N = torch.searchsorted(x.offsets[1:], token_N, right=True)
    first_N = start[row_N] if isinstance(start, Tensor) else start
    return token_N - x.offsets[row_N] + first_N


def _need_starts(layer: str, x: Operand, start: int | Tensor) -> None:
    if not isinstance(start, Tensor):
        least = start
    else:
        _need_one_per_row(layer, x, start)
        least = int(start.min()) if is_readable(start) and start.numel() else 0
    if least < 0:
        raise ValueError(f"{layer}: start must be at least 0, not {least}")


def _need_one_per_row(layer: str, x: Operand, start: Tensor) -> None:
    rows = (len(x),) if isinstance(x, Ragged) else tuple(x.shape[:-2])
    if start.shape != rows:
        tensors = [NamedShape(name="start", shape=tuple(start.shape), letters=("",) * start.dim())]
        raise shape_error(
            layer, f"start must be a number or one per row, {rows}", tensors, "start", "has another shape"
        )


def _letters(rank: int) -> tuple[str, ...]:
    leading = {2: (), 3: ("B",)}.get(rank, tuple(f"B{n + 1}" for n in range(rank - 2)))
    return (*leading, "Q", "M")
