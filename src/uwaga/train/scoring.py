"""Error rates of what a model writes, such as pronunciations, beside all answers that are right.

Letters: P pairs of a prediction and an answer, I and J the longest of each.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

# Pairs that are compared at once: a few megabytes of table rows.
_PAIRS = 4096


class ErrorRates(NamedTuple):
    """Shares, not per cent. A phoneme error rate can pass 1: too much may have been written."""

    phoneme: float  # insertions, deletions and substitutions, per phoneme of the nearest answers
    word: float  # predictions that equal none of their answers


def score(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> ErrorRates:
    """How wrong predictions are; phonemes are what spaces separate.

    Each prediction is compared with the answer that it is nearest to; the first one listed where two are as near.

    Args:
        predictions: one for each word.
        references: for each all of its answers.

    Raises:
        ValueError: no words, another number of predictions, or a word without an answer.

    >>> score(["AH T EH N SH AH N", "R EH D"], [["AH T EH N CH AH N"], ["R IY D", "R EH D"]])
    ErrorRates(phoneme=0.1, word=0.5)
    """
    if not predictions or len(predictions) != len(references):
        raise ValueError(f"score: needs as many predictions as words, not {len(predictions)} for {len(references)}")
    if missing := [number for number, answers in enumerate(references) if not any(map(str.split, answers))]:
        raise ValueError(f"score: word {missing[0]} has no answer")
    counts = [len(answers) for answers in references]
    written = [prediction.split() for prediction, count in zip(predictions, counts, strict=True) for _ in range(count)]
    answers = [answer.split() for each in references for answer in each]
    distances, lengths = edit_distances(written, answers), [len(answer) for answer in answers]
    errors = wrong = total = 0
    for start, stop in pairwise(accumulate(counts, initial=0)):
        nearest = start + int(np.argmin(distances[start:stop]))
        errors += int(distances[nearest])
        wrong += int(distances[nearest] > 0)
        total += lengths[nearest]
    return ErrorRates(errors / total, wrong / len(predictions))


def edit_distances(left: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> np.ndarray:
    """(P,) int64: the fewest insertions, deletions and substitutions from each on the left to its partner on the right.

    >>> edit_distances([["K", "AE", "T"], []], [["K", "AH", "T", "S"], ["A"]]).tolist()
    [2, 1]
    """
    assert len(left) == len(right)
    numbers: dict[str, int] = {}
    parts = [
        _distances(_padded(left[start : start + _PAIRS], numbers), _padded(right[start : start + _PAIRS], numbers))
        for start in range(0, len(left), _PAIRS)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


class _Padded(NamedTuple):
    ids: np.ndarray  # (P, I), -1 behind the end
    lengths: np.ndarray  # (P,)


def _padded(rows: Sequence[Sequence[str]], numbers: dict[str, int]) -> _Padded:
    lengths = np.array([len(row) for row in rows], np.int64)
    ids = np.full((len(rows), int(lengths.max(initial=0))), -1, np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = [numbers.setdefault(token, len(numbers)) for token in row]
    return _Padded(ids, lengths)


def _distances(left: _Padded, right: _Padded) -> np.ndarray:
    """Wagner and Fischer's table (1974), row by row for all pairs at once."""
    steps = np.arange(right.ids.shape[1] + 1)
    row_PJ = np.tile(steps, (len(left.ids), 1))
    found_P = row_PJ[np.arange(len(row_PJ)), right.lengths]
    for i in range(left.ids.shape[1]):
        substituted = row_PJ[:, :-1] + (left.ids[:, i, None] != right.ids)
        below = np.minimum(substituted, row_PJ[:, 1:] + 1)
        reached = np.concatenate((np.full((len(below), 1), i + 1), below), axis=1)
        # Insertions along the row: the least of reached[k] + (j - k) over k <= j.
        row_PJ = np.minimum.accumulate(reached - steps, axis=1) + steps
        ends = left.lengths == i + 1
        found_P[ends] = row_PJ[ends, right.lengths[ends]]
    return found_P
