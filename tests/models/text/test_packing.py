from hypothesis import given
from hypothesis import strategies as st

from uwaga.models.text.packing import groups, steps

lengths = st.lists(st.integers(1, 50), max_size=60)


@given(lengths, st.integers(1, 100))
def test_steps_hold_every_sequence_once_in_order(lengths: list[int], tokens_per_batch: int) -> None:
    cut = steps(lengths, tokens_per_batch)
    assert [length for step in cut for length in lengths[step]] == lengths
    assert all(lengths[step] for step in cut)


@given(lengths, st.integers(1, 100))
def test_a_step_never_holds_more_than_the_budget_and_one_sequence(lengths: list[int], tokens_per_batch: int) -> None:
    for step in steps(lengths, tokens_per_batch):
        assert sum(lengths[step]) <= tokens_per_batch + max(lengths[step])


def test_no_step_is_a_small_remainder() -> None:
    assert [step.stop - step.start for step in steps([10] * 21, tokens_per_batch=100)] == [7, 7, 7]


@given(st.lists(st.text(max_size=8), max_size=40), st.integers(1, 12), st.integers(1, 5))
def test_groups_hold_everything_in_order_within_both_bounds(texts: list[str], characters: int, documents: int) -> None:
    found = list(groups(texts, len, most_characters=characters, most_documents=documents))
    assert [text for group in found for text in group] == texts
    for group in found:
        assert len(group) == 1 or (len(group) <= documents and sum(map(len, group)) <= characters)


@given(st.lists(st.text(max_size=8), max_size=40))
def test_groups_after_a_group_are_those_of_the_texts_after_it(texts: list[str]) -> None:
    """What lets a command begin in the middle."""
    whole = list(groups(texts, len, most_characters=10))
    if whole:
        assert list(groups(texts[len(whole[0]) :], len, most_characters=10)) == whole[1:]
