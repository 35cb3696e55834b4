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
    return [nn.Linear(width, each, bias) for each in widths]


def separately(made: list[nn.Linear], x: Tensor) -> list[Tensor]:
    return [functional.linear(x, each.weight, each.bias) for each in made]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 6), (0, 6), (300, 6)])
def test_the_maps_and_their_gradients_are_those_of_each_alone(
    shape: tuple[int, ...], bias: bool, assert_as_exact: Callable[[Tensor, Tensor, Callable[[], Tensor]], None]
) -> None:
    torch.manual_seed(0)
    made, x = linears((8, 4, 4), bias=bias), torch.randn(shape, requires_grad=True)
    cotangents = [torch.randn(*shape[:-1], each.out_features) for each in made]

    def results(maps: Callable[[list[nn.Linear], Tensor], Any], dtype: torch.dtype) -> Tensor:
        copies, y = [copy.deepcopy(each).to(dtype) for each in made], x.detach().to(dtype).requires_grad_()
        outputs = maps(copies, y)
        inputs = [y, *(parameter for each in copies for parameter in each.parameters())]
        result = torch.autograd.grad(outputs, inputs, [cotangent.to(dtype) for cotangent in cotangents])
        return torch.cat([output.detach().flatten() for output in (*outputs, *result)])

    ours = results(attention.fused_linears, torch.float32)
    assert_as_exact(ours, results(separately, torch.float32), lambda: results(separately, torch.float64))


def test_a_frozen_map_or_input_gets_no_gradient() -> None:
    made, x = linears((4, 4, 4)), torch.randn(5, 6)
    made[1].requires_grad_(False)
    sum(part.sum() for part in attention.fused_linears(made, x)).backward()
    assert made[1].weight.grad is None
    assert made[1].bias.grad is None
    torch.testing.assert_close(made[2].weight.grad, x.sum(0).expand(4, 6))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 30, 255, 257])
def test_a_token_gives_the_same_bits_among_any_others(rows: int) -> None:
    made, x = linears((64, 32, 32), width=64), torch.randn(300, 64)
    for part, whole in zip(attention.fused_linears(made, x[:rows]), attention.fused_linears(made, x), strict=True):
        assert torch.equal(part, whole[:rows])


MANY = 300


def test_who_looks_on_sees_each_map() -> None:
    x = torch.randn(MANY, 6)
    assert attention.fuses(linears((4, 4)), x)
    with torch.no_grad():
        assert not attention.fuses(linears((4, 4)), x)
    with torch.autocast("cpu", torch.bfloat16):
        assert not attention.fuses(linears((4, 4)), x)
    assert not attention.fuses(linears((4, 4)), x.double())
    hooked = linears((4, 4))
    hooked[1].register_forward_hook(lambda *_: None)
    assert not attention.fuses(hooked, x)
    assert not attention.fuses([*linears((4,)), nn.Sequential(nn.Linear(6, 4))], x)
    assert not attention.fuses([*linears((4,)), *linears((4,), bias=False)], x)
    assert not attention.fuses([*linears((4,)), *linears((4,), width=5)], x)


def test_where_it_would_cost_more_the_maps_stay_apart() -> None:
    """Few tokens, fewer than numbers in each, and no gradient required."""
    made = linears((4, 4))
    assert not attention.fuses(made, torch.randn(255, 6))
    assert not attention.fuses(linears((4, 4), width=400), torch.randn(399, 400))
    for each in made:
        each.requires_grad_(False)
    assert not attention.fuses(made, torch.randn(MANY, 6))
    assert attention.fuses(made, torch.randn(MANY, 6, requires_grad=True))


@pytest.mark.parametrize("ragged", [True, False])
def test_a_layer_in_training_gives_what_it_gives_without_gradients(ragged: bool) -> None:
    layer = MultiHeadAttention(16, 4, num_kv_heads=2)
    x = Ragged(torch.randn(MANY, 16), torch.tensor([0, 3, MANY])) if ragged else torch.randn(2, MANY // 2, 16)
    training = layer(x)
    with torch.no_grad():
        apart = layer(x)
    if ragged:
        training, apart = training.values, apart.values
    assert "_FusedLinears" in _recorded(training.grad_fn)
    torch.testing.assert_close(training, apart)
    seen = []
    layer.key.register_forward_hook(lambda module, inputs, output: seen.append(output))
    layer(x)
    assert len(seen) == 1


def _recorded(node: Any) -> str:
    """The names of a graph's nodes."""
    result, waiting = set(), [node]
    while waiting:
        one = waiting.pop()
        result.add(one.name())
        waiting += [each for each, _ in one.next_functions if each is not None]
    return " ".join(sorted(result))
