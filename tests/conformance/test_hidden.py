"""What a masked key or value holds cannot be found in any output or gradient, nan and infinity included.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import pytest
import torch
from torch import Tensor

from uwaga import Causal, Documents, KeyLengths, Window, attention, explain

Q = K = 70
BAD = {"nan": torch.nan, "infinity": torch.inf, "-infinity": -torch.inf}
_IDS = torch.tensor([0] * 40 + [1] * 30)

# Masks, and a key that some or all of the queries do not see.
MASKS = {
    "lengths": (KeyLengths(torch.tensor([30, 50])), 55),
    "causal": (Causal(), 35),
    "strictly past, the last key": (Causal(include_self=False), 69),
    "window": (Window(3, 3), 20),
    "documents": (Documents(_IDS), 50),
    "dense": (torch.rand(1, 1, Q, K, generator=torch.Generator().manual_seed(0)) < 0.5, 10),
}


def _operands(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, Q, 16), (2, 2, K, 16), (2, 2, K, 24))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def _run(operands: list[Tensor], mask, engine: str, sees: Tensor, options: dict) -> list[Tensor]:
    """The rows that do not see the key, and the gradients that only they have caused."""
    leaves = [x.detach().requires_grad_() for x in operands]
    output = attention(*leaves, mask=mask, impl=engine, **options)
    if engine == "reference" or not sees.any():
        # Rows that do see it are nan by right. Taken out of the loss they must not be felt by the others.
        gradients = torch.autograd.grad(output[:, :, ~sees].sum(), leaves)
        gradients = [gradients[0][:, :, ~sees], *(() if sees.any() else gradients[1:])]
    else:
        gradients = torch.autograd.grad(output.sum(), leaves)[:1]
        gradients = [gradients[0][:, :, ~sees]]
    return [output.detach()[:, :, ~sees], *gradients]


@pytest.mark.gate(
    only=lambda engine, bad, dtype: (
        engine.startswith("cpu") or (engine in ("torch", "flex") and bad == "nan" and dtype == torch.float32)
    )
)
@pytest.mark.parametrize("softmax", [True, False], ids=["softmax", "no softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", MASKS)
def test_hidden_numbers_never_leak(engine: str, name: str, bad: str, dtype: torch.dtype, softmax: bool) -> None:
    mask, at = MASKS[name]
    options = {} if softmax else {"normalize": None}
    operands = _operands(dtype)
    if engine in explain(*operands, mask=mask, **options).refused:
        return
    sees = _sees(mask, at)
    if engine in ("torch", "flex") and sees.any():
        return  # the one promise that PyTorch's kernels cannot keep: see torch_fused.py and flex.py
    if engine == "flex" and (bad != "nan" or dtype != torch.float32):
        return  # 50 ms a call on the CPU, and nothing in it looks at the number or the type
    expected = _run(operands, mask, engine, sees, options)
    spoilt = [operands[0], *(x.index_fill(2, torch.tensor(at), BAD[bad]) for x in operands[1:])]
    for x, y in zip(_run(spoilt, mask, engine, sees, options), expected, strict=True):
        torch.testing.assert_close(x, y)


def _sees(mask, at: int) -> Tensor:
    """(Q,) whether a query sees the key, in any sequence."""
    keys = torch.zeros(2, 1, K, 1)
    keys[:, :, at] = 1.0
    query = torch.zeros(2, 1, Q, 1)
    return attention(query, keys, keys, mask=mask, impl="reference").flatten(0, 1).any(0).squeeze(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_row_that_sees_nothing_gives_zeros_and_takes_no_part(engine: str, dtype: torch.dtype) -> None:
    query, key, value = _operands(dtype)
    mask = KeyLengths(torch.tensor([0, K]))
    options = {"normalize": None} if engine == "linear" else {}
    if engine in explain(query, key, value, mask=mask, **options).refused:
        return
    for x in (query, key, value):
        x[0] = torch.nan
    leaves = [x.requires_grad_() for x in (query, key, value)]
    output = attention(*leaves, mask=mask, impl=engine, **options)
    assert torch.equal(output[0], torch.zeros_like(output[0]))
    upstream = torch.ones_like(output)
    upstream[0] = torch.nan
    for gradient in torch.autograd.grad(output, leaves, upstream):
        assert torch.equal(gradient[0], torch.zeros_like(gradient[0]))
        assert gradient[1].isfinite().all()


def test_a_bias_of_minus_infinity_hides(engine: str) -> None:
    query, key, value = _operands(torch.float32)
    bias = torch.zeros(Q, K)
    bias[:, 7] = -torch.inf
    if engine in explain(query, key, value, bias=bias).refused:
        return
    spoilt_key, spoilt_value = (x.index_fill(2, torch.tensor(7), torch.nan) for x in (key, value))
    output = attention(query, spoilt_key, spoilt_value, bias=bias, impl=engine)
    torch.testing.assert_close(output, attention(query, key, value, bias=bias, impl=engine))
