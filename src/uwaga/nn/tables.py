"""Rows by position: computed once and kept where that is free, else computed where they are asked for."""

from collections.abc import Callable

import torch
from torch import Tensor

from uwaga._base.tracing import is_readable


class PositionTable:
    """`rows(position)`, a function of int64 positions (...) that gives float64 (..., W), rounded once.

    On the CPU and outside a graph the rows of all positions so far are kept, and doubled when a later one is asked for.
    On an accelerator computing them costs less than reading back how many are needed; in a graph nothing can be kept.
    """

    def __init__(self, rows: Callable[[Tensor], Tensor]) -> None:
        self._rows = rows
        self._kept: dict[torch.dtype, Tensor] = {}

    def at(self, position: Tensor, dtype: torch.dtype) -> Tensor:
        """(..., W) of the positions (...), none of them negative."""
        if not is_readable(position) or position.numel() == 0:
            return self._rows(position).to(dtype)
        needed, kept = int(position.max()) + 1, self._kept.get(dtype)
        if kept is None or len(kept) < needed:
            kept = self._kept[dtype] = self._grown(needed if kept is None else max(needed, 2 * len(kept)), dtype)
        return kept[position]

    def _grown(self, length: int, dtype: torch.dtype) -> Tensor:
        # What is made in inference mode could not take part in training afterwards.
        with torch.inference_mode(False), torch.no_grad():
            return self._rows(torch.arange(length)).to(dtype)


def angles(position: Tensor, width: int, base: float) -> Tensor:
    """(..., width / 2) float64: position * base ** (-2 i / width)."""
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=position.device) / width
    return position[..., None] * base**-exponent


def need_even(layer: str, width: int) -> None:
    if width < 2 or width % 2:
        raise ValueError(
            f"{layer}: width must be even and positive, since sines and cosines come in pairs, not {width}"
        )


def need_layout(layer: str, layout: str) -> None:
    if layout not in ("interleaved", "halves"):
        raise ValueError(f"{layer}: layout must be 'interleaved' or 'halves', not {layout!r}")
