"""Fused QKV: one product gives the results of three, forward, backward and double backward; and where it is not used."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from uwaga import Ragged
from uwaga.nn import MultiHeadAttention, attention


def linears(widths: tuple[int, ...], *, bias: bool = True, width: int = 6) -> list[nn.Linear]:
    return [nn.Linear(width, out_width, bias) for out_width in widths]


def separately(made: list[nn.Linear], x: Tensor) -> list[Tensor]:
    return [functional.linear(x, linear.weight, linear.bias) for linear in made]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 6), (0, 6), (300, 6)])
def test_the_maps_and_their_gradients_are_those_of_each_alone(
    shape: tuple[int, ...], bias: bool, assert_as_exact: Callable[[Tensor, Tensor, Callable[[], Tensor]], None]
) -> None:
    torch.manual_seed(0)
    made, x = linears((8, 4, 4), bias=bias), torch.randn(shape, requires_grad=True)
    cotangents = [torch.randn(*shape[:-1], linear.out_features) for linear in made]

    def results(maps: Callable[[list[nn.Linear], Tensor], Any], dtype: torch.dtype) -> Tensor:
        copies, y = [copy.deepcopy(linear).to(dtype) for linear in made], x.detach().to(dtype).requires_grad_()
        outputs = maps(copies, y)
        inputs = [y, *(parameter for linear in copies for parameter in linear.parameters())]
        result = torch.autograd.grad(outputs, inputs, [cotangent.to(dtype) for cotangent in cotangents])
        return torch.cat([output.detach().flatten() for output in (*outputs, *result)])

    ours = results(attention.fused_linears, torch.float32)
    assert_as_exact(ours, results(separately, torch.float32), lambda: results(separately, torch.float64))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 30, 255, 257])
def test_a_token_gives_the_same_bits_among_any_others(rows: int) -> None:
    made, x = linears((64, 32, 32), width=64), torch.randn(300, 64)
    for part, whole in zip(attention.fused_linears(made, x[:rows]), attention.fused_linears(made, x), strict=True):
        assert torch.equal(part, whole[:rows])


@pytest.mark.parametrize("ragged", [True, False])
def test_a_layer_in_training_gives_what_it_gives_without_gradients(ragged: bool) -> None:
    layer = MultiHeadAttention(16, 4, num_kv_heads=2)
    x = Ragged(torch.randn(300, 16), torch.tensor([0, 3, 300])) if ragged else torch.randn(2, 150, 16)
    assert attention.fuses((layer.query, layer.key, layer.value), x.values if isinstance(x, Ragged) else x)
    training = layer(x)
    with torch.no_grad():
        apart = layer(x)
    if ragged:
        training, apart = training.values, apart.values
    torch.testing.assert_close(training, apart)


def test_a_hooked_map_a_frozen_one_and_autocast_are_as_without_fusing() -> None:
    layer, x, seen = MultiHeadAttention(16, 4), torch.randn(300, 16), []
    layer.key.weight.requires_grad_(False)
    layer(x).sum().backward()
    assert layer.key.weight.grad is None
    assert layer.value.weight.grad is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    layer.key.register_forward_hook(lambda *_: seen.append(1))
    layer(x)
    assert seen == [1]
