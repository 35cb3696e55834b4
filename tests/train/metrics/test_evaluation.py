"""The validation loss, the mean over all labels in any number of processes; and error rates."""

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uwaga.train.metrics import evaluation
from uwaga.train.metrics.evaluation import _batches_of_rank, edit_distances, error_rates, validation_loss
from uwaga.train.objective import Objective
from uwaga.train.parallel import World
from uwaga.train.step import objective_inputs

OBJECTIVES = ["language-model", "encoder-decoder", "masked-language-model"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_validation_loss_is_the_mean_over_all_labels(parts: Callable, alone: World, objective: str) -> None:
    config, corpus, model = parts(objective)
    module = Objective(model, 0.2).train()
    result = validation_loss(module, corpus.validation, None, alone, nullcontext)
    assert module.training
    total = labels = 0.0
    with torch.no_grad():
        for batch in corpus.validation.evaluation_batches():
            ready = objective_inputs(batch, torch.device("cpu"))
            total += float(Objective(model.eval())(*ready.arguments))
            labels += ready.scored
    assert result == pytest.approx(total / labels)
    del config


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_each_batch_is_of_one_process_and_all_processes_have_equally_many(parts: Callable, size: int) -> None:
    _, corpus, _ = parts("language-model", "batch.tokens_per_batch=32")
    every = list(corpus.validation.evaluation_batches())
    assert len(every) > 2
    worlds = [World(rank=rank, size=size, device=torch.device("cpu")) for rank in range(size)]
    shares = [list(_batches_of_rank(iter(every), world)) for world in worlds]
    assert len({len(share) for share in shares}) == 1
    assert sum(batch.scored for share in shares for batch in share) == sum(batch.scored for batch in every)


# Error rates, compared with the full Levenshtein table.


_WORD = st.lists(st.sampled_from(["K", "AE", "T", "S"]), max_size=8)


def _levenshtein(left: list[str], right: list[str]) -> int:
    table = [[i + j if i * j == 0 else 0 for j in range(len(right) + 1)] for i in range(len(left) + 1)]
    for i in range(1, len(left) + 1):
        for j in range(1, len(right) + 1):
            substituted = table[i - 1][j - 1] + (left[i - 1] != right[j - 1])
            table[i][j] = min(substituted, table[i - 1][j] + 1, table[i][j - 1] + 1)
    return table[-1][-1]


@given(st.lists(st.tuples(_WORD, _WORD), min_size=1, max_size=12))
def test_edit_distances_equal_those_of_the_full_table(pairs: list[tuple[list[str], list[str]]]) -> None:
    result = edit_distances([left for left, _ in pairs], [right for _, right in pairs])
    assert result.tolist() == [_levenshtein(left, right) for left, right in pairs]


def test_edit_distances_of_many_pairs_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [["K"] * (n % 5) + ["T"] for n in range(100)]
    whole = edit_distances(words, words[::-1])
    monkeypatch.setattr(evaluation, "_DISTANCE_PAIRS", 7)
    assert np.array_equal(edit_distances(words, words[::-1]), whole)


def test_the_nearest_reference_counts() -> None:
    references = [["R IY D", "R EH D"], ["T AH M EY T OW", "T AH M AA T OW"], ["K AE T"]]
    assert error_rates(["R EH D", "T AH M AA T OW", "K AE T"], references) == (0.0, 0.0)
    # One substitution, one deletion and one insertion, per 3 + 6 + 3 phonemes.
    assert error_rates(["R AH D", "T M AA T OW", "K AE T S"], references) == (3 / 12, 1.0)
    assert error_rates(["R EH D", "", "K AE T"], references) == (6 / 12, 1 / 3)


def test_an_error_rate_can_exceed_one() -> None:
    assert error_rates(["A B C D"], [["K"]]) == (4.0, 1.0)


def test_missing_predictions_or_references_are_refused() -> None:
    with pytest.raises(ValueError) as raised:
        error_rates(["A"], [])
    assert str(raised.value) == "error_rates: needs as many predictions as words, not 1 for 0"
    with pytest.raises(ValueError) as raised:
        error_rates(["A", "B"], [["A"], [" "]])
    assert str(raised.value) == "error_rates: word 1 has no reference"
