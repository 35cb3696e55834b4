"""What the statistics of a map give where they give more than one tensor.

Of a dense map every field is a tensor; of a ragged one, those that are per query or per key are Ragged, (N, H, ...).
Letters: H query heads, Q queries.
"""

from typing import NamedTuple

from torch import Tensor

from uwaga.ops.ragged import Ragged


class TopK(NamedTuple):
    """The k largest weights of each query, in falling order, equal ones by position."""

    weights: Tensor | Ragged  # (..., H, Q, k); 0 where fewer than k keys are visible
    positions: Tensor | Ragged  # int64; -1 there


class Peak(NamedTuple):
    """The largest weight of each query, and where it is."""

    weight: Tensor | Ragged  # (..., H, Q); 0 where no key is visible
    position: Tensor | Ragged  # int64; -1 there


class Sink(NamedTuple):
    """Where weight goes that a head has no use for."""

    first_key: Tensor | Ragged  # (..., H, Q): the weight on the first key of the sequence
    learned: Tensor | Ragged  # (..., H, Q): the share of the learned sink in the denominator, 0 without


class Pooled(NamedTuple):
    """A map seen from farther away; of a ragged map the sequences are the leading dimension."""

    weights: Tensor  # (..., H, rows, cols)
    positions: (
        Tensor | None
    )  # how="max": (..., H, rows, cols, 2) int64, the query and key of the weight; (-1, -1) for none
