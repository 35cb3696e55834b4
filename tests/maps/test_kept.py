"""Some tokens of a map, and rows that sum to 1 again."""

import pytest
import torch

import uwaga
from uwaga.maps.kept import KeptMap
from uwaga.maps.map import AttentionMap
from uwaga.maps.words import WordMap

KEPT = [1, 2, 4, 5]


def some_map(*batch: int, queries: int = 7) -> AttentionMap:
    return AttentionMap(torch.randn(*batch, 2, queries, 4).double(), torch.randn(*batch, 2, 7, 4).double())


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_rows_are_normalised_again(batch: tuple[int, ...]) -> None:
    m = some_map(*batch)
    dense = m.to_dense()[..., KEPT, :][..., KEPT]
    torch.testing.assert_close(KeptMap(m, KEPT).to_dense(), dense / dense.sum(-1, keepdim=True))


def test_an_entry_has_the_same_bits_alone_and_among_others() -> None:
    q = torch.randn(2, 40, 8)
    m, again = (KeptMap(AttentionMap(q, q, mask=uwaga.Causal()), range(3, 40, 2)) for _ in range(2))
    assert again[1, 4, 2] == m.to_dense()[1, 4, 2]


def test_queries_and_keys_may_be_other_ones() -> None:
    m = some_map(queries=3)
    found = KeptMap(m, [0, 2], KEPT)
    assert found.shape == (2, 2, 4)
    torch.testing.assert_close(found.to_dense().sum(-1), torch.ones(2, 2).double())


def test_a_row_without_weight_on_what_is_kept_is_zero() -> None:
    x = torch.randn(4, 3)
    m = AttentionMap(x, x, mask=uwaga.Causal())
    assert KeptMap(m, [1, 2, 3], [3]).to_dense().tolist() == [[0.0], [0.0], [1.0]]


def test_words_may_be_merged_on_top() -> None:
    merged = WordMap(KeptMap(some_map(), KEPT), [(0, 1), (1, 3), (3, 4)])
    torch.testing.assert_close(merged.to_dense().sum(-1), torch.ones(2, 3).double())


def test_a_ragged_map_is_refused() -> None:
    x = uwaga.Ragged.from_list([torch.randn(3, 2, 4), torch.randn(5, 2, 4)])
    with pytest.raises(ValueError) as caught:
        KeptMap(AttentionMap(x, x), [0])
    assert str(caught.value) == "KeptMap: the sequences of a ragged map have each their own tokens: KeptMap(m[r], ...)"


def test_a_position_out_of_range_is_refused() -> None:
    with pytest.raises(IndexError) as caught:
        KeptMap(some_map(), [0, 7])
    assert str(caught.value) == "KeptMap: index 7 is out of range for axis 0 (queries) of size 7"
