"""Query, key and value cut into heads: what lies between the linear maps and the operation.

Letters: H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, M width, N packed tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from uwaga.nn import joint
from uwaga.nn.carry import contents, need_width
from uwaga.nn.held import Held
from uwaga.nn.rotary import Rotation
from uwaga.nn.slots import SelfSlot
from uwaga.nn.steady import steady
from uwaga.ops.ragged import Operand, Ragged


class Heads(NamedTuple):
    """Operands of `uwaga.attention`, all padded or all Ragged."""

    query: Operand  # (..., H, Q, D); Ragged (N, H, D)
    key: Operand  # (..., G, K, D); Ragged (N, G, D)
    value: Operand  # (..., G, K, E); Ragged (N, G, E)


class Asked(NamedTuple):
    """Queries cut into heads, and the keys and values that they ask."""

    query: Operand  # (..., H, Q, D); Ragged (N, H, D)
    held: Held


def split(
    linear: nn.Linear, name: str, x: Operand, heads: int, rotary: Rotation | None = None, *, steadily: bool = True
) -> Operand:
    """(..., heads, Q, D), a view of (..., Q, heads * D) where nothing is turned; or Ragged (N, heads, D)."""
    need_width("MultiHeadAttention", name, x, linear.in_features)
    return _cut(steady(linear, contents(x), wanted=steadily), x, heads, rotary)


def split_jointly(
    linears: Sequence[nn.Linear], x: Operand, heads: Sequence[int], rotary: Rotation | None = None
) -> Heads:
    """`split` of query, key and value of the same tokens, where `joint.is_worthwhile`."""
    query, key, value = joint.maps(linears, contents(x))
    return Heads(_cut(query, x, heads[0], rotary), _cut(key, x, heads[1], rotary), _cut(value, x, heads[2], None))


def _cut(mapped: Tensor, x: Operand, heads: int, rotary: Rotation | None) -> Operand:
    """The tokens of x, mapped to (..., Q, heads * D) or (N, heads * D), cut into heads."""
    cut = mapped.view(*mapped.shape[:-1], heads, mapped.shape[-1] // heads)
    turned = cut if rotary is None else rotary.turn(cut)
    return x.with_values(turned) if isinstance(x, Ragged) else turned.transpose(-3, -2)


def merge(linear: nn.Linear, mixed: Operand, query: Operand, *, steadily: bool = True) -> Operand:
    """The mixed values of all heads (..., H, Q, E) or (N, H, E), joined and mapped, as what the query was made of is.

    Heads lie inside tokens already, so that joining them is a view.
    """
    if isinstance(mixed, Ragged) and isinstance(query, Ragged):
        return query.with_values(steady(linear, mixed.values.flatten(1), wanted=steadily))
    assert isinstance(mixed, Tensor)
    joined = steady(linear, mixed.transpose(-3, -2).flatten(-2), wanted=steadily)
    return query.with_values(joined.flatten(0, 1)) if isinstance(query, Ragged) else joined


def extended(heads: Heads, slot: SelfSlot) -> Asked:
    """The queries over the keys and values of all tokens so far."""
    # Packed rows of one length, as in generation, are padded ones too: then the keys are read in place.
    if not slot.is_empty and _rows_of_one_length(heads.query):
        heads = Heads(*map(_as_padded, heads))
    return Asked(heads.query, slot.append(heads.key, heads.value))


def _rows_of_one_length(x: Operand) -> bool:
    """Whether this is packed, but as good as padded: R times the longest row is all there is."""
    return isinstance(x, Ragged) and x.values.shape[0] == len(x) * x.max_length > 0


def _as_padded(x: Operand) -> Tensor:
    """(R, H, Q, D), a view of packed rows of one length."""
    assert isinstance(x, Ragged)
    return x.values.unflatten(0, (len(x), x.max_length)).transpose(1, 2)
