"""Layers, positions and a model compile to one graph each, which gives their numbers and gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from uwaga import Causal, KeyLengths, Ragged
from uwaga.models import Transformer, config
from uwaga.nn import (
    DecoderLayer,
    EncoderLayer,
    LayerSpec,
    LearnedPositions,
    MultiHeadAttention,
    RotaryPositions,
)

SPEC, LENGTHS = LayerSpec(d_model=8, num_heads=2, d_ff=12), torch.tensor([4, 1, 6])
SIZES = {"vocab_size": 20, "d_model": 8, "num_layers": 2, "num_heads": 2, "d_ff": 16, "max_position_embeddings": 16}
X, OFFSETS = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 5, 7, 18])
MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "packed encoder layer": (
        lambda: EncoderLayer(SPEC),
        lambda layer, x: layer(Ragged(x.flatten(0, 1), OFFSETS), mask=Causal()).values,
    ),
    "decoder layer": (
        lambda: DecoderLayer(SPEC),
        lambda layer, x: layer(x, 2 * x, mask=Causal(), memory_mask=KeyLengths(LENGTHS)),
    ),
    "learned positions of packed rows": (
        lambda: LearnedPositions(15, 8),
        lambda layer, x: layer(Ragged(x.flatten(0, 1), OFFSETS), 2).values,
    ),
    "rotary positions": (
        lambda: nn.ModuleList([RotaryPositions(4), MultiHeadAttention(8, 2)]),
        lambda layers, x: layers[1](x, rotary=layers[0](x), mask=Causal()),
    ),
    "model": (
        lambda: Transformer(config("gpt2", **SIZES)).eval(),
        lambda model, x: model(x[..., 0].abs().long()).logits,
    ),
}


@pytest.mark.slow
@pytest.mark.gate(only=lambda name: name == "packed encoder layer")
@pytest.mark.parametrize("name", MODULES)
def test_it_compiles_to_one_graph(name: str) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    make, run = MODULES[name]
    module, x = make(), X.clone().requires_grad_()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(name != "model"):  # of ids there are none
        results = [function(module, x) for function in (compiled, run)]
    torch.testing.assert_close(*results)
    if name != "model":
        inputs = [x, *module.parameters()]
        torch.testing.assert_close(*(torch.autograd.grad(result.square().sum(), inputs) for result in results))
