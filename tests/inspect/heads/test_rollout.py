"""Rollout of one token against the product of dense matrices of Abnar & Zuidema."""

from functools import reduce

import pytest
import torch

import uwaga
from uwaga.inspect.heads.rollout import rollout
from uwaga.maps.map import AttentionMap


def layer(*batch: int, tokens: int = 7, dtype: torch.dtype = torch.float64, **options) -> AttentionMap:
    query, key = (torch.randn(*batch, 3, tokens, 4).to(dtype) for _ in range(2))
    return AttentionMap(query, key, **{"mask": uwaga.Causal()} | options)


def dense_product(matrices_HNN: list[torch.Tensor], residual: float = 0.5) -> torch.Tensor:
    """(N, N): A_L ... A_1."""
    tokens = matrices_HNN[0].shape[-1]
    layers = [residual * torch.eye(tokens).double() + (1 - residual) * a.mean(0) for a in matrices_HNN]
    return reduce(lambda above, below: above @ below, reversed(layers))


@pytest.mark.parametrize("residual", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("token", [0, 3, -1])
def test_it_is_a_row_of_the_product(token: int, residual: float) -> None:
    maps = [layer() for _ in range(3)]
    result = rollout(maps, token, residual=residual)
    torch.testing.assert_close(result, dense_product([m.to_dense() for m in maps], residual)[token])


def test_what_a_sink_takes_is_missing() -> None:
    maps = [layer(), layer(sinks=torch.full((3,), 3.0).double())]
    result = rollout(maps)
    assert float(result.sum()) < 0.95
    torch.testing.assert_close(result, dense_product([m.to_dense() for m in maps])[-1])


def test_every_sequence_of_a_batch_may_have_its_own_token() -> None:
    maps = [layer(2), layer(2)]
    result = rollout(maps, torch.tensor([1, -2]))
    for b, token in enumerate((1, -2)):
        torch.testing.assert_close(result[b], dense_product([m[b] for m in maps])[token])


def test_a_ragged_batch_gives_each_sequence_its_own() -> None:
    lengths = [2, 5, 1]

    def ragged() -> uwaga.Ragged:
        return uwaga.Ragged.from_list([torch.randn(n, 3, 4).double() for n in lengths])

    maps = [AttentionMap(ragged(), ragged(), mask=uwaga.Causal()) for _ in range(3)]
    result = rollout(maps, -1).to_list()
    for r in range(len(lengths)):
        torch.testing.assert_close(result[r], dense_product([m[r].to_dense() for m in maps])[-1])


def test_rows_that_the_token_cannot_reach_are_not_read() -> None:
    """A causal token does not depend on what comes after it, nan included."""
    query, key = torch.randn(2, 3, 7, 4).double()
    query[:, 5:] = torch.nan
    m = AttentionMap(query, key, mask=uwaga.Causal())
    assert rollout([m, m], 4).isfinite().all()
