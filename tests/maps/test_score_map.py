"""The scores behind the weights."""

import pytest
import torch

import uwaga
from uwaga.maps.map import AttentionMap


def test_scores_are_those_of_the_formula() -> None:
    q, k, slopes = torch.randn(2, 4, 50, 8).double(), torch.randn(2, 2, 600, 8).double(), torch.rand(4).double()
    m = AttentionMap(q, k, mask=uwaga.Causal(), bias=uwaga.AlibiBias(slopes), softcap=5.0)
    distance = (torch.arange(50)[:, None] + 550 - torch.arange(600)).abs()
    capped = 5.0 * torch.tanh(q @ k.repeat_interleave(2, dim=1).mT / 8**0.5 / 5.0)
    expected = (capped - slopes[:, None, None] * distance).masked_fill(torch.ones(50, 600).triu(551).bool(), -torch.inf)
    torch.testing.assert_close(m.scores.to_dense(), expected)
    torch.testing.assert_close(m.scores[1, 2, [3, 49], 40:600:7], expected[1, 2, [3, 49], 40:600:7])


def test_weights_are_the_exponentials_of_scores() -> None:
    q, k = torch.randn(3, 70, 16), torch.randn(3, 90, 16)
    m = AttentionMap(q, k, mask=uwaga.Window(20, 0))
    torch.testing.assert_close((m.scores[:, 10:20, :] - m.lse[:, 10:20, None]).exp(), m[:, 10:20, :])


def test_a_ragged_map_has_scores_per_sequence() -> None:
    x = uwaga.Ragged.from_list([torch.randn(3, 2, 4), torch.randn(5, 2, 4)])
    m = AttentionMap(x, x)
    assert m.scores[1].shape == (2, 5, 5)
    torch.testing.assert_close(m.scores[1, 0, 2, :].softmax(-1), m[1, 0, 2, :])


@pytest.mark.parametrize("how", ["mass", "max"])
def test_pooling_some_rows_looks_at_these_alone(how: str) -> None:
    q, k = torch.randn(2, 300, 8), torch.randn(2, 500, 8)
    whole, part = AttentionMap(q, k), AttentionMap(q, k)
    edges = [100, 120, 140]
    some = part.pool(edges, 5, how=how)
    assert torch.equal(some.weights, whole.pool([0, *edges, 300], 5, how=how).weights[:, 1:3])
    assert part._rows.known is None
