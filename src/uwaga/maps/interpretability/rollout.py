"""Attention rollout: which input tokens flow into one token of the last layer.

Letters: H heads, Q queries = K keys = N tokens.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from uwaga.maps.indexing import integers, per_sequence
from uwaga.maps.map import AttentionMap
from uwaga.ops.ragged import Ragged

PerToken = Tensor | Ragged  # (..., N), or Ragged with values (N,)


def rollout(
    maps: Sequence[AttentionMap] | Mapping[object, AttentionMap], token: int | Tensor = -1, *, residual: float = 0.5
) -> PerToken:
    """Attention rollout of one token: how much of it comes from each token of the input.

    Abnar & Zuidema, "Quantifying Attention Flow in Transformers" (2020), equation 1:

        rollout = A_L ... A_2 A_1,   A_l = residual * I + (1 - residual) * mean over heads of a^l

    They multiply N x N matrices. Here the row of the chosen token is carried down through the layers, a vector times a
    matrix each time, by `received(weights=row)`: O(N) memory, and the cost of one pass over each layer's Q and K; the last
    layer costs one row only.

    Choices: heads are averaged, all with the same weight; the residual connection is 0.5 of each layer, as in the paper,
    before any attention of that layer; nothing is normalised on the way. So the result sums to 1 where every row of every
    map does; what a learned sink takes, or a query that sees nothing, is missing from it. The first token is in.

    Args:
        maps: the layers' self-attention, from the first to the last; of a mapping, in its own order.
        token: its position, from the end where negative, in every sequence; or one per sequence, integers that broadcast
            to the batch dimensions (of ragged maps (R,)).
        residual: the share of the residual connection, 0 to 1.

    Returns:
        (..., N), or Ragged (N,): the share of each input token.

    Raises:
        ValueError: no maps, maps that are not square, a share that is not in 0..1, or tokens that are no integers or not
            one per sequence.
        IndexError: a token that a sequence does not have.
    """
    layers = list(maps.values()) if isinstance(maps, Mapping) else list(maps)
    if not layers:
        raise ValueError("rollout: there are no maps")
    if not 0 <= residual <= 1:
        raise ValueError(f"rollout: residual must be between 0 and 1, not {residual}")
    first = layers[0]
    for layer, m in enumerate(layers):
        square = [(shape[-1], shape[-1]) for shape in first.shapes]
        if [shape[-2:] for shape in m.shapes] != square or m.shape[:-3] != first.shape[:-3]:
            rule = f"layers must be square maps of the same tokens, and layer {layer} is {m.shape}"
            raise ValueError(f"rollout: {rule}, where layer 0 is {first.shape}")
    row = _chosen(layers[-1], token)
    for m in reversed(layers):
        row = _below(m, row, residual)
    return row


def _below(m: AttentionMap, row: PerToken, residual: float) -> PerToken:
    """The row one layer down: what a token holds comes from itself, and from the tokens that it looks at."""
    if isinstance(row, Ragged):
        received = m.received(weights=row).values
        mean = received.mean(1) if received.dim() == 2 else received
        return row.with_values(residual * row.values + (1 - residual) * mean)
    if len(m.shape) == 2:
        return residual * row + (1 - residual) * m.received(weights=row)
    return residual * row + (1 - residual) * m.received(weights=row[..., None, :]).mean(-2)


def _chosen(m: AttentionMap, token: int | Tensor) -> PerToken:
    """One for the chosen token of every sequence, zero elsewhere: (..., N) or Ragged (N,)."""
    lengths = torch.tensor([shape[-1] for shape in m.shapes], device=m.device)
    batch = m.shape[:-3] if m.parts() is None else (len(lengths),)
    lengths = lengths.expand(math.prod(batch))
    token = torch.as_tensor(token, device=m.device) if isinstance(token, list) else token
    places = per_sequence(integers(token, "rollout: token"), batch, "rollout: token")
    place = torch.tensor(places, dtype=torch.int64, device=m.device)
    outside = (place < -lengths) | (place >= lengths)
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        raise IndexError(f"rollout: token {int(place[at])} is out of range for {int(lengths[at])} tokens")
    place = torch.where(place < 0, place + lengths, place)
    offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    row = torch.zeros(int(offsets[-1]), dtype=m.dtype, device=m.device).index_fill(0, offsets[:-1] + place, 1.0)
    return row.reshape(*batch, m.shape[-1]) if m.parts() is None else Ragged(row, offsets)
