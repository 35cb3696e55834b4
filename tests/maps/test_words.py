"""Words: columns are summed, rows are averaged."""

import pytest
import torch

import uwaga
from uwaga.maps import words as module
from uwaga.maps.map import AttentionMap
from uwaga.maps.spans import word_labels, word_spans
from uwaga.maps.words import WordMap

WORD_IDS = [None, 0, 1, 1, 1, 2, None]
SPANS = [(0, 1), (1, 2), (2, 5), (5, 6), (6, 7)]


def token_map(*batch: int, queries: int = 7) -> AttentionMap:
    return AttentionMap(torch.randn(*batch, 2, queries, 4).double(), torch.randn(*batch, 2, 7, 4).double())


def merged(dense_QK: torch.Tensor, spans, key_spans) -> torch.Tensor:
    """After Clark et al.: to a word the sum, from a word the mean."""
    to_words = torch.stack([dense_QK[..., start:stop].sum(-1) for start, stop in key_spans], dim=-1)
    return torch.stack([to_words[..., start:stop, :].mean(-2) for start, stop in spans], dim=-2)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_weights_between_words(batch: tuple[int, ...]) -> None:
    m = token_map(*batch)
    found = WordMap(m, WORD_IDS)
    assert found.shape == (*batch, 2, 5, 5)
    torch.testing.assert_close(found.to_dense(), merged(m.to_dense(), SPANS, SPANS))


def test_rows_still_sum_to_one() -> None:
    torch.testing.assert_close(WordMap(token_map(), WORD_IDS).to_dense().sum(-1), torch.ones(2, 5).double())


def test_queries_and_keys_may_have_other_words() -> None:
    m = token_map(queries=3)
    found = WordMap(m, [0, 0, 1], key_words=SPANS)
    torch.testing.assert_close(found.to_dense(), merged(m.to_dense(), [(0, 2), (2, 3)], SPANS))


def test_it_is_the_pooled_map_where_words_leave_nothing_out() -> None:
    m = token_map()
    edges = [start for start, _ in SPANS] + [7]
    torch.testing.assert_close(WordMap(m, SPANS).to_dense(), m.pool(edges, edges).weights)


def test_spans_may_leave_tokens_out() -> None:
    m, spans = token_map(), [(1, 2), (2, 5)]
    torch.testing.assert_close(WordMap(m, spans).to_dense(), merged(m.to_dense(), spans, spans))


def test_a_weight_has_the_same_bits_however_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    m = WordMap(token_map(2), WORD_IDS)
    whole = m.to_dense()
    assert torch.equal(m[1, 0, 2, 2], whole[1, 0, 2, 2])
    assert torch.equal(m[..., [4, 2], 1::2], whole[:, :, [4, 2], 1::2])
    monkeypatch.setattr(module, "_BLOCK", 1)
    assert torch.equal(m.to_dense(), whole)


def test_a_visible_nan_stays_in_its_words() -> None:
    x = torch.randn(7, 4)
    key = x.clone()
    key[3] = torch.nan
    visible = torch.ones(7, 7, dtype=torch.bool)
    visible[2:, 3] = False
    found = WordMap(AttentionMap(x, key, mask=visible), WORD_IDS).to_dense()
    assert found[:2].isnan().all()
    assert found[2:].isfinite().all()


def test_a_ragged_map_takes_words_per_sequence() -> None:
    x = uwaga.Ragged.from_list([torch.randn(n, 2, 4).double() for n in (3, 2)])
    m = AttentionMap(x, x)
    found = WordMap(m, [[0, 0, 1], [None, 0]])
    assert found.shapes == [(2, 2, 2), (2, 2, 2)]
    torch.testing.assert_close(found[0].to_dense(), merged(m[0].to_dense(), [(0, 2), (2, 3)], [(0, 2), (2, 3)]))


def test_ids_that_start_again_are_other_words() -> None:
    assert word_spans([None, 0, 0, None, 0, 1, 1, None], 8) == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 7), (7, 8)]


def test_neighbouring_special_tokens_are_each_their_own_word() -> None:
    assert word_spans([0, None, None], 3) == [(0, 1), (1, 2), (2, 3)]


def test_no_tokens_no_words() -> None:
    assert word_spans([], 0) == []
    x = torch.zeros(0, 4)
    assert WordMap(AttentionMap(x, x), []).to_dense().shape == (0, 0)


def test_labels_are_the_words() -> None:
    assert word_labels(["▁un", "seen", "</s>"], [0, 0, None]) == ["unseen", "</s>"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([0, 1], "WordMap: there must be one word id for each of the 7 tokens, not 2"),
        ([(0, 2), (1, 3)], "WordMap: spans must rise within the 7 tokens, without overlap: [(0, 2), (1, 3)]"),
        ([(2, 2)], "WordMap: spans must rise within the 7 tokens, without overlap: [(2, 2)]"),
        ([(5, 8)], "WordMap: spans must rise within the 7 tokens, without overlap: [(5, 8)]"),
    ],
)
def test_words_that_do_not_fit(words, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        WordMap(token_map(), words)
    assert str(caught.value) == message


def test_a_ragged_map_needs_words_for_every_sequence() -> None:
    x = uwaga.Ragged.from_list([torch.randn(3, 2, 4), torch.randn(2, 2, 4)])
    with pytest.raises(ValueError) as caught:
        WordMap(AttentionMap(x, x), [[0, 0, 1]])
    assert str(caught.value) == "WordMap: a ragged map of 2 sequences needs as many lists of words, not 1"


def test_it_says_what_it_is() -> None:
    shown = repr(WordMap(token_map(), WORD_IDS))
    assert shown == "WordMap(shape=(2, 5, 5), mask=None, merged into words, float64, 400 bytes as a dense matrix)"
