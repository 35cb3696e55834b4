"""Query, key and value by one product: the numbers of three, forward, backward and twice; and not where somebody looks on."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from uwaga import Ragged
from uwaga.nn import MultiHeadAttention, joint


def linears(widths: tuple[int, ...], *, bias: bool = True, width: int = 6) -> list[nn.Linear]:
    return [nn.Linear(width, each, bias) for each in widths]


def separately(made: list[nn.Linear], x: Tensor) -> list[Tensor]:
    return [functional.linear(x, each.weight, each.bias) for each in made]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 6), (0, 6)])
def test_the_maps_and_their_gradients_are_those_of_each_alone(shape: tuple[int, ...], bias: bool) -> None:
    made, x = linears((8, 4, 4), bias=bias), torch.randn(shape, requires_grad=True)
    assert joint.is_worthwhile(made, x)
    found, expected = joint.maps(made, x), separately(made, x)
    weights = [torch.randn_like(each) for each in expected]
    inputs = [x, *(parameter for each in made for parameter in each.parameters())]
    for one, other in zip(
        (*found, *torch.autograd.grad(found, inputs, weights)),
        (*expected, *torch.autograd.grad(expected, inputs, weights)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_second_derivatives_reach_the_weights_too() -> None:
    made, x = linears((3, 2)), torch.randn(4, 6, requires_grad=True)
    inputs = [x, *(each.weight for each in made)]

    def penalty(parts: list[Tensor] | tuple[Tensor, ...]) -> list[Tensor]:
        first = torch.autograd.grad(sum((part**3).sum() for part in parts), inputs, create_graph=True)
        return list(torch.autograd.grad(sum((one**2).sum() for one in first), inputs))

    for one, other in zip(penalty(joint.maps(made, x)), penalty(separately(made, x)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_frozen_map_or_input_gets_no_gradient() -> None:
    made, x = linears((4, 4, 4)), torch.randn(5, 6)
    made[1].requires_grad_(False)
    sum(part.sum() for part in joint.maps(made, x)).backward()
    assert made[1].weight.grad is None
    assert made[1].bias.grad is None
    torch.testing.assert_close(made[2].weight.grad, x.sum(0).expand(4, 6))


def test_a_weight_changed_before_the_backward_pass_is_noticed() -> None:
    made, x = linears((4, 4)), torch.randn(5, 6, requires_grad=True)
    query, _ = joint.maps(made, x)
    with torch.no_grad():
        made[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        query.sum().backward()


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 30, 255, 257])
def test_a_token_gives_the_same_bits_among_any_others(rows: int) -> None:
    made, x = linears((64, 32, 32), width=64), torch.randn(300, 64)
    for part, whole in zip(joint.maps(made, x[:rows]), joint.maps(made, x), strict=True):
        assert torch.equal(part, whole[:rows])


def test_who_looks_on_sees_each_map() -> None:
    x = torch.randn(5, 6)
    assert joint.is_worthwhile(linears((4, 4)), x)
    with torch.no_grad():
        assert not joint.is_worthwhile(linears((4, 4)), x)
    with torch.autocast("cpu", torch.bfloat16):
        assert not joint.is_worthwhile(linears((4, 4)), x)
    assert not joint.is_worthwhile(linears((4, 4)), x.double())
    hooked = linears((4, 4))
    hooked[1].register_forward_hook(lambda *_: None)
    assert not joint.is_worthwhile(hooked, x)
    assert not joint.is_worthwhile([*linears((4,)), nn.Sequential(nn.Linear(6, 4))], x)
    assert not joint.is_worthwhile([*linears((4,)), *linears((4,), bias=False)], x)


@pytest.mark.parametrize("ragged", [True, False])
def test_a_layer_in_training_gives_what_it_gives_without_gradients(ragged: bool) -> None:
    layer = MultiHeadAttention(16, 4, key_heads=2)
    x = Ragged(torch.randn(7, 16), torch.tensor([0, 3, 7])) if ragged else torch.randn(2, 5, 16)
    training = layer(x)
    with torch.no_grad():
        apart = layer(x)
    if ragged:
        training, apart = training.values, apart.values
    torch.testing.assert_close(training, apart)
    seen = []
    layer.key.register_forward_hook(lambda module, inputs, output: seen.append(output))
    layer(x)
    assert len(seen) == 1
