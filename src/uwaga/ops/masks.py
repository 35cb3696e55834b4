"""Masks: which keys each query sees, described without a Q x K tensor.

    >>> Causal() & Window(left=128, right=0)        # doctest: +ELLIPSIS
    Both(left=Causal(...), right=Window(...))

Query i stands at position p = i + start among the keys; `start` is None (lower right: the last query meets the last
key, right for a cache), a number (0 is the upper left of SDPA's and ONNX's is_causal) or an integer tensor with one per
batch row, or one for all. torch.compile makes one graph for all values of a tensor; for numbers with dynamic=False, one graph per number.
Letters: B batch, H query heads, Q queries, K keys, N packed tokens.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from uwaga.ops.mask_program import And, MaskProgramBuilder, Or, Start, visible
from uwaga.ops.score_shape import ScoreShape
from uwaga.ops.validation import (
    check_bool,
    check_distance,
    check_start,
    check_tensor,
    invalid,
    is_integer,
    plain_integer,
)

MAX_NESTING = 200  # of & and |: masks are read by recursion, and Python has a thousand frames


class Mask(ABC):
    """The base class of masks. A subclass implements `encode`. Masks combine by & and |, also with bool tensors."""

    # No fields: neither compared by == nor stored; see attention/fast_path.py.
    __slots__ = ("_nesting", "cached_layout")

    @property
    def nesting(self) -> int:
        """Return how deep & and | are nested in this mask."""
        return getattr(self, "_nesting", 0)

    @abstractmethod
    def encode(self, builder: MaskProgramBuilder) -> None:
        """Append this mask to the program under construction."""

    def over(self, shape: ScoreShape) -> MaskProgramBuilder:
        """Return this mask as a program over scores of this shape, with its tensors."""
        builder = MaskProgramBuilder(shape)
        self.encode(builder)
        return builder

    def dense(self, shape: ScoreShape, device: str = "cpu") -> Tensor:
        """Return the mask as a bool tensor that broadcasts to (B, H, Q, K), True for visible keys, for tests and figures."""
        made = self.over(shape)
        return visible(made.program, made.tensors, shape.queries, shape.keys, device)

    def __and__(self, other: "Mask | Tensor") -> "Both":
        return Both(left=self, right=as_mask(other))

    def __rand__(self, other: "Mask | Tensor") -> "Both":
        return Both(left=as_mask(other), right=self)

    def __or__(self, other: "Mask | Tensor") -> "Either":
        return Either(left=self, right=as_mask(other))

    def __ror__(self, other: "Mask | Tensor") -> "Either":
        return Either(left=as_mask(other), right=self)


@dataclass(frozen=True, slots=True)
class Causal(Mask):
    """Show the keys up to the query's own position p = i + start: j <= p, or j < p with include_self=False.

    Raises:
        ValueError: include_self is not a bool, or start is not None, an integer or a tensor.
    """

    include_self: bool = True
    start: Start = None

    def __post_init__(self) -> None:
        check_start("Causal", self.start)
        check_bool("Causal", "include_self", self.include_self)

    def encode(self, builder: MaskProgramBuilder) -> None:
        builder.band(None, 0 if self.include_self else -1, self.start)


@dataclass(frozen=True, slots=True)
class Window(Mask):
    """Show the keys near the query: p - left <= j <= p + right, with p = i + start; None is unbounded on that side.

    Raises:
        ValueError: left or right is negative or not an integer, or start is not None, an integer or a tensor.
    """

    left: int | None
    right: int | None
    start: Start = None

    def __post_init__(self) -> None:
        for name, reach in (("left", self.left), ("right", self.right)):
            if reach is not None and (not is_integer(reach) or reach < 0):
                raise invalid("Window", name, "an integer of at least 0 or None (unbounded)", repr(reach))
            check_distance("Window", name, reach)
        check_start("Window", self.start)

    def encode(self, builder: MaskProgramBuilder) -> None:
        low = None if self.left is None else -plain_integer(self.left)
        builder.band(low, None if self.right is None else plain_integer(self.right), self.start)


@dataclass(frozen=True, slots=True, eq=False)
class KeyLengths(Mask):
    """Show the first lengths[b] keys of each sequence b of a padded batch: j < lengths[b].

    `lengths` are integers that broadcast to the batch dimensions. They must lie in 0..K. Attention checks this on the CPU outside
    torch.compile, and raises a ValueError.
    """

    lengths: Tensor

    def __post_init__(self) -> None:
        check_tensor("KeyLengths", "lengths", self.lengths)

    def encode(self, builder: MaskProgramBuilder) -> None:
        builder.lengths(self.lengths)


@dataclass(frozen=True, slots=True, eq=False)
class Documents(Mask):
    """Show the keys of the query's own document, which have the same id.

    `ids` are integers per key, (K,) or (batch..., K); over a ragged batch (N,), one per packed key. The queries are the
    last Q positions, unless `query_ids` has their ids: (Q,), (batch..., Q) or, ragged, one per packed query. attention raises a
    ShapeError for ids of another shape, and a ValueError for ids that are not integers.
    """

    ids: Tensor
    query_ids: Tensor | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_tensor("Documents", "ids", self.ids)
        if self.query_ids is not None:
            check_tensor("Documents", "query_ids", self.query_ids)

    def encode(self, builder: MaskProgramBuilder) -> None:
        builder.documents(self.ids, self.query_ids)


@dataclass(frozen=True, slots=True, eq=False)
class DenseMask(Mask):
    """Any bool tensor that broadcasts to the scores (..., H, Q, K); True is visible. Users pass the tensor itself as mask=."""

    bits: Tensor

    def encode(self, builder: MaskProgramBuilder) -> None:
        builder.dense(self.bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair(Mask):
    """Two masks and what combines them."""

    operation: ClassVar[type[And | Or]]
    left: Mask
    right: Mask

    def __post_init__(self) -> None:
        nesting = 1 + max(self.left.nesting, self.right.nesting)
        if nesting > MAX_NESTING:
            raise ValueError(
                f"mask: & and | are nested deeper than {MAX_NESTING}; combine many masks in pairs, or into one bool tensor"
            )
        object.__setattr__(self, "_nesting", nesting)

    def encode(self, builder: MaskProgramBuilder) -> None:
        self.left.encode(builder)
        self.right.encode(builder)
        builder.operations.append(self.operation())


class Both(_Pair):
    """Show the keys that both masks show: left & right. Raises ValueError: nested deeper than MAX_NESTING."""

    __slots__ = ()
    operation = And


class Either(_Pair):
    """Show the keys that at least one of the masks shows: left | right. Raises ValueError: nested deeper than MAX_NESTING."""

    __slots__ = ()
    operation = Or


def as_mask(mask: object) -> Mask:
    """Return the mask itself, or a DenseMask of a bool tensor. Raises ValueError for anything else."""
    if isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise invalid("attention", "mask", "a mask or a bool tensor", type(mask).__name__)
    if mask.dtype.is_floating_point:
        hint = f"{mask.dtype}; an additive float tensor is a bias: bias=..."
        raise invalid("attention", "mask", "bool", hint)
    if str(mask.dtype) != "torch.bool":
        raise invalid("attention", "mask", "bool (True is visible)", mask.dtype)
    return DenseMask(bits=mask)
