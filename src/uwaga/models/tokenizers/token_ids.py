"""Token ids as the input of a model: checks, and the attention mask of their padding.

The models check their input here once; their layers do not check it again. Letters: B batch, Q tokens, N packed tokens, R rows.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from uwaga._base.shapes import NamedShape, shape_error
from uwaga._base.tracing import is_readable
from uwaga.ops.masks import KeyLengths, Mask
from uwaga.ops.ragged import Operand, Ragged

_INTEGERS = (torch.int64, torch.int32)


def check_ids(model: str, name: str, ids: Operand, size: int, max_tokens: int | None = None) -> None:
    """ids are int64 or int32 (..., Q), or Ragged (N,), from 0 to size - 1, and no row is longer than max_tokens, the number of the
    model's positions. Raises ShapeError or ValueError.

    Values are read only where that needs no synchronisation: not while tracing, and not on an accelerator.
    """
    values = ids.values if isinstance(ids, Ragged) else ids
    if values.dtype not in _INTEGERS:
        raise ValueError(f"{model}: {name} must be int64 or int32, not {values.dtype}")
    if values.dim() < 1 or (isinstance(ids, Ragged) and values.dim() != 1):
        form = "Ragged with values (N,)" if isinstance(ids, Ragged) else "(..., Q)"
        raise shape_error(model, f"{name} must be {form}", [_named(name, values)], name, f"has rank {values.dim()}")
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


def check_same_shape(model: str, ids: Operand, name: str, other: Operand) -> None:
    """`other` has one value for each id. Raises ShapeError or ValueError."""
    values, others = (x.values if isinstance(x, Ragged) else x for x in (ids, other))
    if isinstance(ids, Ragged) != isinstance(other, Ragged):
        raise ValueError(f"{model}: ids and {name} must both be Ragged, or neither")
    if values.shape != others.shape:
        tensors = [_named("ids", values), _named(name, others)]
        raise shape_error(model, f"{name} must have the shape of ids", tensors, name, "has another")


def padding_mask(
    model: str,
    ids: Operand,
    lengths: Tensor | None,
    attention_mask: Tensor | None,
    key_lengths: Tensor | None = None,
) -> Mask | Tensor:
    """The attention mask that hides padding, or the last tokens of Ragged rows, from queries.

    Args:
        model: the name of the model in error messages.
        ids: (..., Q), or Ragged, which has no padding: lengths and attention_mask must then be None.
        lengths: integers that broadcast to the batch: the number of tokens of each row, padding comes after them.
        attention_mask: (..., Q) bool, True is a token; padding may be anywhere.
        key_lengths: (R,), of Ragged ids alone: the first so many tokens of each row are seen, the others see them and are not seen.

    Raises:
        ShapeError, ValueError: two of them are given, either of them for Ragged ids, a mask of another shape or dtype.
    """
    if attention_mask is not None and not isinstance(ids, Ragged) and lengths is None:
        check_same_shape(model, ids, "attention_mask", attention_mask)
    for rule in _broken_rules(ids, lengths, attention_mask, key_lengths):
        raise ValueError(f"{model}: {rule}")
    if attention_mask is None:
        counted = lengths if key_lengths is None else key_lengths
        assert counted is not None
        return KeyLengths(counted)
    assert isinstance(ids, Tensor)
    lengths = attention_mask.sum(-1)
    is_before_length = torch.arange(ids.shape[-1], device=ids.device) < lengths[..., None]
    # Engines skip whole blocks after a length, and must read every element of a bool mask.
    if is_readable(attention_mask) and torch.equal(is_before_length, attention_mask):
        return KeyLengths(lengths)
    return attention_mask[..., None, None, :]


def _broken_rules(
    ids: Operand, lengths: Tensor | None, attention_mask: Tensor | None, key_lengths: Tensor | None
) -> Iterator[str]:
    """Of the arguments of `padding_mask`."""
    if isinstance(ids, Ragged) and (lengths is not None or attention_mask is not None):
        yield "lengths and attention_mask are for padded ids; Ragged ids have no padding"
    if lengths is not None and attention_mask is not None:
        yield "lengths and attention_mask both describe the padding; give one of them"
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        yield f"attention_mask must be bool (True is a token), not {attention_mask.dtype}"
    if key_lengths is None:
        return
    if not isinstance(ids, Ragged):
        yield "key_lengths is for Ragged ids; padded ids have lengths"
        return
    if key_lengths.dtype not in _INTEGERS or key_lengths.shape != (len(ids),):
        given = f"{key_lengths.dtype} {tuple(key_lengths.shape)}"
        yield f"key_lengths must be int64 or int32 ({len(ids)},), one for each row, not {given}"
    if is_readable(key_lengths) and bool((wrong := (key_lengths < 0) | (key_lengths > ids.lengths)).any()):
        row = int(wrong.int().argmax())
        yield f"key_lengths of row {row} is {int(key_lengths[row])}, and the row has {int(ids.lengths[row])} tokens"


def check_same_rows(model: str, ids: Operand, decoder_ids: Operand) -> None:
    """ids and decoder_ids are both Ragged or neither, and have the same batch dimensions. Raises ValueError."""
    if isinstance(ids, Ragged) != isinstance(decoder_ids, Ragged):
        raise ValueError(f"{model}: ids and decoder_ids must both be Ragged, or neither")
    rows, decoder_rows = _rows(ids), _rows(decoder_ids)
    if rows != decoder_rows:
        raise ValueError(f"{model}: ids and decoder_ids must have the same rows, not {rows} and {decoder_rows}")


def one_per_row(tokens_R: Tensor) -> Ragged:
    """Ragged ids (R,): one token in each row."""
    return Ragged(tokens_R, torch.arange(len(tokens_R) + 1, device=tokens_R.device), max_length=1)


def _rows(ids: Operand) -> tuple[int, ...]:
    return (len(ids),) if isinstance(ids, Ragged) else tuple(ids.shape[:-1])


def _named(name: str, values: Tensor) -> NamedShape:
    return NamedShape(name=name, shape=tuple(values.shape), letters=("",) * values.dim())
