"""Pooling."""

import pytest
import torch

from uwaga import Ragged
from uwaga.encode.inference import mean_rows, pool

LENGTHS = (3, 1, 5)


@pytest.fixture
def hidden() -> Ragged:
    torch.manual_seed(0)
    return Ragged.from_list([torch.randn(length, 4) for length in LENGTHS])


def by_definition(row: torch.Tensor, mode: str) -> torch.Tensor:
    row = row.double()
    place = torch.arange(1, len(row) + 1, dtype=torch.float64)[:, None]
    return {
        "cls": row[0],
        "lasttoken": row[-1],
        "max": row.amax(0),
        "mean": row.mean(0),
        "mean_sqrt_len_tokens": row.sum(0) / len(row) ** 0.5,
        "weightedmean": (row * place).sum(0) / place.sum(),
    }[mode]


@pytest.mark.parametrize("mode", ["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"])
def test_each_pooling_is_its_definition_and_sees_one_row_alone(hidden: Ragged, mode: str) -> None:
    pooled = pool(hidden, [mode])
    expected = torch.stack([by_definition(row, mode) for row in hidden.to_list()])
    # A sum of at most five numbers, a product and a quotient: a handful of roundings of the largest number involved.
    allowed = 8 * torch.finfo(torch.float32).eps * float(hidden.values.abs().max())
    assert (pooled.double() - expected).abs().max() <= allowed
    for row, vector in zip(hidden.to_list(), pooled, strict=True):
        assert torch.equal(pool(Ragged.from_list([row]), [mode])[0], vector)


def test_several_poolings_are_joined_in_their_order(hidden: Ragged) -> None:
    assert torch.equal(pool(hidden, ["max", "cls"]), torch.cat((pool(hidden, ["max"]), pool(hidden, ["cls"])), dim=1))


def test_low_precision_is_summed_in_float32() -> None:
    ones = Ragged.from_list([torch.ones(1000, 1, dtype=torch.bfloat16)])  # bfloat16 stops counting at 256
    assert pool(ones, ["mean_sqrt_len_tokens"]).item() == pytest.approx(1000**0.5)


def test_means_of_rows_one_after_the_other() -> None:
    vectors = torch.tensor([[1.0], [2.0], [4.0], [9.0]])
    assert mean_rows(vectors, torch.tensor([1, 2, 1])).tolist() == [[1.0], [3.0], [9.0]]
