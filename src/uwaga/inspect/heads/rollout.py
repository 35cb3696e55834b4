"""Attention rollout: the flow of input tokens into one token of the last layer.

Letters: H heads, Q queries = K keys = N tokens.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from uwaga._base.arguments import check
from uwaga.maps.base import WeightMap, integers, per_sequence
from uwaga.maps.map import AttentionMap
from uwaga.nn.operand import map_values
from uwaga.ops.ragged import Operand, Ragged

PerToken = Tensor | Ragged  # (..., N), or Ragged with values (N,)
MapT = TypeVar("MapT", bound=WeightMap)


def rollout(
    maps: Sequence[AttentionMap] | Mapping[object, AttentionMap], token: int | Tensor = -1, *, residual: float = 0.5
) -> PerToken:
    """Compute the share of each input token in one token of the last layer (attention rollout).

    Abnar & Zuidema, "Quantifying Attention Flow in Transformers" (2020), equation 1:

        rollout = A_L ... A_2 A_1,   A_l = residual * I + (1 - residual) * mean over heads of a^l

    The paper multiplies N x N matrices. Here `received(weights=row)` multiplies the row of the chosen token by one matrix
    after the other, from the last layer to the first: O(N) memory, and one pass over Q and K per layer; the last layer
    costs only one row.

    Heads are averaged with equal weights, and nothing is normalised. So the shares sum to 1 if the rows of all maps do;
    the weight of learned sinks, and of queries that see no key, is missing. The first token is included.

    Args:
        maps: the self-attention of each layer, from the first to the last, in a sequence or a mapping.
        token: a position in every sequence; a negative one counts from the end. Or one per sequence, integers that broadcast
            to the batch dimensions ((R,) for ragged maps).
        residual: the share of the residual connection in each layer, 0 to 1; the paper uses 0.5.

    Returns:
        (..., N), or Ragged (N,): the share of each input token, in the dtype of the maps.

    Raises:
        ValueError: no maps, maps that are not square or of different tokens, a residual outside 0 to 1, or a `token` that
            is not an integer or one per sequence.
        IndexError: a position that a sequence does not have.
    """
    layers = layers_of(maps)
    check_layers("rollout", layers)
    check(0 <= residual <= 1, f"rollout: residual must be between 0 and 1, not {residual}")
    row = one_hot("rollout", layers[-1], token)
    for m in reversed(layers):
        row = map_values(lambda x, read: residual * x + (1 - residual) * read, row, times_mean(row, m))
    return row


def layers_of(maps: Mapping[Any, MapT] | Sequence[MapT]) -> list[MapT]:
    """Return the maps of a mapping or a sequence, in its order."""
    return list(maps.values()) if isinstance(maps, Mapping) else list(maps)


def check_layers(name: str, layers: Sequence[WeightMap]) -> None:
    """Raise ValueError for no maps, or maps that are not square or of different tokens."""
    check(layers, f"{name}: there are no maps")
    first = layers[0]
    for layer, m in enumerate(layers):
        square = [(shape[-1], shape[-1]) for shape in first.shapes]
        check(
            [shape[-2:] for shape in m.shapes] == square and m.shape[:-3] == first.shape[:-3],
            f"{name}: layers must be square maps of the same tokens, and layer {layer} is {m.shape}, but layer 0 is {first.shape}",
        )


def times_mean(row: PerToken, m: Any) -> PerToken:
    """Compute row A, with the mean A over the heads of an AttentionMap or a GradientMap."""
    return mean_of_heads(m, m.received(weights=for_each_head(m, row)))


def for_each_head(m: WeightMap, x: PerToken) -> Operand:
    """Repeat the numbers for every head."""
    if isinstance(x, Ragged):
        return x.with_values(x.values[:, None].expand(-1, m.shape[1])) if len(m.shape) > 3 else x
    return x[..., None, :] if len(m.shape) > 2 else x


def mean_of_heads(m: WeightMap, x: Operand) -> PerToken:
    """Return the mean over heads, (..., N) or Ragged (N,)."""
    if isinstance(x, Ragged):
        return x.with_values(x.values.mean(1)) if x.values.dim() == 2 else x
    return x.mean(-2) if len(m.shape) > 2 else x


def one_hot(name: str, m: WeightMap, token: int | Tensor) -> PerToken:
    """Return 1 for the chosen token of every sequence and 0 elsewhere, (..., N) or Ragged (N,).

    Raises:
        ValueError: tokens that are not integers, one for each sequence.
        IndexError: a token that a sequence does not have.
    """
    lengths = torch.tensor([shape[-1] for shape in m.shapes], device=m.device)
    batch = m.shape[:-3] if m.parts() is None else (len(lengths),)
    lengths = lengths.expand(math.prod(batch))
    token = torch.as_tensor(token, device=m.device) if isinstance(token, list) else token
    places = per_sequence(integers(token, f"{name}: token"), batch, f"{name}: token")
    place = torch.tensor(places, dtype=torch.int64, device=m.device)
    outside = (place < -lengths) | (place >= lengths)
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        raise IndexError(f"{name}: token {int(place[at])} is out of range for {int(lengths[at])} tokens")
    place = torch.where(place < 0, place + lengths, place)
    offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    row = torch.zeros(int(offsets[-1]), dtype=m.dtype, device=m.device).index_fill(0, offsets[:-1] + place, 1.0)
    return row.reshape(*batch, m.shape[-1]) if m.parts() is None else Ragged(row, offsets)
