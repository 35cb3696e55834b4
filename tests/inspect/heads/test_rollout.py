"""Rollout of one token against the product of dense matrices of Abnar & Zuidema."""

from functools import reduce

import pytest
import torch

import uwaga
from uwaga.inspect.heads.rollout import rollout
from uwaga.maps.map import AttentionMap


def layer(*batch: int, **options) -> AttentionMap:
    query, key = (torch.randn(*batch, 3, 7, 4).double() for _ in range(2))
    return AttentionMap(query, key, **{"mask": uwaga.Causal()} | options)


def dense_product(matrices_HNN: list[torch.Tensor], residual: float = 0.5) -> torch.Tensor:
    """(N, N): A_L ... A_1."""
    tokens = matrices_HNN[0].shape[-1]
    layers = [residual * torch.eye(tokens).double() + (1 - residual) * a.mean(0) for a in matrices_HNN]
    return reduce(lambda above, below: above @ below, reversed(layers))


@pytest.mark.parametrize("residual", [0.0, 0.5, 0.9])
def test_it_is_a_row_of_the_product(residual: float) -> None:
    maps = [layer(), layer(), layer(sinks=torch.full((3,), 3.0).double())]
    expected = dense_product([m.to_dense() for m in maps], residual)
    for token in (0, 3, -1):
        torch.testing.assert_close(rollout(maps, token, residual=residual), expected[token])
    assert float(expected[-1].sum()) < 0.99  # what a sink takes is missing


def test_every_sequence_of_a_batch_may_have_its_own_token() -> None:
    maps = [layer(2), layer(2)]
    result = rollout(maps, torch.tensor([1, -2]))
    for b, token in enumerate((1, -2)):
        torch.testing.assert_close(result[b], dense_product([m[b] for m in maps])[token])


def test_a_ragged_batch_gives_each_sequence_its_own() -> None:
    def ragged() -> uwaga.Ragged:
        return uwaga.Ragged.from_list([torch.randn(n, 3, 4).double() for n in (2, 5, 1)])

    maps = [AttentionMap(ragged(), ragged(), mask=uwaga.Causal()) for _ in range(3)]
    for r, result in enumerate(rollout(maps, -1).to_list()):
        torch.testing.assert_close(result, dense_product([m[r].to_dense() for m in maps])[-1])


def test_rows_that_the_token_cannot_reach_are_not_read() -> None:
    """A causal token does not depend on what comes after it, nan included."""
    query, key = torch.randn(2, 3, 7, 4).double()
    query[:, 5:] = torch.nan
    m = AttentionMap(query, key, mask=uwaga.Causal())
    assert rollout([m, m], 4).isfinite().all()
