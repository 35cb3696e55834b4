"""Biases that depend on the distance only: from the value object to one vector per head, and to scores.

Letters: B sequences, H query heads, Q queries, K keys, L distances.
"""

import torch
from torch import Tensor

from uwaga.ops.attention.spec import START_LAST, START_VALUE, Call
from uwaga.ops.biases import DistanceBias
from uwaga.ops.mask_program import lower_start
from uwaga.ops.sizes import Sizes


def lower(bias: DistanceBias, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> dict:
    """The operands of a Call: the vector (H, L) over every distance that the call meets, and where its zero is."""
    mode, value, starts = lower_start(sizes, bias.start)
    given, spread = sizes.queries - 1, 0
    if starts is not None and starts.numel():
        if torch._C._functorch.is_batchedtensor(starts):
            raise ValueError("attention: vmap over a bias's start is not supported; loop over the mapped dimension")
        least, most = (int(x) for x in starts.aminmax())
        given, spread = given + most, most - least
    # Query i of a sequence with K keys and Q queries stands, lower right, at i + K - Q: distances from 1 - K to Q - 1.
    first = zero(mode, value, given, sizes.queries, sizes.keys)
    length = max(sizes.queries + sizes.keys - 1 + spread, 0)
    vector_HL = bias.vector(torch.arange(length, device=device) - first)
    return {
        "relative": vector_HL.to(dtype).contiguous(),
        "relative_starts": starts,
        "relative_zero": first,
        "relative_start_mode": mode,
        "relative_start": value,
    }


def zero(mode: int, start: int, given: int, queries: int, keys: int) -> int:
    """Where the vector of a dense call has its distance 0; as it was given, where there is a start per sequence."""
    if mode == START_LAST:
        return keys - 1
    return queries - 1 + start if mode == START_VALUE else given


def relative_scores(call: Call, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
    """(B or 1, H, Q, K) of a dense call: relative[h, j - p] with query i at position p = i + start.

    Of all queries and keys, or of those whose positions `rows` and `columns` (int64) list.
    """
    options, device = call.options, call.query.device
    queries, keys = call.query.shape[2], call.key.shape[2]
    start = {START_LAST: keys - queries, START_VALUE: options.relative_start}.get(options.relative_start_mode)
    i_Q = torch.arange(queries, device=device) if rows is None else rows
    j_K = torch.arange(keys, device=device) if columns is None else columns
    place_QK = j_K - i_Q[:, None] + options.relative_zero
    place_BQK = (place_QK - start)[None] if start is not None else place_QK - call.relative_starts[:, None, None]
    return call.relative[:, place_BQK].transpose(0, 1)
