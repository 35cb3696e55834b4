"""Query, key and value cut into heads: what lies between the linear maps and the operation.

Letters: H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, M width, N packed tokens.
"""

from typing import NamedTuple

from torch import nn

from uwaga.nn.carry import carry, need_width
from uwaga.nn.rotary import Rotation
from uwaga.ops.attention.lower import Operand
from uwaga.ops.ragged import Ragged


class Heads(NamedTuple):
    """Operands of `uwaga.attention`, all padded or all Ragged."""

    query: Operand  # (..., H, Q, D); Ragged (N, H, D)
    key: Operand  # (..., G, K, D); Ragged (N, G, D)
    value: Operand  # (..., G, K, E); Ragged (N, G, E)


def split(linear: nn.Linear, name: str, x: Operand, heads: int, rotary: Rotation | None = None) -> Operand:
    """(..., heads, Q, D), a view of (..., Q, heads * D) where nothing is turned; or Ragged (N, heads, D)."""
    need_width("MultiHeadAttention", name, x, linear.in_features)

    def inside_tokens(values):
        values = linear(values).unflatten(-1, (heads, -1))
        return values if rotary is None else rotary.turn(values)

    mapped = carry(inside_tokens, x)
    return mapped if isinstance(mapped, Ragged) else mapped.transpose(-3, -2)


def merge(linear: nn.Linear, mixed: Operand, query: Operand) -> Operand:
    """The mixed values of all heads (..., H, Q, E) or (N, H, E), joined and mapped, as what the query was made of is.

    Heads lie inside tokens already, so that joining them is a view.
    """
    if isinstance(mixed, Ragged):
        return query.with_values(linear(mixed.values.flatten(1)))
    joined = linear(mixed.transpose(-3, -2).flatten(-2))
    return query.with_values(joined.flatten(0, 1)) if isinstance(query, Ragged) else joined


def rows_of_one_length(x: Ragged) -> bool:
    """Whether packed rows are as good as padded ones: R times the longest is all there is."""
    return x.values.shape[0] == len(x) * x.max_length > 0


def as_padded(x: Ragged) -> Operand:
    """(R, H, Q, D), a view of packed rows of one length."""
    return x.values.unflatten(0, (len(x), x.max_length)).transpose(1, 2)
