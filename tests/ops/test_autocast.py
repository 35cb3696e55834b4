"""Autocast says in which type models hand over their tensors; the arithmetic of attention stays what it is.

Letters: B batch, H query heads, Q queries, K keys, D query/key width.
"""

import pytest
import torch

from uwaga import Causal, KeyLengths, attention

CALLS = {
    "plain": {},
    "causal": {"mask": Causal()},
    "no softmax": {"normalize": None},
    "no softmax, causal behind a prefix": {"normalize": None, "mask": Causal(start=4)},
    "no softmax, padded": {"normalize": None, "mask": KeyLengths(torch.tensor([3, 7]))},
    "by the reference": {"impl": "reference"},
    "by PyTorch": {"impl": "torch"},
}


def _leaves() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, 7, 8, generator=generator).requires_grad_() for _ in range(3)]


def _results(leaves: list[torch.Tensor], options: dict, *, differentiable: bool = True) -> list[torch.Tensor]:
    output = attention(*leaves, **options)
    first = torch.autograd.grad(output.square().sum(), leaves, create_graph=differentiable)
    second = torch.autograd.grad(first[0].square().sum(), leaves) if differentiable else ()
    return [output, *first, *second]


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_results_and_derivatives_are_those_outside(options: dict) -> None:
    differentiable = options.get("impl") != "torch"  # PyTorch's kernel has no second derivatives
    leaves = _leaves()
    expected = _results(leaves, options, differentiable=differentiable)
    with torch.autocast("cpu", torch.bfloat16):
        if not differentiable:
            results = [attention(*leaves, **options)]
        else:
            results = _results(leaves, options)
    for x, y in zip(results, expected, strict=False):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_compiled_call_too() -> None:
    torch.compiler.reset()
    x = _leaves()[0].detach()
    compiled = torch.compile(lambda x: attention(x, x, x, normalize=None), fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), attention(x, x, x, normalize=None))
    torch.testing.assert_close(compiled(x), attention(x, x, x, normalize=None))
