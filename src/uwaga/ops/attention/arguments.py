"""From what the user passed to a Call, and back. Everything that can be wrong with a call is found here.

The common case must stay cheap: its shapes are compared once, and only a failure looks for the words to say.
Letters as in api.py.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.ops.attention import check, relative_bias
from uwaga.ops.attention.call import Call, Options, compute_dtype
from uwaga.ops.biases import DistanceBias
from uwaga.ops.mask_program import START_LAST, MaskProgram
from uwaga.ops.masks import Mask, as_mask
from uwaga.ops.ragged import Operand, Ragged
from uwaga.ops.score_shape import ScoreShape


class Extras(NamedTuple):
    """What mask, bias and sinks add to a call: fields of Call and Options, with what they are where there is none."""

    mask_program: MaskProgram = ()
    mask_tensors: tuple[Tensor, ...] = ()
    bias: Tensor | None = None
    sinks: Tensor | None = None
    relative: Tensor | None = None
    relative_starts: Tensor | None = None
    relative_zero: int = 0
    relative_start_mode: int = START_LAST
    relative_start: int = 0


_NO_EXTRAS = Extras()


def make_call(
    query: Operand,
    key: Operand,
    value: Operand | None,
    mask: Mask | Tensor | None,
    bias: DistanceBias | Tensor | None,
    scale: float | None,
    normalize: str | None,
    softcap: float | None,
    sinks: Tensor | None,
    dropout: float,
    wants_lse: bool,
) -> Call:
    """The validated call. Positional, since it is on the path of every call and takes all of `attention`'s arguments.

    Without a value, its value has the width E = 0.
    """
    is_ragged = isinstance(query, Ragged) or isinstance(key, Ragged) or isinstance(value, Ragged)
    if is_ragged:
        check.ragged(query, key, value)
        q, k = packed(query.values), packed(key.values)
        v = k[..., :0] if value is None else packed(value.values)
        longest = (query.max_length, key.max_length)
    else:
        check.dense(query, key, value)
        q, k = four(query), four(key)
        v = k[..., :0] if value is None else four(value)
        longest = (q.shape[2], k.shape[2])
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[3])
    check.options(scale, normalize, softcap, sinks, dropout)

    extras = _NO_EXTRAS
    if mask is not None or bias is not None or sinks is not None:
        extras = _extras(mask, bias, sinks, _sizes(query, key, value, q.shape[1], longest), q)
    return Call(
        query=q,
        key=k,
        value=v,
        relative=extras.relative,
        bias=extras.bias,
        sinks=extras.sinks,
        query_offsets=query.offsets if is_ragged else None,
        key_offsets=key.offsets if is_ragged else None,
        relative_starts=extras.relative_starts,
        seed=torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu") if dropout else None,
        mask_tensors=extras.mask_tensors,
        options=Options(
            scale=float(scale),
            softcap=float(softcap or 0.0),
            softmax=normalize is not None,
            dropout=float(dropout),
            mask_program=extras.mask_program,
            relative_zero=extras.relative_zero,
            relative_start_mode=extras.relative_start_mode,
            relative_start=extras.relative_start,
            max_queries=longest[0],
            max_keys=longest[1],
            wants_lse=wants_lse,
        ),
    )


def restore(query: Operand, output_BHQE: Tensor) -> Operand:
    """The output with the query's own dimensions."""
    if isinstance(query, Ragged):
        values = output_BHQE[0].transpose(0, 1)
        return query.with_values(values if query.values.dim() == 3 else values[:, 0])
    rank = query.dim()
    if rank == 4:
        return output_BHQE
    return output_BHQE[(0,) * (4 - rank)] if rank < 4 else output_BHQE.unflatten(0, query.shape[:-3])


def restore_lse(query: Operand, lse_BHQ: Tensor) -> Operand:
    """The lse with the query's own dimensions, less its width."""
    return restore(query, lse_BHQ[..., None]).squeeze(-1) if isinstance(query, Tensor) else _squeeze(query, lse_BHQ)


def _squeeze(query: Ragged, lse_BHQ: Tensor) -> Ragged:
    values = lse_BHQ[0].transpose(0, 1)
    return query.with_values(values if query.values.dim() == 3 else values[:, 0])


def four(x: Tensor) -> Tensor:
    """(B, H, Q, D), a view wherever the leading dimensions allow it."""
    x = x.resolve_neg()
    rank = x.dim()
    if rank == 4:
        return x
    return x[(None,) * (4 - rank)] if rank < 4 else x.flatten(0, -4)


def packed(values: Tensor) -> Tensor:
    """(1, H, N, D), a view of (N, H, D) or (N, D)."""
    values = values.resolve_neg()
    return values.transpose(0, 1)[None] if values.dim() == 3 else values[None, None]


def score_shape(query: Operand, key: Operand, call: Call) -> ScoreShape:
    """What a further mask would be laid over: the scores of a call without a value."""
    return _sizes(query, key, None, call.query.shape[1], (call.options.max_queries, call.options.max_keys))


def _sizes(query: Operand, key: Operand, value: Operand | None, heads: int, longest: tuple[int, int]) -> ScoreShape:
    named = partial(check.named, query, key, value)
    if isinstance(query, Ragged):
        return ScoreShape(
            queries=longest[0],
            keys=longest[1],
            batch=(len(query),),
            heads=heads,
            query_offsets=query.offsets,
            key_offsets=key.offsets,
            query_tokens=query.values.shape[0],
            key_tokens=key.values.shape[0],
            operands=named,
        )
    batch = tuple(query.shape[:-3])
    return ScoreShape(
        queries=longest[0], keys=longest[1], batch=batch, heads=heads, matrix=query.dim() == 2, operands=named
    )


def _extras(mask, bias, sinks: Tensor | None, sizes: ScoreShape, q: Tensor) -> Extras:
    """Mask, bias and sinks as the fields of a Call and its Options."""
    found = {}
    if mask is not None:
        made = as_mask(mask).over(sizes)
        for tensor in made.tensors:
            check.same_device("mask", tensor, q)
        found |= {"mask_program": made.program, "mask_tensors": tuple(made.tensors)}
    if bias is not None:
        check.bias(bias, sizes, q)
        if isinstance(bias, Tensor):
            found["bias"] = sizes.per_score("bias", bias.resolve_neg())
        else:
            found |= relative_bias.lower(bias, sizes, compute_dtype(q.dtype), q.device)
    if sinks is not None:
        check.sinks(sinks, sizes, q)
        found["sinks"] = sinks.resolve_neg().to(compute_dtype(q.dtype)).contiguous()
    return Extras(**found)
