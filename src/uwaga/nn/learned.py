"""Learned positions: one vector per place, added to the tokens. Letters: B batch, Q tokens, M width, N packed tokens."""

import torch
from torch import Tensor, nn
from torch.types import Device

from uwaga._base import renamed
from uwaga._base.tracing import is_readable
from uwaga.nn.carry import carry, need_width, places
from uwaga.ops.ragged import Operand, Ragged


@renamed.parameters(width="d_model")
class LearnedPositions(nn.Module):
    """x + weight[position] (Gehring et al., "Convolutional Sequence to Sequence Learning", 2017; BERT, GPT-2).

    weight: (length, M), drawn from a normal distribution of deviation 0.02, as BERT and GPT-2 do.

    Args:
        length: positions that there are.
        d_model: M.
    """

    def __init__(self, length: int, d_model: int, *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Operand, start: int | Tensor = 0) -> Operand:
        """x with the vector of each token's position added, (..., Q, M) or Ragged (N, M) as x is.

        Args:
            x: (..., Q, M), or Ragged with values (N, M).
            start: position of the first token, or one per row, (B,) or ragged (R,).

        Raises:
            ShapeError: another width, or starts that are not one per row.
            ValueError: a start below 0; a position beyond the last one (where starts are one per row: checked where reading them is free).
        """
        need_width("LearnedPositions", "x", x, self.weight.shape[1])
        position = places("LearnedPositions", x, start)
        self._check(x, position, start)
        return carry(lambda values: values + nn.functional.embedding(position, self.weight), x)

    def _check(self, x: Operand, position: Tensor, start: int | Tensor) -> None:
        tokens = x.max_length if isinstance(x, Ragged) else x.shape[-2]
        if isinstance(start, Tensor):
            last = int(position.max()) if is_readable(position) and position.numel() else 0
        elif torch.compiler.is_compiling() and isinstance(x, Ragged):
            last = 0  # the longest row is not known while a graph is made
        else:
            last = start + tokens - 1
        if last >= self.weight.shape[0]:
            raise ValueError(
                f"LearnedPositions: there are {self.weight.shape[0]} positions, and a token stands at {last}"
            )

    def extra_repr(self) -> str:
        return f"length={self.weight.shape[0]}, d_model={self.weight.shape[1]}"
