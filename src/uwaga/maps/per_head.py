"""Means of statistics over the queries of each head that see a key.

Letters: H heads, Q queries, N queries of all sequences.
"""

import torch
from torch import Tensor

from uwaga.maps.map import AttentionMap
from uwaga.ops.ragged import Ragged

PerQuery = Tensor | Ragged  # (..., H, Q); (Q,) of a matrix; Ragged with values (N, H) or (N,)


def per_head(values: PerQuery, counted: PerQuery) -> Tensor:
    """Compute the mean (H,) in float64 over the queries with `counted` (bool, the same shape); NaN without such a query.

    All queries have the same weight, in whatever sequence: the result is not a mean of the means of sequences.

    >>> values = torch.tensor([[[1.0, 3.0], [5.0, 7.0]]])
    >>> per_head(values, torch.tensor([[[True, True], [True, False]]]))
    tensor([2., 5.], dtype=torch.float64)
    """
    values_HN, counted_HN = by_head(values), by_head(counted)
    total_H = torch.where(counted_HN, values_HN.double(), 0.0).sum(1)
    return total_H / counted_HN.sum(1)


def by_head(values: PerQuery) -> Tensor:
    """Return the values (H, N) of all queries, one sequence after the other."""
    if isinstance(values, Ragged):
        return values.values.T if values.values.dim() == 2 else values.values[None]
    return values[None] if values.dim() == 1 else values.movedim(-2, 0).flatten(1)


def has_visible_key(m: AttentionMap, counted: Tensor | None = None) -> PerQuery:
    """Return per query and head, as bool, whether it sees a key and is `counted`, if that is passed."""
    position = m.peak().position
    sees = (position.values if isinstance(position, Ragged) else position) >= 0
    sees = sees if counted is None else sees & counted
    return position.with_values(sees) if isinstance(position, Ragged) else sees
