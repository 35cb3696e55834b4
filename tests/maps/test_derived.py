"""Maps computed from other maps: differences, some tokens alone, tokens merged into words."""

from collections.abc import Callable

import pytest
import torch

import uwaga
from uwaga.maps.base import MAX_NESTING, WeightMap
from uwaga.maps.derived import DifferenceMap, SubsetMap, WordMap, word_labels, word_spans
from uwaga.maps.map import AttentionMap


def difference_operand(
    *batch: int, queries: int = 4, keys: int = 5, dtype: torch.dtype = torch.float64
) -> AttentionMap:
    return AttentionMap(torch.randn(*batch, 2, queries, 3).to(dtype), torch.randn(*batch, 2, keys, 3).to(dtype))


def test_the_difference_is_taken_entry_by_entry_in_the_wider_dtype() -> None:
    left, right = difference_operand(2), difference_operand(2)
    m = DifferenceMap(left, right)
    assert torch.equal(m.to_dense(), left.to_dense() - right.to_dense())
    assert DifferenceMap(difference_operand(), difference_operand(dtype=torch.float32)).dtype == torch.float64


@pytest.mark.parametrize(("k", "size"), [(1, (4, 5)), (9, (4, 5)), (3, (1500, 800))], ids=["1", "9", "in two blocks"])
def test_the_largest_differences_in_size(k: int, size: tuple[int, int]) -> None:
    queries, keys = size
    m = DifferenceMap(*(difference_operand(2, queries=queries, keys=keys, dtype=torch.float32) for _ in range(2)))
    weights, positions = m.topk(k)
    assert weights.shape == positions.shape == (2, 2, queries, k)
    some = slice(-200, None)  # those of the second block, and some of the first
    dense, weights, positions = m[..., some, :], weights[..., some, :], positions[..., some, :]
    order = dense.abs().sort(dim=-1, descending=True, stable=True).indices[..., :k]
    assert torch.equal(positions[..., :keys], order)
    assert torch.equal(weights[..., :keys], dense.gather(-1, order))
    assert bool((weights[..., keys:] == 0).all())
    assert bool((positions[..., keys:] == -1).all())


def test_differences_of_ragged_maps_are_those_of_their_sequences() -> None:
    operands = [uwaga.Ragged.from_list([torch.randn(n, 2, 3).double() for n in (2, 4)]) for _ in range(2)]
    left, right = (AttentionMap(x, x) for x in operands)
    m = DifferenceMap(left, right)
    result = m.topk(2)
    assert len(m) == 2
    for r in range(2):
        assert torch.equal(m[r].to_dense(), left[r].to_dense() - right[r].to_dense())
        assert torch.equal(result.weights.to_list()[r].movedim(0, -2), m[r].topk(2).weights)
        assert torch.equal(result.positions.to_list()[r].movedim(0, -2), m[r].topk(2).positions)


def test_of_equal_sizes_the_first_is_taken() -> None:
    x = torch.zeros(1, 4, 2)
    m = DifferenceMap(AttentionMap(x, x), AttentionMap(x, x, mask=uwaga.Causal()))
    # Row i: 1/4 - 1/(i + 1) before the diagonal and on it, 1/4 after it.
    assert m.topk(2).positions[0].tolist() == [[0, 1], [0, 1], [3, 0], [0, 1]]


KEPT = [1, 2, 4, 5]


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_kept_rows_are_normalised_again(batch: tuple[int, ...]) -> None:
    m = token_map(*batch)
    dense = m.to_dense()[..., KEPT, :][..., KEPT]
    subset = SubsetMap(m, KEPT)
    torch.testing.assert_close(subset.to_dense(), dense / dense.sum(-1, keepdim=True))
    words = WordMap(subset, [(0, 1), (1, 3), (3, 4)])
    torch.testing.assert_close(words.to_dense().sum(-1), torch.ones(*batch, 2, 3).double())


def test_kept_queries_and_keys_may_be_other_ones() -> None:
    result = SubsetMap(token_map(queries=3), [0, 2], KEPT)
    assert result.shape == (2, 2, 4)
    torch.testing.assert_close(result.to_dense().sum(-1), torch.ones(2, 2).double())
    x = torch.randn(4, 3)  # a row without weight on what is kept is zero
    m = AttentionMap(x, x, mask=uwaga.Causal())
    assert SubsetMap(m, [1, 2, 3], [3]).to_dense().tolist() == [[0.0], [0.0], [1.0]]


WORD_IDS = [None, 0, 1, 1, 1, 2, None]
SPANS = [(0, 1), (1, 2), (2, 5), (5, 6), (6, 7)]


def token_map(*batch: int, queries: int = 7) -> AttentionMap:
    return AttentionMap(torch.randn(*batch, 2, queries, 4).double(), torch.randn(*batch, 2, 7, 4).double())


def merged(dense_QK: torch.Tensor, spans, key_spans) -> torch.Tensor:
    """After Clark et al.: to a word the sum, from a word the mean."""
    to_words = torch.stack([dense_QK[..., start:stop].sum(-1) for start, stop in key_spans], dim=-1)
    return torch.stack([to_words[..., start:stop, :].mean(-2) for start, stop in spans], dim=-2)


@pytest.mark.parametrize(
    ("words", "spans", "key_spans"),
    [
        ((WORD_IDS,), SPANS, SPANS),
        ((SPANS,), SPANS, SPANS),
        (([(1, 2), (2, 5)],), [(1, 2), (2, 5)], [(1, 2), (2, 5)]),  # some tokens are left out
        (([0, 0, 1], SPANS), [(0, 2), (2, 3)], SPANS),
    ],
    ids=["ids", "spans", "some tokens", "other words of queries"],
)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_weights_between_words(batch: tuple[int, ...], words: tuple, spans: list, key_spans: list) -> None:
    m = token_map(*batch, queries=spans[-1][1] if len(words) == 2 else 7)
    result = WordMap(m, *words)
    assert result.shape == (*batch, 2, len(spans), len(key_spans))
    torch.testing.assert_close(result.to_dense(), merged(m.to_dense(), spans, key_spans))
    if words == (SPANS,):
        edges = [start for start, _ in SPANS] + [7]
        torch.testing.assert_close(result.to_dense(), m.pool(edges, edges).weights)


def test_words_a_visible_nan_stays_in_its_words() -> None:
    x = torch.randn(7, 4)
    key = x.clone()
    key[3] = torch.nan
    visible = torch.ones(7, 7, dtype=torch.bool)
    visible[2:, 3] = False
    result = WordMap(AttentionMap(x, key, mask=visible), WORD_IDS).to_dense()
    assert result[:2].isnan().all()
    assert result[2:].isfinite().all()


def test_words_a_ragged_map_takes_words_per_sequence() -> None:
    x = uwaga.Ragged.from_list([torch.randn(n, 2, 4).double() for n in (3, 2)])
    m = AttentionMap(x, x)
    result = WordMap(m, [[0, 0, 1], [None, 0]])
    assert result.shapes == [(2, 2, 2), (2, 2, 2)]
    torch.testing.assert_close(result[0].to_dense(), merged(m[0].to_dense(), [(0, 2), (2, 3)], [(0, 2), (2, 3)]))


def test_words_of_ids_and_their_labels() -> None:
    """Ids that start again are other words, and special tokens are each their own."""
    spans = [(0, 1), (1, 3), (3, 4), (4, 5), (5, 7), (7, 8)]
    assert word_spans([None, 0, 0, None, 0, 1, 1, None], 8) == spans
    assert word_spans([0, None, None], 3) == [(0, 1), (1, 2), (2, 3)]
    assert word_labels(["▁un", "seen", "</s>"], [0, 0, None]) == ["unseen", "</s>"]
    assert word_spans([], 0) == []
    x = torch.zeros(0, 4)
    assert WordMap(AttentionMap(x, x), []).to_dense().shape == (0, 0)


@pytest.mark.parametrize(
    "nest",
    [
        lambda m: DifferenceMap(m, m0()),
        lambda m: SubsetMap(m, range(4)),
        lambda m: WordMap(m, range(4)),
    ],
    ids=["difference", "kept", "words"],
)
def test_maps_are_nested_up_to_a_limit(nest: Callable[[WeightMap], WeightMap]) -> None:
    m = m0()
    for _ in range(MAX_NESTING):
        m = nest(m)
    assert m[:, 1, 2].shape == (2,)
    assert repr(m)
    with pytest.raises(ValueError, match="more than 100 maps"):
        nest(m)


def m0() -> AttentionMap:
    torch.manual_seed(0)
    return AttentionMap(*torch.randn(2, 2, 4, 8))
