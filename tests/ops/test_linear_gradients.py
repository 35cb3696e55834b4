"""Gradients of the linear map, first and second, by every engine; autocast, hooks and changes in place."""

from collections.abc import Callable

import engines
import pytest
import torch
from tolerance import once
from torch import Tensor
from torch.nn import functional

import uwaga
from uwaga.ops.activations import ACTIVATIONS
from uwaga.ops.linear.api import linear_map

by_engines = pytest.mark.parametrize("impl", engines.LINEAR)
native = pytest.mark.parametrize("impl", engines.NATIVE_LINEAR)
cases = pytest.mark.parametrize(("impl", "dtype"), engines.LINEAR_CASES)
activations = pytest.mark.parametrize("activation", [None, *ACTIVATIONS])

Operands = list[Tensor]


def operands(shape: tuple[int, ...] = (3, 4, 6), outputs: int = 5, dtype: torch.dtype = torch.float32) -> Operands:
    """x, weight, bias and residual, of which gradients are wanted."""
    torch.manual_seed(0)
    shapes = (shape, (outputs, shape[-1]), (outputs,), (*shape[:-1], outputs))
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def ours(inputs: Operands, activation: str | None, impl: str | None) -> Tensor:
    x, weight, bias, residual = inputs
    result = uwaga.linear(x, weight, bias, activation=activation, residual=residual, impl=impl)
    assert isinstance(result, Tensor)
    return result


def separately(inputs: Operands, activation: str | None) -> Tensor:
    x, weight, bias, residual = inputs
    mapped = functional.linear(x, weight, bias)
    return residual + (mapped if activation is None else ACTIVATIONS[activation](mapped))


@cases
@activations
def test_gradients_are_as_exact_as_those_of_pytorch(
    impl: str,
    dtype: torch.dtype,
    activation: str | None,
    assert_as_exact: Callable[[Tensor, Tensor, Callable[[], Tensor]], None],
) -> None:
    inputs = operands((7, 9, 40), 50, dtype)
    double = [x.detach().double().requires_grad_() for x in inputs]
    cotangent = torch.randn(7, 9, 50).to(dtype)
    result = torch.autograd.grad(ours(inputs, activation, impl), inputs, cotangent)
    peers = torch.autograd.grad(separately(inputs, activation), inputs, cotangent)
    exact = once(lambda: torch.autograd.grad(separately(double, activation), double, cotangent.double()))
    for n, (one, peer) in enumerate(zip(result, peers, strict=True)):
        assert_as_exact(one, peer, lambda n=n: exact()[n])


@native
@pytest.mark.parametrize("operand", range(4))
def test_only_what_is_wanted_gets_a_gradient(impl: str, operand: int) -> None:
    inputs = [x.detach() for x in operands()]
    inputs[operand].requires_grad_()
    ours(inputs, "gelu", impl).sum().backward()
    assert [x.grad is not None for x in inputs] == [number == operand for number in range(4)]
    with torch.no_grad():
        apart = ours(inputs, "gelu", impl)
    assert apart.grad_fn is None
    assert torch.equal(ours(inputs, "gelu", impl), apart)


@native
def test_a_weight_changed_before_the_backward_pass_is_noticed(impl: str) -> None:
    inputs = operands()
    output = ours(inputs, None, impl)
    with torch.no_grad():
        inputs[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def _second(f: Callable[[Operands], Tensor], inputs: Operands) -> tuple[Tensor, ...]:
    first = torch.autograd.grad((f(inputs) ** 3).sum(), inputs, create_graph=True)
    return torch.autograd.grad(sum((gradient**2).sum() for gradient in first), inputs)


def _batched(f: Callable[[Operands], Tensor], inputs: Operands) -> tuple[Tensor, ...]:
    rows = torch.randn(3, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad(f(inputs), inputs, rows, is_grads_batched=True)


def _hooked(f: Callable[[Operands], Tensor], inputs: Operands) -> tuple[Tensor, ...]:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.double(), lambda x: x.float()):
        output = f(inputs)
    return torch.autograd.grad(output.sum(), inputs)


WAYS = {
    "second derivatives": _second,
    "many at once": _batched,
    "saved tensors are replaced by hooks": _hooked,
    "one number, expanded": lambda f, inputs: torch.autograd.grad(f(inputs).sum(), inputs),
    "the result is changed in place": lambda f, inputs: torch.autograd.grad(f(inputs).mul_(2).sum(), inputs),
}


@native
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_by_any_way_are_those_of_pytorch(impl: str, activation: str | None, way: str) -> None:
    inputs = operands((3, 4, 6))
    result = WAYS[way](lambda inputs: ours(inputs, activation, impl), inputs)
    expected = WAYS[way](lambda inputs: separately(inputs, activation), inputs)
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("impl", [name for name, dtype in engines.LINEAR_CASES if dtype == torch.bfloat16])
@pytest.mark.parametrize("is_added", [False, True])
def test_autocast_computes_in_its_dtype_as_in_pytorch(impl: str, is_added: bool) -> None:
    inputs = operands((4, 6), 5)
    residual = inputs[3] if is_added else None
    with torch.autocast("cpu", torch.bfloat16):
        result = linear_map(*inputs[:3], "gelu", residual, impl)
        expected = functional.gelu(functional.linear(*inputs[:3]))
        expected = expected if residual is None else residual + expected
        assert result.dtype == expected.dtype == (torch.float32 if is_added else torch.bfloat16)
    torch.testing.assert_close(result, expected, rtol=2**-6, atol=2**-6)
    for one, other in zip(torch.autograd.grad(result.sum(), inputs[:3]), torch.autograd.grad(expected.sum(), inputs[:3]), strict=True):  # fmt: skip
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=2**-5, atol=2**-4)
