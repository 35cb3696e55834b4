"""Keys whose bias makes their weights vanish are left out, and nothing shows it: bits are those of the same bias as a tensor,
of which nothing is left out, and what is not finite still spreads.

Letters: H query heads, N tokens, D width.
"""

import pytest
import torch
from torch import Tensor

from uwaga import AlibiBias, Causal, Ragged, Window, attention
from uwaga.ops import attention_and_lse

N, H, D = 2304, 2, 16
SLOPES = torch.tensor([0.5, 0.25])
MASKS = {"causal": Causal(), "none": None, "window": Window(1500, 0), "strictly past": Causal(include_self=False)}


def _operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(1, H, N, D, generator=generator).to(dtype) for _ in range(3))
    return query, key, value


def _dense() -> Tensor:
    """The bias of every query and key, (H, N, N)."""
    place = torch.arange(N)
    return -SLOPES[:, None, None] * (place - place[:, None]).abs()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_the_bits_are_those_of_all_keys(mask: str, dtype: torch.dtype) -> None:
    operands = _operands(dtype)
    near = attention_and_lse(*operands, mask=MASKS[mask], bias=AlibiBias(SLOPES), impl="cpu")
    whole = attention_and_lse(*operands, mask=MASKS[mask], bias=_dense(), impl="cpu")
    for one, other in zip(near, whole, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("size", [1.0, 1e10, 1e30])
def test_large_values_far_away_count_as_far_as_they_do(size: float) -> None:
    query, key, value = _operands()
    value[:, :, :200] *= size
    output = attention(query, key, value, mask=Causal(), bias=AlibiBias(SLOPES), impl="cpu")
    assert torch.equal(output, attention(query, key, value, mask=Causal(), bias=_dense(), impl="cpu"))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_far_away_still_spreads(number: float) -> None:
    query, key, value = _operands()
    value[0, 1, 5, 3] = number
    output = attention(query, key, value, mask=Causal(), bias=AlibiBias(SLOPES), impl="cpu")
    assert not output[0, 1, 5:, 3].isfinite().any()
    expected = attention(query, key, value, mask=Causal(), bias=_dense(), impl="cpu")
    torch.testing.assert_close(output, expected, rtol=0, atol=0, equal_nan=True)
    assert output[0, 0].isfinite().all()


def test_a_large_key_far_away_is_still_found() -> None:
    query, key, value = _operands()
    key[:, :, 0] = 200 * query[:, :, -1]
    _, lse = attention_and_lse(query, key, value, mask=Causal(), bias=AlibiBias(SLOPES), impl="cpu")
    score = (query[0, :, -1] * key[0, :, 0]).sum(-1) / D**0.5 - SLOPES * (N - 1)
    assert (lse[0, 1, -1] >= score[1] - 1e-2).all()
    assert torch.equal(lse, attention_and_lse(query, key, value, mask=Causal(), bias=_dense(), impl="cpu")[1])


def test_ragged_rows_give_the_bits_of_each_alone() -> None:
    operands = [x[0].transpose(0, 1) for x in _operands()]
    lengths = [1100, 4, 1200]
    parts = [x.split(lengths) for x in operands]
    ragged = (Ragged.from_list([part.contiguous() for part in rows]) for rows in parts)
    packed = attention(*ragged, mask=Causal(), bias=AlibiBias(SLOPES), impl="cpu")
    for n, value in enumerate(packed.values.split(lengths)):
        alone = (part[n].transpose(0, 1)[None] for part in parts)
        expected = attention(*alone, mask=Causal(), bias=AlibiBias(SLOPES), impl="cpu")
        assert torch.equal(value, expected[0].transpose(0, 1))
