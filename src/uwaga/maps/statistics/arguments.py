"""Convert arguments of AttentionMap to the form of engines: known lse, row weights, second masks, bins.

Letters: B sequences, H query heads, Q queries, K keys, N packed tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from uwaga._base.arguments import check, integer
from uwaga._base.shapes import NamedShape, shape_error
from uwaga.maps.spec import Normalizer
from uwaga.ops.attention.call import Call, compute_dtype
from uwaga.ops.mask_program import MaskProgram, MaskProgramBuilder, Start
from uwaga.ops.masks import as_mask
from uwaga.ops.ragged import Operand, Ragged
from uwaga.ops.score_shape import ScoreShape, broadcasts
from uwaga.ops.validation import check_same_device

# A mask program and its tensors.
Program = tuple[MaskProgram, tuple[Tensor, ...]]
Bins = int | Sequence[int] | Tensor
_MAX_BINS = 2**28  # their edges take 2 GB


def lengths(call: Call) -> tuple[Tensor, Tensor]:
    """Return the numbers of queries and of keys of every sequence, (B,) int64 each."""
    if call.query_offsets is not None and call.key_offsets is not None:
        return call.query_offsets.diff(), call.key_offsets.diff()
    ones = torch.full((call.query.shape[0],), 1, device=call.query.device)
    return ones * call.query.shape[2], ones * call.key.shape[2]


def program(mask: object, sizes: ScoreShape, call: Call) -> Program:
    """Build a mask as a second mask program over the scores of the call."""
    return as_mask(mask).over(sizes).built("mask", call.query)


def first_key(sizes: ScoreShape, keys_B: Tensor) -> Program:
    """Build the mask that shows only the first key of every sequence."""
    made = MaskProgramBuilder(sizes)
    made.lengths(keys_B.clamp(max=1).reshape(sizes.batch))
    return made.built("lengths", keys_B)


def diagonal(offset: int, start: Start, sizes: ScoreShape, call: Call) -> Program:
    """Build the mask that shows query i only key i + start + offset."""
    made = MaskProgramBuilder(sizes)
    made.band(offset, offset, start)
    return made.built("start", call.query)


def normalizer(lse: Operand, query: Operand, call: Call) -> Normalizer:
    """Return the normalizer of an lse that the user passes.

    Raises:
        ShapeError, ValueError: its dtype, device or shape does not fit the query.
    """
    values, operand = _values("lse", lse, query)
    if values.dtype != compute_dtype(operand.dtype):
        raise ValueError(f"AttentionMap: lse must be {compute_dtype(operand.dtype)}, not {values.dtype}")
    if values.shape != operand.shape[:-1]:
        raise _misfit("lse", values, operand, f"must be {tuple(operand.shape[:-1])}", "is not")
    return of_lse(_lowered(values, call))


def of_lse(lse_BHQ: Tensor) -> Normalizer:
    """Return the normalizer of an lse: maximum lse and sum 1; 0 and 0 if the lse is -inf."""
    is_empty = lse_BHQ.detach() == -float("inf")
    return Normalizer(torch.where(is_empty, 0.0, lse_BHQ.detach()), (~is_empty).to(lse_BHQ.dtype))


def row_weights(
    last: int | None, weights: Operand | None, query: Operand, call: Call, following: int | Tensor = 0
) -> Tensor | None:
    """Return the weights of the rows, (B, H, Q), 0 before the last `last` queries of each sequence; None if all are 1.

    following: the number of queries of the sequence after the call's queries, for all or for each of its queries.

    Raises:
        ShapeError, ValueError: weights that do not broadcast to the queries, or `last` below 1.
    """
    values = None if weights is None else _row_weights(weights, query, call)
    if last is None:
        return values
    # Compared with an int64 that is larger than any sequence.
    is_last = _from_end(call) + following < min(integer(last, "AttentionMap.received: last", 1, 1 << 80), 2**62)
    if values is None:
        return is_last.to(compute_dtype(call.query.dtype)).expand(call.query.shape[:3])
    return torch.where(is_last, values, 0.0)


def _row_weights(weights: Operand, query: Operand, call: Call) -> Tensor:
    values, operand = _values("weights", weights, query)
    check(values.dtype.is_floating_point, f"AttentionMap: weights must be floating, not {values.dtype}")
    shape = tuple(operand.shape[:-1])
    if isinstance(query, Ragged) and values.dim() == 1:
        values = values.reshape(-1, *(1,) * (len(shape) - 1))  # one per token, for all heads
    if not broadcasts(values.shape, shape):
        raise _misfit("weights", values, operand, f"must broadcast to {shape}", "does not broadcast")
    return _lowered(values.resolve_neg().to(compute_dtype(operand.dtype)).expand(shape), call)


def _values(name: str, argument: Operand, query: Operand) -> tuple[Tensor, Tensor]:
    """Return argument and query as tensors, packed if ragged. Raises ValueError: only one of them is ragged."""
    if isinstance(argument, Ragged) != isinstance(query, Ragged):
        kinds = ["Ragged" if isinstance(x, Ragged) else type(x).__name__ for x in (argument, query)]
        rule = f"{name} must be Ragged if the query is"
        raise ValueError(f"AttentionMap: {rule}, but {name} is {kinds[0]}, query {kinds[1]}")
    if isinstance(argument, Ragged) and isinstance(query, Ragged):
        check(torch.equal(argument.offsets, query.offsets), f"AttentionMap: {name} must have the query's offsets")
        argument, query = argument.values, query.values
    if not isinstance(argument, Tensor):
        raise ValueError(f"AttentionMap: {name} must be a tensor, not {type(argument).__name__}")
    assert isinstance(query, Tensor)
    check_same_device(name, argument, query)
    return argument, query


def _lowered(values: Tensor, call: Call) -> Tensor:
    """Reshape the dimensions of the query without D to (B, H, Q)."""
    if call.query_offsets is None:
        return values.reshape(call.query.shape[:3])
    return (values.movedim(0, -1) if values.dim() == 2 else values[None])[None]


def _from_end(call: Call) -> Tensor:
    """Return the number of queries after each query in its sequence, (Q,)."""
    queries = torch.arange(call.query.shape[2], device=call.query.device)
    if call.query_offsets is None:
        return call.query.shape[2] - 1 - queries
    ends = call.query_offsets[1:].repeat_interleave(call.query_offsets.diff())
    return ends - 1 - queries


def _misfit(name: str, values: Tensor, operand: Tensor, rule: str, note: str) -> ValueError:
    both = (("query", operand), (name, values))
    tensors = [NamedShape(name=n, shape=tuple(x.shape), letters=("",) * x.dim()) for n, x in both]
    return shape_error("AttentionMap", f"{name} {rule}, one value per query", tensors, name, note)


def bin_edges(bins: Bins, sizes_B: Tensor, batch: tuple[int, ...], name: str) -> Tensor:
    """Return the edges (B, n+1) int64 of n ranges of an axis with sizes (B,).

    Args:
        bins: a number n of equal ranges, where range b is [floor(b * Q / n), floor((b + 1) * Q / n)), empty for some b if
            n > Q; or ascending edges, (n+1,) or (batch..., n+1).

    Raises:
        ValueError: no range, or edges that descend or lie outside a sequence.
    """
    if isinstance(bins, int) and not isinstance(bins, bool):
        bins = integer(bins, f"AttentionMap.pool: {name}", 1, _MAX_BINS)
        return torch.arange(bins + 1, device=sizes_B.device) * sizes_B[:, None] // bins
    edges = _integers(bins, sizes_B, f"AttentionMap.pool: {name} must be a number or a list of ascending edges")
    if edges.shape[-1:] == (0,) or not _fits(edges.shape[:-1], batch) or edges.dim() == 0:
        want = "(n+1,)" if not batch else f"(n+1,) or {(*batch, 'n+1')}".replace("'", "")
        raise ValueError(f"AttentionMap.pool: edges of {name} must be {want}, not {tuple(edges.shape)}")
    result = edges.expand(*batch, edges.shape[-1]).reshape(len(sizes_B), edges.shape[-1])
    if bool((result.diff() < 0).any()):
        raise ValueError(f"AttentionMap.pool: edges of {name} must be ascending, not {edges.tolist()}")
    _check_inside(result, sizes_B, f"AttentionMap.pool: edges of {name}")
    return result.contiguous()


def _integers(value: object, like: Tensor, rule: str) -> Tensor:
    try:
        result = torch.as_tensor(value, device=like.device)
    except (TypeError, ValueError, RuntimeError):  # not numbers, or lists of different lengths
        raise ValueError(f"{rule}, not {value!r}") from None
    if result.numel() and (result.dtype.is_floating_point or result.dtype == torch.bool):
        raise ValueError(f"{rule}, of integers, not {result.dtype}")
    return result.long()


def _fits(shape: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    return shape in ((), batch)


def _check_inside(positions: Tensor, sizes_B: Tensor, name: str) -> None:
    outside = (positions < 0) | (positions > sizes_B[:, None])
    if bool(outside.any()):
        b, at = outside.nonzero()[0].tolist()
        where = f" of sequence {b}" if len(sizes_B) > 1 else ""
        raise ValueError(f"{name} must lie in 0..{int(sizes_B[b])}{where}, not {int(positions[b, at])}")
