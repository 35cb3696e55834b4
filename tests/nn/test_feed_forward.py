"""The feed-forward layer. Letters: M model width, F hidden width, N packed tokens."""

import pytest
import torch
from torch.nn import functional

from uwaga import Ragged
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


def test_packed_tokens_are_mapped_as_they_lie() -> None:
    layer = FeedForward(4, 6)
    batch = Ragged(torch.randn(5, 4), torch.tensor([0, 2, 5]))
    result = layer(batch)
    assert result.offsets is batch.offsets
    assert torch.equal(result.values, layer(batch.values))


def test_maps_without_biases() -> None:
    layer = FeedForward(4, 6, gated=True, bias=False)
    assert sorted(name for name, _ in layer.named_parameters()) == ["down.weight", "gate.weight", "up.weight"]


def test_hidden_numbers_are_dropped_in_training_only() -> None:
    layer = FeedForward(4, 64, dropout=0.5)
    x = torch.randn(4, 4)
    torch.manual_seed(0)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    torch.testing.assert_close(layer(x), layer.down(functional.gelu(layer.up(x))))
