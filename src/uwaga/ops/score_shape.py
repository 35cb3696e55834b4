"""The shape of the scores that a mask or a bias applies to, and how their tensors broadcast to it.

Letters: B sequences (all leading dimensions as one), H query heads, Q queries, K keys, R ragged rows, N packed tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from uwaga._base.shapes import NamedShape, shape_error
from uwaga.ops.validation import check_integers, check_strided


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreShape:
    """The scores of one call, (batch..., H, Q, K); of a ragged one (R, H, longest Q, longest K)."""

    queries: int
    keys: int
    batch: tuple[int, ...] = ()
    heads: int = 1
    matrix: bool = False  # the operands are plain (Q, D) matrices: scores are (Q, K)
    query_offsets: Tensor | None = None  # of a ragged call
    key_offsets: Tensor | None = None
    query_tokens: int = 0  # N of a ragged call
    key_tokens: int = 0
    operands: Callable[[], tuple[NamedShape, ...]] = tuple  # for error messages; called only on failure

    @property
    def is_ragged(self) -> bool:
        return self.query_offsets is not None

    @property
    def sequences(self) -> int:
        return math.prod(self.batch)

    @property
    def scores(self) -> tuple[int, ...]:
        """Return the shape that a dense mask or bias must broadcast to."""
        return (self.queries, self.keys) if self.matrix else (*self.batch, self.heads, self.queries, self.keys)

    def per_sequence(self, name: str, tensor: Tensor) -> Tensor:
        """Return (B,) int64 from an integer tensor that broadcasts to the batch dimensions."""
        check_integers("attention", name, tensor)
        if tensor.shape == self.batch and len(self.batch) == 1:
            return tensor.long().contiguous()
        if not broadcasts(tensor.shape, self.batch):
            raise self.misfit(name, tensor, f"{name} must broadcast to the batch dimensions {self.batch}")
        return tensor.broadcast_to(self.batch).reshape(-1).long().contiguous()

    def per_score(self, name: str, tensor: Tensor) -> Tensor:
        """Return a view of four dimensions that broadcasts to (B, H, Q, K), from a tensor that broadcasts to the scores."""
        check_strided("attention", name, tensor)
        if not broadcasts(tensor.shape, self.scores):
            raise self.misfit(name, tensor, f"{name} must broadcast to the scores {self.scores}")
        if tensor.dim() <= 4 and len(self.batch) <= 1:
            return tensor[(None,) * (4 - tensor.dim())]
        full = tensor[(None,) * (len(self.scores) - tensor.dim())]
        if math.prod(full.shape[:-3]) == 1:
            return full.reshape(1, *full.shape[-3:])
        return full.expand(*self.batch, *full.shape[-3:]).reshape(self.sequences, *full.shape[-3:])

    def misfit(self, name: str, tensor: Tensor, rule: str, note: str = "does not broadcast") -> ValueError:
        """Return a ShapeError about a tensor of a mask or bias, which lists the operands too."""
        culprit = NamedShape(name=name, shape=tuple(tensor.shape), letters=("",) * tensor.dim())
        return shape_error("attention", rule, (*self.operands(), culprit), name, note)


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether a tensor of one shape broadcasts to another shape."""
    tail = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(shape, tail, strict=True))
