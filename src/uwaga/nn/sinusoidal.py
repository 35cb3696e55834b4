"""Sinusoidal positions, and where their codes start to repeat. Letters: B batch, Q tokens, M width, N packed tokens."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uwaga.nn.carry import carry, need_width, places
from uwaga.nn.tables import PositionTable, angles, need_even, need_layout
from uwaga.ops.attention.lower import Operand
from uwaga.ops.attention.spec import compute_dtype

# Positions looked at in one go while searching for a repetition: 8 MB of float64 at width 512.
_CHUNK = 1 << 12
# The fastest frequencies, which rule out nearly every position before the others are computed.
_FIRST = 8


class Repeat(NamedTuple):
    """Codes that are `length` positions apart are only `distance` apart, wherever they stand."""

    length: int
    distance: float


class SinusoidalPositions(nn.Module):
    """x + PE (Vaswani et al. 2017, section 3.5), with nothing to learn and for any length:

        PE(p, 2 i) = sin(p / base ** (2 i / M)),   PE(p, 2 i + 1) = cos(p / base ** (2 i / M))

    Args:
        width: M, even.
        base: 10000 in the paper: wavelengths from 2 pi to nearly base * 2 pi positions.
        layout: "interleaved", as above, or "halves": all sines before all cosines, as tensor2tensor and Marian have it.

    Raises:
        ValueError: an odd width, a base of at most 1, an unknown layout.

    >>> SinusoidalPositions(4).table(2)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    def __init__(self, width: int, *, base: float = 10000.0, layout: str = "interleaved") -> None:
        super().__init__()
        need_even("SinusoidalPositions", width)
        need_layout("SinusoidalPositions", layout)
        if not base > 1.0:
            raise ValueError(f"SinusoidalPositions: base must be greater than 1, not {base!r}")
        self.width, self.base, self.layout = width, base, layout
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
        need_width("SinusoidalPositions", "x", x, self.width)
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
        frequency_I = angles(torch.ones(1), self.width, self.base)[0]
        left = False
        for first in range(1, limit + 1, _CHUNK):
            n_C = torch.arange(first, min(first + _CHUNK, limit + 1), dtype=torch.float64)
            if not left:
                is_out_C = _distance(n_C, frequency_I) > tolerance
                if not is_out_C.any():
                    continue
                left, n_C = True, n_C[int(is_out_C.int().argmax()) :]
            found = _within(n_C, frequency_I, tolerance)
            if found is not None:
                return found
        return None

    def _codes(self, position: Tensor) -> Tensor:
        angle = angles(position, self.width, self.base)
        if self.layout == "halves":
            return torch.cat((angle.sin(), angle.cos()), dim=-1)
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def extra_repr(self) -> str:
        return f"width={self.width}, base={self.base}, layout={self.layout!r}"


def _within(n_C: Tensor, frequency_I: Tensor, tolerance: float) -> Repeat | None:
    """The first n whose codes are within the tolerance."""
    # No term of the sum is negative: what a few of them put beyond the tolerance, the others cannot bring back.
    share = math.sqrt(_FIRST / max(len(frequency_I), _FIRST))
    n_C = n_C[_distance(n_C, frequency_I[:_FIRST]) * share <= tolerance]
    distance_C = _distance(n_C, frequency_I)
    near = (distance_C <= tolerance).nonzero()
    if not len(near):
        return None
    return Repeat(int(n_C[near[0]]), float(distance_C[near[0]]))


def _distance(n_C: Tensor, frequency_I: Tensor) -> Tensor:
    """(C,): sqrt of the mean of 4 sin(n w / 2) ** 2."""
    return 2.0 * (n_C[:, None] * frequency_I / 2.0).sin().square().mean(-1).sqrt()
