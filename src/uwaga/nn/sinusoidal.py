"""Sinusoidal positions, and where their codes start to repeat. Letters: B batch, Q tokens, M width, N packed tokens."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uwaga._base import renamed
from uwaga.nn.carry import carry, need_width, places
from uwaga.nn.tables import PositionTable, angles, need_even, need_layout
from uwaga.ops.attention.call import compute_dtype
from uwaga.ops.ragged import Operand

# A search for a repetition looks at this many times this many positions at once.
_SIDE = 256
# More than the rounding of a mean of float64 cosines: what is nearer than this to the tolerance is computed once more.
_SLACK = 1e-12


class Repeat(NamedTuple):
    """Codes that are `length` positions apart are only `distance` apart, wherever they stand."""

    length: int
    distance: float


@renamed.parameters(width="d_model")
class SinusoidalPositions(nn.Module):
    """x + PE (Vaswani et al. 2017, section 3.5), with nothing to learn and for any length:

        PE(p, 2 i) = sin(p / base ** (2 i / M)),   PE(p, 2 i + 1) = cos(p / base ** (2 i / M))

    Args:
        d_model: M, even.
        base: 10000 in the paper: wavelengths from 2 pi to nearly base * 2 pi positions.
        layout: "interleaved", as above, or "halves": all sines before all cosines, as tensor2tensor and Marian have it.

    Raises:
        ValueError: an odd width, a base of at most 1, an unknown layout.

    >>> SinusoidalPositions(4).table(2)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    def __init__(self, d_model: int, *, base: float = 10000.0, layout: str = "interleaved") -> None:
        super().__init__()
        need_even("SinusoidalPositions", d_model)
        need_layout("SinusoidalPositions", layout)
        if not base > 1.0:
            raise ValueError(f"SinusoidalPositions: base must be greater than 1, not {base!r}")
        self.d_model, self.base, self.layout = d_model, base, layout
        self._table = PositionTable(self._codes)

    def forward(self, x: Operand, start: int | Tensor = 0) -> Operand:
        """x with the code of each token's position added, (..., Q, M) or Ragged (N, M) as x is, in its dtype.

        Args:
            x: (..., Q, M), or Ragged with values (N, M).
            start: position of the first token, or one per row, (B,) or ragged (R,).

        Raises:
            ShapeError: another width, or starts that are not one per row.
            ValueError: a start below 0.
        """
        need_width("SinusoidalPositions", "x", x, self.d_model)
        position = places("SinusoidalPositions", x, start)
        return carry(lambda values: self._add(values, position), x)

    def _add(self, values: Tensor, position: Tensor) -> Tensor:
        return (values + self._table.at(position, compute_dtype(values.dtype))).to(values.dtype)

    def table(self, length: int) -> Tensor:
        """(length, M) float32: the codes of positions 0 to length - 1, rounded once from float64."""
        return self._codes(torch.arange(length)).float()

    def repeats(self, tolerance: float, *, limit: int = 1_000_000) -> Repeat | None:
        """The length at which codes start to repeat within a tolerance, and how far they are apart there.

        The distance of two codes is that of their vectors as a share of a vector's length, which is sqrt(M / 2) for all:

            distance(n) = |PE(p + n) - PE(p)| / |PE(p)| = sqrt(8 / M * sum_i sin(n w_i / 2) ** 2),  w_i = base ** (-2 i / M)

        It depends on n alone: 0 for the same code, sqrt(2) on average over all n, 2 at most. It grows from 0 with the first
        few n; the length is the first n at which it has come back to at most `tolerance` after having exceeded it. In any
        sequence of that length or a shorter one, codes within the tolerance belong to close neighbours.

        Args:
            tolerance: greater than 0 and less than sqrt(2).
            limit: the last n to look at.

        Returns:
            None where nothing repeats up to `limit`.

        Raises:
            ValueError: a tolerance outside its range.

        >>> SinusoidalPositions(2).repeats(0.02)        # 44 is nearly seven times 2 pi
        Repeat(length=44, distance=0.0177...)
        """
        if not 0.0 < tolerance < math.sqrt(2.0):
            raise ValueError(
                f"SinusoidalPositions.repeats: tolerance must lie between 0 and sqrt(2), not {tolerance!r}"
            )
        frequency_I = angles(torch.ones(1), self.d_model, self.base)[0]
        has_left = False
        for first in range(1, limit + 1, _SIDE**2):
            squared_C = _squared_distances(first, frequency_I)[: limit + 1 - first]
            is_out_C = squared_C > tolerance**2
            if not has_left and not is_out_C.any():
                continue
            skipped = 0 if has_left else int(is_out_C.int().argmax())
            has_left = True
            for at in (squared_C[skipped:] <= tolerance**2 + _SLACK).nonzero().flatten().tolist():
                n = first + skipped + at
                if (distance := _distance(n, frequency_I)) <= tolerance:
                    return Repeat(n, distance)
        return None

    def _codes(self, position: Tensor) -> Tensor:
        angle = angles(position, self.d_model, self.base)
        if self.layout == "halves":
            return torch.cat((angle.sin(), angle.cos()), dim=-1)
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, base={self.base}, layout={self.layout!r}"


def _distance(n: int, frequency_I: Tensor) -> float:
    """sqrt of the mean of 4 sin(n w / 2) ** 2, without cancellation."""
    return float(2.0 * (n * frequency_I / 2.0).sin().square().mean().sqrt())


def _squared_distances(first: int, frequency_I: Tensor) -> Tensor:
    """(C,) of n = first, first + 1, ...: 2 - 2 cos(n w), averaged. With n = a + b, cos(n w) is cos(a w) cos(b w) -
    sin(a w) sin(b w): the sums over all w are two products of matrices, and few cosines are computed."""
    place_S = torch.arange(_SIDE, dtype=torch.float64)
    angle_SI = (first + place_S * _SIDE)[:, None] * frequency_I
    step_SI = place_S[:, None] * frequency_I
    cosines_SS = angle_SI.cos() @ step_SI.cos().T - angle_SI.sin() @ step_SI.sin().T
    return 2.0 - 2.0 / len(frequency_I) * cosines_SS.flatten()
