"""Biases that depend on the distance j - p only: as one vector per head over all distances, and as scores.

Letters: B sequences, H query heads, Q queries, K keys, L distances.
"""

import torch
from torch import Tensor

from uwaga._base.tracing import is_readable
from uwaga.ops.attention.call import Call
from uwaga.ops.biases import DistanceBias
from uwaga.ops.mask_program import START_LAST, START_VALUE, resolve_start
from uwaga.ops.score_shape import ScoreShape


def over(
    bias: DistanceBias, shape: ScoreShape, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor | None, dict[str, int]]:
    """Return a distance bias over scores of this shape, in this dtype: its vector (H, L), with an entry for each distance that occurs; the starts (B,)
    where there is one per sequence; and the fields `relative_...` of Options."""
    mode, value, starts = resolve_start(shape, bias.start)
    # Query i of a sequence with K keys and Q queries stands, lower right, at i + K - Q: distances from 1 - K to Q - 1.
    length = max(shape.queries + shape.keys - 1, 0)
    if starts is None:
        first = zero(mode, value, 0, shape.queries, shape.keys)
        distance_L = torch.arange(length, device=device) - first
    else:
        first, starts, distance_L = _per_sequence(starts, shape.queries, length)
    vector_HL = bias.vector(distance_L)
    places = {"relative_zero": first, "relative_start_mode": mode, "relative_start": value}
    return vector_HL.to(dtype).contiguous(), starts, places


def _per_sequence(starts: Tensor, queries: int, length: int) -> tuple[int, Tensor, Tensor]:
    """Return the index of distance 0 in the vector, the starts to read it with, and the distance of each of its entries.

    Sequences whose starts are close together share entries. If they are far apart, or cannot be read here (torch.compile),
    each sequence has `length` entries of its own, one sequence after the other, and the starts that are returned index the
    vector instead of saying where a query stands among the keys.
    """
    if torch._C._functorch.is_batchedtensor(starts):
        raise ValueError("attention: vmap over a bias's start is not supported; loop over the mapped dimension")
    if is_readable(starts) and starts.numel():
        least, most = (int(x) for x in starts.aminmax())
        if most - least <= length * (starts.numel() - 1):
            first = queries - 1 + most
            return first, starts, torch.arange(length + most - least, device=starts.device) - first
    offsets = torch.arange(length, device=starts.device) - (queries - 1)
    behind = torch.arange(starts.shape[0], device=starts.device) * length
    return 0, -behind - (queries - 1), (offsets - starts[:, None]).flatten()


def zero(mode: int, start: int, first: int, queries: int, keys: int) -> int:
    """Return the index of distance 0 in the vector of a dense call; `first` where there is a start per sequence."""
    if mode == START_LAST:
        return keys - 1
    return queries - 1 + start if mode == START_VALUE else first


def relative_scores(call: Call, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
    """Return (B or 1, H, Q, K) of a dense call: relative[h, j - p] with query i at position p = i + start.

    Of all queries and keys, or of those whose positions `rows` and `columns` (int64) list.
    """
    options, device = call.options, call.query.device
    queries, keys = call.query.shape[2], call.key.shape[2]
    start = {START_LAST: keys - queries, START_VALUE: options.relative_start}.get(options.relative_start_mode)
    i_Q = torch.arange(queries, device=device) if rows is None else rows
    j_K = torch.arange(keys, device=device) if columns is None else columns
    index_QK = j_K - i_Q[:, None] + options.relative_zero
    if start is not None:
        index_BQK = (index_QK - start)[None]
    else:
        assert call.relative_starts is not None
        index_BQK = index_QK - call.relative_starts[:, None, None]
    assert call.relative is not None
    return call.relative[:, index_BQK].transpose(0, 1)
