"""ALiBi's slopes and T5's buckets as modules. Letters: H heads, Q queries, K keys."""

import pytest
import torch

from uwaga import Causal
from uwaga.nn import AlibiPositions, MultiHeadAttention, RelativePositions


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),  # the paper's example
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),  # four heads', then every second of eight heads'
    ],
)
def test_slopes_are_the_papers(heads: int, slopes: list[float]) -> None:
    assert AlibiPositions(heads).slopes.tolist() == slopes


def test_slopes_bias_attention_by_distance_and_are_not_saved() -> None:
    positions = AlibiPositions(2)
    assert not positions.state_dict()
    layer, x = MultiHeadAttention(8, 2, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    distance_QK = (torch.arange(5) - torch.arange(5)[:, None]).abs()
    expected = layer(x, bias=-positions.slopes.double()[:, None, None] * distance_QK, mask=Causal())
    torch.testing.assert_close(layer(x, bias=positions(), mask=Causal()), expected)


def test_buckets_are_learned_from_zero() -> None:
    positions = RelativePositions(2, num_buckets=8, max_distance=20)
    layer, x = MultiHeadAttention(8, 2), torch.randn(5, 8)
    assert torch.equal(layer(x, bias=positions()), layer(x, bias=torch.zeros(2, 5, 5)))
    (gradient,) = torch.autograd.grad(layer(x, bias=positions()).square().sum(), positions.weight)
    assert gradient.count_nonzero() > 0
    assert (AlibiPositions(2)(3).start, RelativePositions(2)(start=4).start) == (3, 4)
