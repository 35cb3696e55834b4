"""The feed-forward layer of a Transformer. Letters: M model width, F hidden width, Q tokens, N packed tokens."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.types import Device

from uwaga._base import renamed
from uwaga.nn.carry import carry, dropped, need_width
from uwaga.nn.steady import steady
from uwaga.ops.ragged import Operand

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


@renamed.parameters(width="d_model", hidden="d_ff")
class FeedForward(nn.Module):
    """down(f(up x)) (Vaswani et al. 2017, section 3.3); gated: down(f(gate x) * up x) (Shazeer, "GLU Variants Improve
    Transformer", 2020). Each token by itself, so that packed tokens are mapped as they lie.

    Weights: up.weight (F, M), gate.weight (F, M) where gated, down.weight (M, F), with biases where asked.

    Args:
        d_model: M.
        d_ff: F.
        activation: "gelu", "gelu_tanh" (its approximation, as GPT-2 has it), "relu" or "silu".
        gated: whether a second map of the input, under the activation, weighs the first.
        bias: whether the maps add a bias.
        dropout: probability of dropping a hidden number, in training.

    Raises:
        ValueError: an unknown activation.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            listed = ", ".join(map(repr, ACTIVATIONS))
            raise ValueError(f"FeedForward: activation must be one of {listed}, not {activation!r}")
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.activation = activation
        self.up = nn.Linear(d_model, d_ff, bias, **made)
        self.gate = nn.Linear(d_model, d_ff, bias, **made) if gated else None
        self.down = nn.Linear(d_ff, d_model, bias, **made)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Operand, *, steadily: bool = True) -> Operand:
        """(..., Q, M), or Ragged with values (N, M), as x is. ShapeError for another width.

        Args:
            x: (..., Q, M), or Ragged with values (N, M).
            steadily: a token gives the same bits among any others, as `uwaga.nn.steady` says.
        """
        need_width("FeedForward", "x", x, self.up.in_features)
        return carry(partial(self._map, steadily), x)

    def _map(self, steadily: bool, x: Tensor) -> Tensor:
        activate = ACTIVATIONS[self.activation]
        up = steady(self.up, x, wanted=steadily)
        hidden = activate(up) if self.gate is None else activate(steady(self.gate, x, wanted=steadily)) * up
        return steady(self.down, dropped(self.dropout, hidden), wanted=steadily)

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"
