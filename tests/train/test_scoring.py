"""Error rates, beside the plainest way to compute them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uwaga.train import scoring
from uwaga.train.scoring import edit_distances, score

_WORD = st.lists(st.sampled_from(["K", "AE", "T", "S"]), max_size=8)


def _plain(left: list[str], right: list[str]) -> int:
    table = [[i + j if i * j == 0 else 0 for j in range(len(right) + 1)] for i in range(len(left) + 1)]
    for i in range(1, len(left) + 1):
        for j in range(1, len(right) + 1):
            substituted = table[i - 1][j - 1] + (left[i - 1] != right[j - 1])
            table[i][j] = min(substituted, table[i - 1][j] + 1, table[i][j - 1] + 1)
    return table[-1][-1]


@given(st.lists(st.tuples(_WORD, _WORD), min_size=1, max_size=12))
def test_distances_are_those_of_the_table(pairs: list[tuple[list[str], list[str]]]) -> None:
    found = edit_distances([left for left, _ in pairs], [right for _, right in pairs])
    assert found.tolist() == [_plain(left, right) for left, right in pairs]


def test_many_pairs_are_compared_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [["K"] * (n % 5) + ["T"] for n in range(100)]
    whole = edit_distances(words, words[::-1])
    monkeypatch.setattr(scoring, "_PAIRS", 7)
    assert np.array_equal(edit_distances(words, words[::-1]), whole)


def test_the_nearest_of_all_answers_counts() -> None:
    references = [["R IY D", "R EH D"], ["T AH M EY T OW", "T AH M AA T OW"], ["K AE T"]]
    assert score(["R EH D", "T AH M AA T OW", "K AE T"], references) == (0.0, 0.0)
    # One substitution, one deletion and one insertion, per 3 + 6 + 3 phonemes.
    assert score(["R AH D", "T M AA T OW", "K AE T S"], references) == (3 / 12, 1.0)
    assert score(["R EH D", "", "K AE T"], references) == (6 / 12, 1 / 3)


def test_too_much_can_be_wrong() -> None:
    assert score(["A B C D"], [["K"]]) == (4.0, 1.0)


def test_every_word_needs_a_prediction_and_an_answer() -> None:
    with pytest.raises(ValueError) as raised:
        score(["A"], [])
    assert str(raised.value) == "score: needs as many predictions as words, not 1 for 0"
    with pytest.raises(ValueError) as raised:
        score(["A", "B"], [["A"], [" "]])
    assert str(raised.value) == "score: word 1 has no answer"
