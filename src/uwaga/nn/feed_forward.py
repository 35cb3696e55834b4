"""The feed-forward layer of a Transformer. Letters: M model width, F hidden width, Q tokens, N packed tokens."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

from uwaga.nn.operand import check_width, values_of
from uwaga.nn.plain_modules import apply_dropout, apply_linear
from uwaga.ops.activations import ACTIVATIONS
from uwaga.ops.ragged import Operand, Ragged


class FeedForward(nn.Module):
    """down(f(up x)) (Vaswani et al. 2017, section 3.3); gated: down(f(gate x) * up x) (Shazeer, "GLU Variants Improve
    Transformer", 2020). Each token is mapped by itself, so a packed batch needs no padding.

    Weights: up.weight (F, M), gate.weight (F, M) where gated, down.weight (M, F), with biases if `bias`.

    Args:
        d_model: M.
        d_ff: F.
        activation: "gelu", "gelu_tanh" (the tanh approximation of GELU, as in GPT-2), "relu" or "silu".
        gated: whether up x is multiplied by f(gate x), a second linear map of the input, instead of being activated itself.
        bias: whether the linear maps add a bias.
        down_bias: whether the last one does; as `bias` by default.
        dropout: probability of dropping a hidden activation, in training.

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
        down_bias: bool | None = None,
        dropout: float = 0.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            listed = ", ".join(map(repr, ACTIVATIONS))
            raise ValueError(f"FeedForward: activation must be one of {listed}, not {activation!r}")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.activation = activation
        self.up = nn.Linear(d_model, d_ff, bias, **factory)
        self.gate = nn.Linear(d_model, d_ff, bias, **factory) if gated else None
        self.down = nn.Linear(d_ff, d_model, bias if down_bias is None else down_bias, **factory)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Operand, *, batch_invariant: bool = True) -> Operand:
        """(..., Q, M), or Ragged with values (N, M), as x is.

        Args:
            x: (..., Q, M), or Ragged with values (N, M).
            batch_invariant: a token gives the same bits in any batch, see `uwaga.nn.plain_modules`.

        Raises:
            ShapeError: x has another width.
        """
        check_width("FeedForward", "x", x, self.up.in_features)
        mapped = self._map(batch_invariant, values_of(x))
        return x.with_values(mapped) if isinstance(x, Ragged) else mapped

    def _map(self, batch_invariant: bool, x: Tensor) -> Tensor:
        if self.gate is None:
            hidden = apply_linear(self.up, x, activation=self.activation, batch_invariant=batch_invariant)
        else:
            gate = apply_linear(self.gate, x, activation=self.activation, batch_invariant=batch_invariant)
            hidden = gate * apply_linear(self.up, x, batch_invariant=batch_invariant)
        return apply_linear(self.down, apply_dropout(self.dropout, hidden), batch_invariant=batch_invariant)

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"
