"""What goes into every model: token ids, and which of them are there. Letters: B batch, Q tokens, N packed tokens.

This is the door that validates for the models; their layers rely on it.
"""

import torch
from torch import Tensor

from uwaga._base.shapes import NamedShape, shape_error
from uwaga._base.tracing import is_readable
from uwaga.ops.masks import KeyLengths, Mask
from uwaga.ops.ragged import Operand, Ragged

_INTEGERS = (torch.int64, torch.int32)


def check_ids(model: str, name: str, ids: Operand, size: int) -> None:
    """Integer ids (..., Q), or Ragged (N,), from 0 to size - 1; their values are looked at where that is free."""
    values = ids.values if isinstance(ids, Ragged) else ids
    if values.dtype not in _INTEGERS:
        raise ValueError(f"{model}: {name} must be int64 or int32, not {values.dtype}")
    if values.dim() < 1 or (isinstance(ids, Ragged) and values.dim() != 1):
        form = "Ragged with values (N,)" if isinstance(ids, Ragged) else "(..., Q)"
        raise shape_error(model, f"{name} must be {form}", [_named(name, values)], name, f"has rank {values.dim()}")
    if is_readable(values) and values.numel():
        low, high = (int(extreme) for extreme in values.aminmax())
        if low < 0 or high >= size:
            raise ValueError(f"{model}: {name} must lie between 0 and {size - 1}, but they reach from {low} to {high}")


def check_tokens(model: str, ids: Operand, most: int) -> None:
    """No row is longer than the model has positions for."""
    tokens = ids.max_length if isinstance(ids, Ragged) else ids.shape[-1]
    if tokens > most and not (isinstance(ids, Ragged) and torch.compiler.is_compiling()):
        raise ValueError(f"{model}: a row has {tokens} tokens, and the model has positions for {most}")


def check_alike(model: str, ids: Operand, name: str, other: Operand) -> None:
    """`other` says something about each of the ids."""
    values, others = (x.values if isinstance(x, Ragged) else x for x in (ids, other))
    if isinstance(ids, Ragged) != isinstance(other, Ragged):
        raise ValueError(f"{model}: ids and {name} must both be Ragged, or neither")
    if values.shape != others.shape:
        tensors = [_named("ids", values), _named(name, others)]
        raise shape_error(model, f"{name} must have the shape of ids", tensors, name, "has another")


def key_mask(model: str, ids: Operand, lengths: Tensor | None, attention_mask: Tensor | None) -> Mask | Tensor | None:
    """Which keys are tokens, as a mask of attention: None where all are.

    Args:
        model: the name for messages.
        ids: (..., Q), or Ragged, which has no padding and takes neither of the other two.
        lengths: integers that broadcast to the batch: each row's tokens come first.
        attention_mask: (..., Q) bool, True is a token; padding may stand anywhere.
    """
    if lengths is None and attention_mask is None:
        return None
    if isinstance(ids, Ragged):
        raise ValueError(f"{model}: Ragged ids have no padding: lengths and attention_mask are for padded ones")
    if attention_mask is None:
        assert lengths is not None
        return KeyLengths(lengths)
    if lengths is not None:
        raise ValueError(f"{model}: lengths and attention_mask say the same thing; give one of them")
    check_alike(model, ids, "attention_mask", attention_mask)
    if attention_mask.dtype != torch.bool:
        raise ValueError(f"{model}: attention_mask must be bool (True is a token), not {attention_mask.dtype}")
    counted = attention_mask.sum(-1)
    comes_first = torch.arange(ids.shape[-1], device=ids.device) < counted[..., None]
    # Engines skip whole blocks behind a length, and look at every bit of any other mask.
    if is_readable(attention_mask) and torch.equal(comes_first, attention_mask):
        return KeyLengths(counted)
    return attention_mask[..., None, None, :]


def first_tokens(model: str, x: Operand, attention_mask: Tensor | None) -> Tensor:
    """(..., M): the state of the first token of each row of (..., Q, M), (R, M) of Ragged (N, M)."""
    if isinstance(x, Ragged):
        starts = x.offsets[:-1]
        if is_readable(x.offsets) and bool((starts == x.offsets[1:]).any()):
            row = int((starts == x.offsets[1:]).int().argmax())
            raise ValueError(f"{model}: row {row} is empty, and has no first token to pool")
        return x.values[starts]
    if x.shape[-2] == 0:
        raise ValueError(f"{model}: the rows are empty, and have no first token to pool")
    if attention_mask is None:
        return x[..., 0, :]
    first = attention_mask.int().argmax(-1)[..., None, None]
    return x.take_along_dim(first, -2).squeeze(-2)


def _named(name: str, values: Tensor) -> NamedShape:
    return NamedShape(name=name, shape=tuple(values.shape), letters=("",) * values.dim())
