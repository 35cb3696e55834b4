"""From what a user passes to a map to what its engines take, beside the call itself.

Letters: B sequences, H query heads, Q queries, K keys, R ragged rows, N packed tokens.
"""

import dataclasses
from dataclasses import replace

import torch
from torch import Tensor

from uwaga._base.shapes import Named, shape_error
from uwaga.maps.spec import Normalizer
from uwaga.maps.tiles import log_sum_exp as log_sum_exp
from uwaga.ops.attention import check
from uwaga.ops.attention.lower import Operand
from uwaga.ops.attention.spec import Call, compute_dtype
from uwaga.ops.mask_program import MaskProgram
from uwaga.ops.masks import Mask, as_mask
from uwaga.ops.ragged import Ragged
from uwaga.ops.sizes import Sizes

Program = tuple[tuple[int, ...], tuple[Tensor, ...]]

_INFINITY = float("inf")


def normalizer(lse: Operand, query: Operand, call: Call) -> Normalizer:
    """A normalizer from the lse that the user knows.

    Raises:
        ShapeError, ValueError: one that does not fit the query.
    """
    return of_lse(rows_of("lse", lse, query, call, exact=True))


def of_lse(lse_BHQ: Tensor) -> Normalizer:
    """A normalizer whose sums are 1, and 0 where the lse is -inf."""
    is_empty = lse_BHQ.detach() == -_INFINITY
    return Normalizer(torch.where(is_empty, 0.0, lse_BHQ.detach()), (~is_empty).to(lse_BHQ.dtype))


def rows_of(name: str, given: Operand, query: Operand, call: Call, *, exact: bool = False) -> Tensor:
    """(B, H, Q) in the dtype of the arithmetic, from a number per query in the query's own dimensions.

    Args:
        exact: whether broadcasting is refused.
    """
    if isinstance(given, Ragged) != isinstance(query, Ragged):
        kinds = ["Ragged" if isinstance(x, Ragged) else type(x).__name__ for x in (given, query)]
        raise ValueError(
            f"AttentionMap: {name} must be Ragged where the query is, but {name} is {kinds[0]}, query {kinds[1]}"
        )
    if isinstance(given, Ragged) and not torch.equal(given.offsets, query.offsets):
        raise ValueError(f"AttentionMap: {name} must have the query's offsets")
    compute = compute_dtype(call.query.dtype)
    values, operand = (given.values, query.values) if isinstance(given, Ragged) else (given, query)
    if not isinstance(values, Tensor):
        raise ValueError(f"AttentionMap: {name} must be a tensor, not {type(values).__name__}")
    if not values.dtype.is_floating_point or (exact and values.dtype != compute):
        kind = str(compute) if exact else "floating"
        raise ValueError(f"AttentionMap: {name} must be {kind}, not {values.dtype}")
    check_device(name, values, call)
    shape = tuple(operand.shape[:-1])
    if isinstance(given, Ragged) and len(values) == len(operand) and values.dim() == 1 and not exact:
        values = values.reshape(-1, *(1,) * (operand.dim() - 2))  # a number per token, for all heads
    if values.shape != shape and (exact or not _broadcasts(values.shape, shape)):
        rule = f"{name} must {'be' if exact else 'broadcast to'} {shape}, a number per query"
        tensors = [
            Named(name=n, shape=tuple(x.shape), letters=("",) * x.dim())
            for n, x in (("query", operand), (name, values))
        ]
        raise shape_error("AttentionMap", rule, tensors, name, "is not" if exact else "does not broadcast")
    values = values.to(compute).expand(shape)
    if isinstance(given, Ragged):
        return (values.movedim(0, -1) if values.dim() == 2 else values[None])[None]
    return values.reshape(call.query.shape[:3])


def row_weights(last: int | None, weights: Operand | None, query: Operand, call: Call) -> Tensor | None:
    """(B, H, Q): the weights of the rows, zero before the last so many of each sequence; None for ones."""
    given = None if weights is None else rows_of("weights", weights, query, call)
    if last is None:
        return given
    if isinstance(last, bool) or not isinstance(last, int) or last < 1:
        raise ValueError(f"AttentionMap.received: last must be at least 1, not {last!r}")
    is_last = _from_end(call) < last
    if given is None:
        return is_last.to(compute_dtype(call.query.dtype)).expand(call.query.shape[:3])
    return torch.where(is_last, given, 0.0)


def _from_end(call: Call) -> Tensor:
    """(Q,): how many queries of the same sequence come after each."""
    queries = torch.arange(call.query.shape[2], device=call.query.device)
    if call.query_offsets is None:
        return call.query.shape[2] - 1 - queries
    ends = call.query_offsets[1:].repeat_interleave(call.query_offsets.diff())
    return ends - 1 - queries


def lengths(call: Call) -> tuple[Tensor, Tensor]:
    """(B,) int64 each: the queries and the keys of every sequence."""
    if call.query_offsets is not None:
        return call.query_offsets.diff(), call.key_offsets.diff()
    batch, device = call.query.shape[0], call.query.device
    return tuple(torch.full((batch,), x.shape[2], device=device) for x in (call.query, call.key))


def program(mask: object, sizes: Sizes, call: Call) -> Program:
    """A mask as a second program over the same scores."""
    made = as_mask(mask).over(sizes)
    for tensor in made.tensors:
        check_device("mask", tensor, call)
    return tuple(made.records), tuple(made.tensors)


def first_key(sizes: Sizes, call: Call) -> Program:
    """The mask that shows the first key of every sequence."""
    made = MaskProgram(sizes)
    made.lengths(lengths(call)[1].clamp(max=1).reshape(sizes.batch))
    return tuple(made.records), tuple(made.tensors)


def sink_share(normalizer: Normalizer, sinks_H: Tensor | None) -> Tensor:
    """(B, H, Q): exp(sink) / (sum_j exp(s_ij) + exp(sink)), 0 without sinks."""
    if sinks_H is None:
        return torch.zeros_like(normalizer.sum)
    return (sinks_H.detach()[:, None] - normalizer.maximum).exp() / normalizer.sum


def counting(call: Call) -> Call:
    """A call with the same mask and scores of 0: the sum of its exponentials is the number of visible keys."""
    bias = None if call.bias is None else torch.where(call.bias == -_INFINITY, call.bias.detach(), 0.0)
    zero = call.query.new_zeros(())
    query, key = (zero.expand(*x.shape[:3], 1) for x in (call.query, call.key))
    options = replace(call.options, scale=1.0, softcap=0.0)
    return replace(
        call,
        query=query,
        key=key,
        value=key[..., :0],
        relative=None,
        relative_starts=None,
        sinks=None,
        bias=bias,
        options=options,
    )


def sequences(operand: Ragged) -> list[Tensor]:
    """The sequences of a ragged operand as dense ones, (H, Q, D) or (Q, D)."""
    return [x.movedim(0, -2) for x in operand.to_list()]


def split(known: Normalizer | None, query: Ragged) -> list[Normalizer | None]:
    """The normalizer of every sequence, from that of a ragged map."""
    if known is None:
        return [None] * len(query)
    lengths = query.lengths.tolist()
    return [Normalizer(*x) for x in zip(*(x.split(lengths, dim=2) for x in known), strict=True)]


def describe(mask: object) -> str:
    """A mask as `repr` shows it: tensors by their shapes."""
    if isinstance(mask, Tensor):
        return f"{str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
    if not isinstance(mask, Mask):
        return repr(mask)
    fields = dataclasses.fields(mask)
    parts = ", ".join(f"{field.name}={describe(getattr(mask, field.name))}" for field in fields)
    return f"{type(mask).__name__}({parts})"


def check_device(name: str, tensor: Tensor, call: Call) -> None:
    check.same_device(name, tensor, call.query)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    tail = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(shape, tail, strict=True))
