"""Derivatives: against finite differences in float64, twice; and the promises about what is kept for them.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import pytest
import torch
from engines import NATIVE, needs_native

from uwaga import AlibiBias, Causal, KeyLengths, Ragged, RelativeBias, Window, attention
from uwaga.ops import attention_and_lse

OPTIONS = {
    "plain": {},
    "causal": {"mask": Causal()},
    "strictly past": {"mask": Causal(include_self=False)},
    "an empty row": {"mask": KeyLengths(torch.tensor([0, 3])) & Window(2, 2)},
    "softcap": {"softcap": 1.5},
    "dropout": {"dropout": 0.4},
}


def _operands(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 2, 3, 4), (2, 1, 5, 4), (2, 1, 5, 3))
    return [torch.randn(x, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for x in shapes]


@pytest.mark.slow
@pytest.mark.gate(only=lambda name: name == "causal")
@pytest.mark.parametrize("name", OPTIONS)
def test_the_reference_is_its_own_derivative_twice(name: str) -> None:
    def f(q, k, v):
        torch.manual_seed(0)
        out, lse = attention_and_lse(q, k, v, **OPTIONS[name])
        return out, lse[lse.isfinite()]

    assert torch.autograd.gradcheck(f, _operands(), fast_mode=True)
    assert torch.autograd.gradgradcheck(f, _operands(), fast_mode=True)


@pytest.mark.slow
def test_gradients_reach_biases_tables_and_sinks() -> None:
    generator = torch.Generator().manual_seed(1)
    extras = [torch.randn(x, generator=generator, dtype=torch.float64).requires_grad_() for x in ((2,), (8, 2), (3, 5))]

    def f(q, k, v, sinks, table, dense):
        one = attention(q, k, v, sinks=sinks, bias=RelativeBias(table, max_distance=16))
        two = attention(q, k, v, bias=dense, mask=Causal())
        return one, two, attention(q, k, v, bias=AlibiBias(sinks))

    assert torch.autograd.gradcheck(f, (*_operands(), *extras), fast_mode=True)
    assert torch.autograd.gradgradcheck(f, (*_operands(), *extras), fast_mode=True)


@pytest.mark.stress
@pytest.mark.parametrize("mask", [None, Causal(), Causal(include_self=False), Causal(start=1)], ids=str)
def test_the_linear_form_is_its_own_derivative_twice(mask: Causal | None) -> None:
    def f(q, k, v):
        return attention(q, k, v, normalize=None, mask=mask, impl="linear")

    operands = [x[0].detach().requires_grad_() for x in _operands()]
    assert torch.autograd.gradcheck(f, operands, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, operands, fast_mode=True)


def test_ragged_is_its_own_derivative_twice() -> None:
    values = torch.randn(6, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    offsets = torch.tensor([0, 2, 2, 6])

    def f(x):
        batch = Ragged(x, offsets)
        return attention(batch, batch, batch, mask=Causal()).values

    assert torch.autograd.gradcheck(f, (values,), fast_mode=True)
    assert torch.autograd.gradgradcheck(f, (values,), fast_mode=True)


@pytest.mark.parametrize("impl", [NATIVE])
@pytest.mark.parametrize("name", OPTIONS)
def test_second_derivatives_of_the_native_engine_are_the_references(impl: str, name: str) -> None:
    result, exact = [], []
    for engine, dtype, into in ((impl, torch.float32, result), ("reference", torch.float64, exact)):
        operands = _operands(dtype)
        torch.manual_seed(0)
        out = attention(*operands, impl=engine, **OPTIONS[name])
        first = torch.autograd.grad(out.square().sum(), operands, create_graph=True)
        into += torch.autograd.grad(sum(x.square().sum() for x in first), operands)
    for x, y in zip(result, exact, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("impl", [NATIVE])
def test_the_output_may_be_changed_in_place(impl: str) -> None:
    query, key, value = _operands(torch.float32)
    inside = query.transpose(1, 2).contiguous().transpose(1, 2)
    for q in (query, inside):
        out = attention(q * 1.0, key, value, impl=impl)
        out.add_(1.0)
        out.sum()


BATCHED = {
    "plain": {},
    "causal": {"mask": Causal()},
    "ragged": {},
    "no softmax": {"normalize": None, "softcap": 1.0},
    "everything": {
        "mask": Causal() & KeyLengths(torch.tensor([3, 5])),
        "bias": AlibiBias(torch.tensor([0.5, 0.1])),
        "sinks": torch.tensor([0.3, -0.2]),
        "softcap": 2.0,
    },
}


@pytest.mark.parametrize("impl", ["reference", NATIVE])
@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_of_gradients_is_a_loop(name: str, impl: str) -> None:
    """torch.autograd.grad(..., is_grads_batched=True)."""
    operands = _operands(torch.float32)
    if name == "ragged":
        offsets = torch.tensor([0, 2, 2, 6])
        values = torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0))
        operands = [(values * n).requires_grad_() for n in (1.0, 0.5, 2.0)]
        out = attention(*(Ragged(x, offsets) for x in operands), impl=impl).values
    else:
        out = attention(*operands, impl=impl, **BATCHED[name])
    weights = torch.randn(3, *out.shape, generator=torch.Generator().manual_seed(1))
    result = torch.autograd.grad(out, operands, weights, is_grads_batched=True, retain_graph=True)
    loop = [torch.autograd.grad(out, operands, weight, retain_graph=True) for weight in weights]
    for x, parts in zip(result, zip(*loop, strict=True), strict=True):
        torch.testing.assert_close(x, torch.stack(parts))


@needs_native
@pytest.mark.parametrize("hidden", [0.0, float("inf")])
@pytest.mark.parametrize("chosen", [(0,), (1,), (2,), (0, 2)])
def test_a_gradient_without_the_others_has_the_same_bits(chosen: tuple[int, ...], hidden: float) -> None:
    """A product of a gradient that nobody wants is not computed, also where the last key, which no query sees, is infinite."""
    generator = torch.Generator().manual_seed(0)
    operands = [torch.randn(1, 2, 130, 16, generator=generator) for _ in range(4)]
    operands[1][..., -1, 0] = hidden
    mask = Causal() & KeyLengths(torch.tensor(129))

    def gradients_of(numbers: tuple[int, ...]) -> dict[int, torch.Tensor]:
        inputs = [x.clone().requires_grad_(n in numbers) for n, x in enumerate(operands[:3])]
        output = attention(*inputs, mask=mask, impl="cpu")
        result = torch.autograd.grad(output, [inputs[n] for n in numbers], operands[3])
        return dict(zip(numbers, result, strict=True))

    together = gradients_of((0, 1, 2))
    for n, gradient in gradients_of(chosen).items():
        assert torch.equal(gradient, together[n])
        assert gradient.isfinite().all()
