"""Learned positions. Letters: B batch, Q tokens, M width, N packed tokens, R ragged rows."""

import pytest
import torch

from uwaga import Ragged, ShapeError
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda layer: layer(torch.zeros(7, 4)), "LearnedPositions: position 6 is out of range: there are 6 positions"),
        (
            lambda layer: layer(torch.zeros(2, 4), start=5),
            "LearnedPositions: position 6 is out of range: there are 6 positions",
        ),
        (
            lambda layer: layer(torch.zeros(2, 3, 4), start=torch.tensor([0, 9])),
            "LearnedPositions: position 11 is out of range: there are 6 positions",
        ),
        (
            lambda layer: layer(torch.zeros(7, 3)),
            "LearnedPositions: x must have the width 4 that this layer was made for\n"
            "  x  (7, 3)   Q=7  M=3   <- has width 3",
        ),
        (
            lambda layer: layer(torch.zeros(2, 3, 4), start=torch.tensor([0, 1, 2])),
            "LearnedPositions: start must be an int or of shape (2,), one per row\n  start  (3,)      <- has another shape",
        ),
    ],
)
def test_what_is_wrong_is_said(layer: LearnedPositions, call, message: str) -> None:
    with pytest.raises(ValueError) as error:
        call(layer)
    assert str(error.value) == message


def test_starts_that_do_not_fit_are_a_shape_error(layer: LearnedPositions) -> None:
    with pytest.raises(ShapeError):
        layer(torch.zeros(2, 3, 4), start=torch.tensor([0, 1, 2]))


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
