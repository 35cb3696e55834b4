"""The feed-forward layer. Letters: M model width, F hidden width, N packed tokens."""

import pytest
import torch
from torch.nn import functional

from uwaga.nn import FeedForward

FORMULAS = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", FORMULAS)
def test_it_is_its_formula(activation: str, gated: bool) -> None:
    layer = FeedForward(4, 6, activation=activation, gated=gated, dtype=torch.float64)
    x = torch.randn(3, 4, dtype=torch.float64)
    activate = FORMULAS[activation]
    hidden = activate(layer.gate(x)) * layer.up(x) if gated else activate(layer.up(x))
    torch.testing.assert_close(layer(x), hidden @ layer.down.weight.T + layer.down.bias)
