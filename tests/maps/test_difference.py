"""The difference of two maps."""

import pytest
import torch

import uwaga
from uwaga.maps.difference import DifferenceMap
from uwaga.maps.map import AttentionMap


def some_map(*batch: int, keys: int = 5, dtype: torch.dtype = torch.float64) -> AttentionMap:
    return AttentionMap(torch.randn(*batch, 2, 4, 3).to(dtype), torch.randn(*batch, 2, keys, 3).to(dtype))


def test_it_is_the_difference_entry_by_entry() -> None:
    left, right = some_map(2), some_map(2)
    m = DifferenceMap(left, right)
    assert torch.equal(m.to_dense(), left.to_dense() - right.to_dense())
    assert torch.equal(m[1, :, [3, 0], 1::2], left[1, :, [3, 0], 1::2] - right[1, :, [3, 0], 1::2])
    assert torch.equal(m.diagonal(), left.diagonal() - right.diagonal())


def test_rows_sum_to_zero() -> None:
    m = DifferenceMap(some_map(), some_map())
    torch.testing.assert_close(m.to_dense().sum(-1), torch.zeros(2, 4).double())


def test_float64_wins() -> None:
    assert DifferenceMap(some_map(), some_map(dtype=torch.float32)).dtype == torch.float64


def test_ragged_maps_differ_sequence_by_sequence() -> None:
    left, right = (uwaga.Ragged.from_list([torch.randn(n, 2, 3).double() for n in (2, 4)]) for _ in range(2))
    left, right = AttentionMap(left, left), AttentionMap(right, right)
    m = DifferenceMap(left, right)
    assert len(m) == 2
    assert torch.equal(m[1].to_dense(), left[1].to_dense() - right[1].to_dense())


def test_it_says_what_it_is() -> None:
    shown = repr(DifferenceMap(some_map(), some_map()))
    assert shown == "DifferenceMap(shape=(2, 4, 5), mask=None less mask=None, float64, 320 bytes as a dense matrix)"


def test_maps_of_different_shapes() -> None:
    with pytest.raises(ValueError) as caught:
        DifferenceMap(some_map(), some_map(keys=6))
    assert str(caught.value) == "DifferenceMap: the maps differ in shape: (2, 4, 5) and (2, 4, 6)"


def test_ragged_maps_of_different_lengths() -> None:
    maps = []
    for lengths in ((2, 4), (3, 3)):
        x = uwaga.Ragged.from_list([torch.randn(n, 1, 3) for n in lengths])
        maps.append(AttentionMap(x, x))
    with pytest.raises(ValueError) as caught:
        DifferenceMap(*maps)
    assert str(caught.value) == (
        "DifferenceMap: the maps differ in shape: [(1, 2, 2), (1, 4, 4)] and [(1, 3, 3), (1, 3, 3)]"
    )
