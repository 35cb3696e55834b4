"""Output, lse and map from one pass.

Letters: B batch, H query heads, G key heads, Q queries, K keys, D query/key width, E value width.
"""

import pytest
import torch
from engines import NATIVE
from torch import Tensor

from uwaga import AlibiBias, AttentionMap, Causal, KeyLengths, Ragged, Window, attend, attention
from uwaga.ops import attention_and_lse

OPTIONS = {
    "plain": {},
    "causal": {"mask": Causal()},
    "rows that see nothing": {"mask": Causal(include_self=False, start=0) & KeyLengths(torch.tensor([0, 30]))},
    "the rest": {
        "mask": Window(9, 2),
        "bias": AlibiBias(torch.tensor([0.5, 0.25, 0.125, 0.1])),
        "sinks": torch.tensor([0.0, 1.0, 2.0, -1.0]),
        "softcap": 5.0,
        "scale": 0.3,
    },
}


def _operands(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(shape).to(dtype) for shape in ((2, 4, 40, 16), (2, 2, 50, 16), (2, 2, 50, 24))]


@pytest.mark.parametrize("impl", [NATIVE])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in OPTIONS), ("the rest", torch.bfloat16)],
)
def test_it_is_attention_bit_for_bit(impl: str, name: str, dtype: torch.dtype) -> None:
    operands = _operands(dtype)
    output, lse, m = attend(*operands, **OPTIONS[name], impl=impl)
    expected = attention_and_lse(*operands, **OPTIONS[name], impl=impl)
    assert torch.equal(output, expected.output)
    assert output.stride() == expected.output.stride()
    torch.testing.assert_close(lse, expected.lse)
    assert torch.equal(m.lse, lse)


@pytest.mark.parametrize("impl", ["reference", NATIVE])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_output_is_the_weights_times_the_values(impl: str, name: str) -> None:
    query, key, value = _operands()
    output, lse, m = attend(query, key, value, **OPTIONS[name], impl=impl, entropy=True, topk=3)
    torch.testing.assert_close(output, m.to_dense() @ value.repeat_interleave(2, dim=1))
    alone = AttentionMap(query, key, **OPTIONS[name], impl=impl)
    for result, expected in (
        (lse, alone.lse),
        (m.entropy(), alone.entropy()),
        (m.topk(3).weights, alone.topk(3).weights),
        (m.to_dense(), alone.to_dense()),
    ):
        torch.testing.assert_close(result, expected)
    assert torch.equal(m.peak().position, alone.peak().position)
    assert repr(m) == repr(alone)


@pytest.mark.parametrize("impl", ["reference", NATIVE, None])
@pytest.mark.parametrize("name", OPTIONS)
def test_output_lse_and_map_are_differentiable(impl: str | None, name: str) -> None:
    operands = [x.requires_grad_() for x in _operands()]
    output, lse, m = attend(*operands, **OPTIONS[name], impl=impl, entropy=True)
    expected = attention_and_lse(*operands, **OPTIONS[name], impl="reference")
    torch.testing.assert_close(output, expected.output)
    torch.testing.assert_close(m.lse, lse)
    dense = AttentionMap(*operands[:2], **OPTIONS[name]).to_dense().detach()
    torch.testing.assert_close(m.entropy(), torch.special.entr(dense).sum(-1))
    seen = expected.lse.isfinite()
    result = torch.autograd.grad(output.sum() + lse[seen].sum() + m.lse[seen].sum(), operands)
    expected_gradients = torch.autograd.grad(expected.output.sum() + 2 * expected.lse[seen].sum(), operands)
    for x, y in zip(result, expected_gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("impl", ["reference", NATIVE])
def test_dropout_is_of_the_output_alone(impl: str) -> None:
    operands = _operands()
    torch.manual_seed(3)
    output, lse, m = attend(*operands, dropout=0.5, impl=impl, topk=1)
    torch.manual_seed(3)
    torch.testing.assert_close(output, attention(*operands, dropout=0.5, impl=impl))
    whole = attend(*operands, impl=impl)
    assert not torch.allclose(output, whole.output)
    torch.testing.assert_close(lse, whole.lse)
    torch.testing.assert_close(m.to_dense(), whole.map.to_dense())
    torch.testing.assert_close(m.peak().weight, whole.map.peak().weight)


@pytest.mark.parametrize("impl", ["reference", NATIVE])
def test_ragged_in_ragged_out(impl: str) -> None:
    query, key, value = (Ragged.from_list([torch.randn(n, heads, 8) for n in (7, 0, 5)]) for heads in (4, 2, 2))
    output, lse, m = attend(query, key, value, mask=Causal(), impl=impl, entropy=True)
    torch.testing.assert_close(output.values, attention(query, key, value, mask=Causal()).values)
    assert lse.values.shape == m.entropy().values.shape == (12, 4)
    torch.testing.assert_close(m[2].to_dense(), AttentionMap(query, key, mask=Causal())[2].to_dense())
