"""What the engines of a map take beside the call: second masks, calls of other scores, the sequences of a ragged map.

Letters: B sequences, H query heads, Q queries, K keys, R ragged rows, N packed tokens.
"""

import dataclasses
from dataclasses import replace

import torch
from torch import Tensor

from uwaga.maps.spec import Normalizer
from uwaga.ops.attention import check
from uwaga.ops.attention.call import Call
from uwaga.ops.mask_program import MaskProgram, Start
from uwaga.ops.masks import Mask, as_mask
from uwaga.ops.ragged import Ragged
from uwaga.ops.score_shape import ScoreShape

Program = tuple[tuple[int, ...], tuple[Tensor, ...]]

_INFINITY = float("inf")


def lengths(call: Call) -> tuple[Tensor, Tensor]:
    """(B,) int64 each: the queries and the keys of every sequence."""
    if call.query_offsets is not None and call.key_offsets is not None:
        return call.query_offsets.diff(), call.key_offsets.diff()
    whole = torch.full((call.query.shape[0],), 1, device=call.query.device)
    return whole * call.query.shape[2], whole * call.key.shape[2]


def program(mask: object, sizes: ScoreShape, call: Call) -> Program:
    """A mask as a second program over the same scores."""
    made = as_mask(mask).over(sizes)
    for tensor in made.tensors:
        check.same_device("mask", tensor, call.query)
    return tuple(made.records), tuple(made.tensors)


def first_key(sizes: ScoreShape, call: Call) -> Program:
    """The mask that shows the first key of every sequence."""
    made = MaskProgram(sizes)
    made.lengths(lengths(call)[1].clamp(max=1).reshape(sizes.batch))
    return tuple(made.records), tuple(made.tensors)


def diagonal(offset: int, start: Start, sizes: ScoreShape, call: Call) -> Program:
    """The mask that shows query i the key i + start + offset alone."""
    made = MaskProgram(sizes)
    made.band(offset, offset, start)
    for tensor in made.tensors:
        check.same_device("start", tensor, call.query)
    return tuple(made.records), tuple(made.tensors)


def sink_share(normalizer: Normalizer, sinks_H: Tensor | None) -> Tensor:
    """(B, H, Q): exp(sink) / (sum_j exp(s_ij) + exp(sink)), 0 without sinks."""
    if sinks_H is None:
        return torch.zeros_like(normalizer.sum)
    is_empty = normalizer.sum == 0  # no visible key, and a sink of -inf
    exponential_BHQ = (sinks_H.detach()[:, None] - normalizer.maximum).exp()
    return torch.where(is_empty, 0.0, exponential_BHQ / torch.where(is_empty, 1.0, normalizer.sum))


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
    if not isinstance(mask, Mask) or not dataclasses.is_dataclass(mask):
        return repr(mask)
    parts = ", ".join(f"{field.name}={describe(getattr(mask, field.name))}" for field in dataclasses.fields(mask))
    return f"{type(mask).__name__}({parts})"
