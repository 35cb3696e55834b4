"""Learned positions. Letters: B batch, Q tokens, M width, N packed tokens, R ragged rows."""

import pytest
import torch

from uwaga import Ragged
from uwaga.nn import LearnedPositions

LENGTHS = torch.tensor([2, 0, 3])


@pytest.fixture
def layer() -> LearnedPositions:
    torch.manual_seed(0)
    return LearnedPositions(6, 4)


def test_each_token_gets_the_vector_of_its_place(layer: LearnedPositions) -> None:
    x = torch.randn(2, 3, 4)
    assert torch.equal(layer(x), x + layer.weight[:3])
    assert torch.equal(layer(x, start=2), x + layer.weight[2:5])
    assert torch.equal(layer(x[0]), x[0] + layer.weight[:3])


def test_packed_rows_count_from_their_own_start(layer: LearnedPositions) -> None:
    batch = Ragged(torch.randn(5, 4), torch.tensor([0, 2, 2, 5]))
    places = [0, 1, 0, 1, 2]
    assert torch.equal(layer(batch).values, batch.values + layer.weight[places])


def test_every_row_may_start_elsewhere(layer: LearnedPositions) -> None:
    x = torch.randn(2, 2, 4)
    result = layer(x, start=torch.tensor([4, 1]))
    assert torch.equal(result, x + layer.weight[torch.tensor([[4, 5], [1, 2]])])
    batch = Ragged(torch.randn(5, 4), torch.tensor([0, 2, 2, 5]))
    result = layer(batch, start=torch.tensor([4, 9, 3]))
    assert torch.equal(result.values, batch.values + layer.weight[[4, 5, 3, 4, 5]])


def test_gradients_reach_the_places_that_were_taken(layer: LearnedPositions) -> None:
    (gradient,) = torch.autograd.grad(layer(torch.zeros(2, 3, 4)).sum(), layer.weight)
    assert gradient.sum(-1).tolist() == [8, 8, 8, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 2])
def test_it_compiles_to_one_graph(layer: LearnedPositions, start: int) -> None:
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for x in (torch.randn(2, 3, 4), Ragged(torch.randn(3, 4), torch.tensor([0, 1, 3]))):
        result, expected = compiled(x, start), layer(x, start)
        if isinstance(x, Ragged):
            result, expected = result.values, expected.values
        torch.testing.assert_close(result, expected)
