"""Dropout is a function of (seed, position). Letters: B sequences, H query heads, Q queries, K keys."""

import pytest
import torch
from engines import NATIVE

from uwaga import Ragged, attention, explain
from uwaga.ops.attention.reference import kept

MASK_32, MASK_64 = 2**32 - 1, 2**64 - 1


def _splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK_64
    return x ^ (x >> 31)


def _kept(seed: int, p: float, b: int, h: int, heads: int, i: int, j: int) -> bool:
    row = _splitmix((_splitmix((seed + b * heads + h) & MASK_64) + i) & MASK_64) & MASK_32
    x = (row + j * 0x9E3779B1) & MASK_32
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK_32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK_32
    return x ^ (x >> 16) >= min(int(p * 2**32), MASK_32)


@pytest.mark.parametrize("seed", [0, 1, 2**62 + 12345])
def test_the_hash_is_the_documented_one(seed: int) -> None:
    result = kept(torch.tensor(seed), 0.4, 2, 3, 4, 5, "cpu")
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in (2, 3, 4, 5))).tolist():
        assert bool(result[b, h, i, j]) == _kept(seed, 0.4, b, h, 3, i, j)


@pytest.mark.parametrize("impl", ["reference", NATIVE])
def test_a_ragged_row_counts_as_a_sequence(impl: str) -> None:
    rows = [torch.randn(n, 2, 4) for n in (3, 5)]
    batch = Ragged.from_list(rows)
    torch.manual_seed(1)
    packed = attention(batch, batch, batch, dropout=0.5, impl=impl)
    padded = batch.to_padded().transpose(1, 2)
    torch.manual_seed(1)
    alone = attention(padded, padded, padded, mask=_inside(batch), dropout=0.5, impl="reference")
    torch.testing.assert_close(packed.to_padded().transpose(1, 2)[0, :, :3], alone[0, :, :3])
    torch.testing.assert_close(packed.to_list()[1].transpose(0, 1), alone[1])


def test_a_refused_call_and_explain_draw_no_random_number() -> None:
    before, x = torch.get_rng_state(), torch.zeros(2, 4, 8)
    with pytest.raises(ValueError):
        attention(x, x, x, dropout=0.5, softcap=-1.0)
    explain(x, x, x, dropout=0.5)
    assert torch.equal(torch.get_rng_state(), before)


def _inside(batch: Ragged) -> torch.Tensor:
    return (torch.arange(batch.max_length) < batch.lengths[:, None])[:, None, None]
