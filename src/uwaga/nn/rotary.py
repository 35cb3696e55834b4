"""Rotary positions. Letters: B batch, H heads, Q tokens, D head width, N packed tokens."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from uwaga._base import renamed
from uwaga._base.shapes import NamedShape, shape_error
from uwaga.nn.carry import contents, places
from uwaga.nn.tables import PositionTable, angles, need_even, need_layout
from uwaga.ops.attention.call import compute_dtype
from uwaga.ops.ragged import Operand


class Rotation(NamedTuple):
    """How far to turn each token's pairs of numbers; one serves all layers of a model."""

    cos: Tensor  # (Q, W / 2), (B, Q, W / 2) or, over a Ragged batch, (N, W / 2)
    sin: Tensor
    is_interleaved: bool

    def turn(self, x: Tensor) -> Tensor:
        """Heads inside tokens, (..., Q, H, D) or (N, H, D): the first W numbers of each head turned, the others kept.

        In float32 (float64 for float64), and rounded to the dtype of x.
        """
        width = 2 * self.cos.shape[-1]
        if width > x.shape[-1]:
            rule = f"heads must be at least as wide as the {width} numbers that are turned"
            tensors = [NamedShape(name="heads", shape=tuple(x.shape), letters=("",) * (x.dim() - 1) + ("D",))]
            raise shape_error("RotaryPositions", rule, tensors, "heads", f"D is {x.shape[-1]}")
        turned = self._pairs(x[..., :width].to(compute_dtype(x.dtype))).to(x.dtype)
        return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)

    def _pairs(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[..., None, :].to(x.dtype), self.sin[..., None, :].to(x.dtype)
        if self.is_interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@renamed.parameters(width="rotary_dim")
class RotaryPositions(nn.Module):
    """Turns queries and keys by their positions, so that scores depend on distances (Su et al., "RoFormer", 2021, section
    3.2.2): the pair i of a head at position p, as a complex number, is multiplied by exp(1j * p * base ** (-2 i / W)).

        rotary = RotaryPositions(64)
        attention(x, rotary=rotary(x), mask=Causal())      # made once, it serves every layer

    Args:
        rotary_dim: W, the numbers of each head that are turned, from the first; even, at most D.
        base: 10000 in the paper.
        layout: which two numbers are a pair: "interleaved", 2 i and 2 i + 1, as in the paper, or "halves", i and
            i + W / 2, as in GPT-NeoX and in Llama as transformers has it.

    Raises:
        ValueError: an odd width, an unknown layout.
    """

    def __init__(self, rotary_dim: int, *, base: float = 10000.0, layout: str = "interleaved") -> None:
        super().__init__()
        need_even("RotaryPositions", rotary_dim)
        need_layout("RotaryPositions", layout)
        self.rotary_dim, self.base, self.layout = rotary_dim, base, layout
        self._table = PositionTable(self._cos_and_sin)

    def forward(self, x: Operand, start: int | Tensor = 0) -> Rotation:
        """The rotation of x's tokens; only where they stand is read of x.

        Args:
            x: (..., Q, M), or Ragged with values (N, M).
            start: position of the first token, or one per row, (B,) or ragged (R,); with a cache, `cache.start`.

        Raises:
            ShapeError: starts that are not one per row.
            ValueError: a start below 0.
        """
        position = places("RotaryPositions", x, start)
        cos, sin = self._table.at(position, compute_dtype(contents(x).dtype)).chunk(2, dim=-1)
        return Rotation(cos, sin, self.layout == "interleaved")

    def _cos_and_sin(self, position: Tensor) -> Tensor:
        angle = angles(position, self.rotary_dim, self.base)
        return torch.cat((angle.cos(), angle.sin()), dim=-1)

    def extra_repr(self) -> str:
        return f"rotary_dim={self.rotary_dim}, base={self.base}, layout={self.layout!r}"
