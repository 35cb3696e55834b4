"""From a number per query to a number per head: the one order of averaging that tables and scores share.

Every query counts the same, whichever sequence it is in: the mean goes over all counted queries of all sequences at once,
not over the means of sequences. Sums are made in float64. No counted query gives nan: there is nothing to average.
"""

import torch
from torch import Tensor

from uwaga.ops.ragged import Ragged

PerQuery = Tensor | Ragged  # (..., H, Q); (Q,) of a matrix; Ragged with values (N, H) or (N,)


def per_head(values: PerQuery, counted: PerQuery) -> Tensor:
    """(H,) float64: the mean of `values` over the queries that are `counted` (bool, the same shape).

    >>> values = torch.tensor([[[1.0, 3.0], [5.0, 7.0]]])
    >>> per_head(values, torch.tensor([[[True, True], [True, False]]]))
    tensor([2., 5.], dtype=torch.float64)
    """
    values_HN, counted_HN = by_head(values), by_head(counted)
    total_H = torch.where(counted_HN, values_HN.double(), 0.0).sum(1)
    return total_H / counted_HN.sum(1)


def by_head(values: PerQuery) -> Tensor:
    """(H, N): all queries of all sequences, one after the other."""
    if isinstance(values, Ragged):
        return values.values.T if values.values.dim() == 2 else values.values[None]
    return values[None] if values.dim() == 1 else values.movedim(-2, 0).flatten(1)
