"""Groups of texts, batches of sequences, and windows of long texts."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from uwaga.encode.inference import batches
from uwaga.encode.preprocessing import groups, windows

lengths = st.lists(st.integers(1, 50), max_size=60)


@given(lengths, st.integers(1, 100))
def test_batches_hold_every_sequence_once_in_order(lengths: list[int], tokens_per_batch: int) -> None:
    result = batches(lengths, tokens_per_batch)
    assert [length for batch in result for length in lengths[batch]] == lengths
    assert all(lengths[batch] for batch in result)


@given(lengths, st.integers(1, 100))
def test_a_batch_never_holds_more_than_its_limit_and_one_sequence(lengths: list[int], tokens_per_batch: int) -> None:
    for batch in batches(lengths, tokens_per_batch):
        assert sum(lengths[batch]) <= tokens_per_batch + max(lengths[batch])


def test_no_batch_is_a_small_remainder() -> None:
    assert [batch.stop - batch.start for batch in batches([10] * 21, tokens_per_batch=100)] == [7, 7, 7]


@given(st.lists(st.integers(0, 8), max_size=40), st.integers(1, 12), st.integers(1, 5))
def test_groups_hold_everything_in_order_within_both_bounds(sizes: list[int], characters: int, documents: int) -> None:
    results = list(groups(sizes, int, max_characters=characters, max_documents=documents))
    assert [size for group in results for size in group] == sizes
    for group in results:
        assert len(group) == 1 or (len(group) <= documents and sum(group) <= characters)


@given(tokens=st.integers(1, 200), max_tokens=st.integers(1, 30), overlap=st.integers(0, 29))
def test_windows_cover_every_token_fit_and_are_of_one_size(tokens: int, max_tokens: int, overlap: int) -> None:
    if overlap >= max_tokens:
        return
    result = windows(tokens, max_tokens, overlap)
    sizes = [stop - start for start, stop in result]
    assert result[0][0] == 0
    assert result[-1][1] == tokens
    assert max(sizes) <= max_tokens
    assert max(sizes) - min(sizes) <= 1
    for (_, stop), (start, _) in itertools.pairwise(result):
        assert stop - start == overlap
    assert len(result) == (1 if tokens <= max_tokens else -(-(tokens - overlap) // (max_tokens - overlap)))
