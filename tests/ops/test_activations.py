"""GELU and its gradient: exact beside PyTorch's, in every mode of PyTorch, and the same bits for every number."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from uwaga.ops.activations import gelu, gelu_backward

FORMS = ["none", "tanh"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def _draw(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_is_at_least_as_exact_as_pytorchs(dtype: torch.dtype, approximate: str) -> None:
    x, grad = _draw(300, 70).to(dtype), _draw(300, 70, seed=1).to(dtype)
    exact = torch.ops.aten.gelu_backward(grad.double(), x.double(), approximate=approximate)
    result = (gelu_backward(grad, x, approximate) - exact).abs()
    torchs = (torch.ops.aten.gelu_backward(grad, x, approximate=approximate) - exact).abs()
    assert result.max() <= torchs.max()
    assert result.square().mean() <= torchs.square().mean() * 1.001


@pytest.mark.parametrize("approximate", FORMS)
def test_edges(approximate: str) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([0.0, -0.0, nan, 1e4, -1e4, 14.6, -14.6, inf, -inf])
    expected = torch.ops.aten.gelu_backward(torch.ones(9), x, approximate=approximate)
    torch.testing.assert_close(gelu_backward(torch.ones(9), x, approximate), expected, equal_nan=True)


@pytest.mark.parametrize("approximate", FORMS)
def test_a_number_has_the_same_bits_in_any_tensor(approximate: str) -> None:
    x, grad = _draw(700, 48), _draw(700, 48, seed=1)
    whole = gelu_backward(grad, x, approximate)
    assert torch.equal(gelu_backward(grad[5:6], x[5:6], approximate), whole[5:6])
    assert torch.equal(gelu_backward(grad[:, 3], x[:, 3], approximate), whole[:, 3])
    torch.set_num_threads(3)
    assert torch.equal(gelu_backward(grad, x, approximate), whole)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (2, 3, 5)])
def test_any_shape_and_layout(shape: tuple[int, ...]) -> None:
    x = _draw(*shape).requires_grad_()
    gelu(x).sum().backward()  # an expanded gradient
    expected = torch.ops.aten.gelu_backward(torch.ones(shape), x.detach())
    torch.testing.assert_close(x.grad, expected)
    y = x.detach().movedim(0, -1).requires_grad_() if shape else x.detach().requires_grad_()
    gelu(y).sum().backward()
    torch.testing.assert_close(y.grad, expected.movedim(0, -1) if shape else expected)


@pytest.mark.parametrize("approximate", FORMS)
def test_gradients_of_gradients(approximate: str) -> None:
    x = _draw(4, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: gelu(x, approximate), x)
    assert torch.autograd.gradgradcheck(lambda x: gelu(x, approximate), x)
    y = x.detach().float().requires_grad_()
    (first,) = torch.autograd.grad(gelu(y, approximate).sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), y)
    (torch_first,) = torch.autograd.grad(functional.gelu(x, approximate=approximate).sum(), x, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(torch_first.sum(), x)[0].float())


def test_batched_gradients_transforms_and_autocast() -> None:
    x = _draw(4, 3).requires_grad_()
    jacobian = torch.autograd.functional.jacobian(gelu, x, vectorize=True)
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(functional.gelu, x))
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lambda row: gelu(row).sum()))(x.detach()), _slope(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert gelu(x.bfloat16()).dtype is torch.bfloat16


def _slope(x: Tensor) -> Tensor:
    return torch.autograd.grad(functional.gelu(x).sum(), x)[0]
