"""The validation loss, the mean over all labels in any number of processes; error rates; and attention statistics of every head."""

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import uwaga
from uwaga._base import threads
from uwaga.inspect import head_table
from uwaga.train import evaluation
from uwaga.train.corpus import IGNORED
from uwaga.train.evaluation import (
    _batches_of_rank,
    attention_statistics,
    attention_summary,
    edit_distances,
    error_rates,
    validation_loss,
)
from uwaga.train.model import Objective
from uwaga.train.parallel import World

OBJECTIVES = ["language-model", "encoder-decoder", "masked-language-model"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_validation_loss_is_the_mean_over_all_labels(parts: Callable, objective: str) -> None:
    _, corpus, model = parts(objective)
    module, alone = Objective(model, 0.2).train(), World(rank=0, size=1, device=torch.device("cpu"))
    result = validation_loss(module, corpus.validation, None, alone, nullcontext)
    assert module.training
    total = labels = 0.0
    with torch.no_grad():
        for batch in corpus.validation.evaluation_batches():
            arguments, scored = batch.inputs(alone.device)
            total += float(Objective(model.eval())(*arguments))
            labels += scored
    assert result == pytest.approx(total / labels)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_each_batch_is_of_one_process_and_all_processes_have_equally_many(parts: Callable, size: int) -> None:
    _, corpus, _ = parts("language-model", "batch.tokens_per_batch=32")
    every = list(corpus.validation.evaluation_batches())
    assert len(every) > 2
    worlds = [World(rank=rank, size=size, device=torch.device("cpu")) for rank in range(size)]
    shares = [list(_batches_of_rank(iter(every), world)) for world in worlds]
    assert len({len(share) for share in shares}) == 1
    scored = [[int((batch.labels != IGNORED).sum()) for batch in batches] for batches in (every, *shares)]
    assert sum(scored[0]) == sum(map(sum, scored[1:]))


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
    assert error_rates(["R EH D", "T AH M AA T OW", "K AE T"], references) == (0.0, 0.0, 3)
    # One substitution, one deletion and one insertion, per 3 + 6 + 3 phonemes.
    assert error_rates(["R AH D", "T M AA T OW", "K AE T S"], references) == (3 / 12, 1.0, 3)
    assert error_rates(["R EH D", "", "K AE T"], references) == (6 / 12, 1 / 3, 3)


def test_an_error_rate_can_exceed_one() -> None:
    assert error_rates(["A B C D"], [["K"]]) == (4.0, 1.0, 1)


# Attention statistics, compared with those of a recording by uwaga.watch.


KINDS = {
    "language-model": {"decoder 0"},
    "encoder-decoder": {"encoder 0", "decoder 0", "cross 0"},
    "masked-language-model": {"encoder 0"},
}


@pytest.mark.parametrize("objective", KINDS)
def test_statistics_equal_those_of_a_recording(parts: Callable, objective: str) -> None:
    _, corpus, model = parts(objective)
    batch = next(corpus.validation.evaluation_batches()).first_rows(2048)
    results = attention_statistics(model, batch)
    assert results.keys() == KINDS[objective]
    model.eval()
    with uwaga.watch(model) as recording, torch.no_grad():
        model(batch.ids) if batch.decoder_ids is None else model(batch.ids, batch.decoder_ids)
    for (kind, layer), map in recording.maps.items():
        table, look = head_table(map), results[f"{kind} {layer}"]
        assert look == {name: pytest.approx(table.columns[name], abs=1e-5) for name in look}
        assert list(look) == ["entropy", "normalized_entropy", "sink"]


def test_measuring_does_not_change_the_model(parts: Callable) -> None:
    _, corpus, model = parts("language-model")
    model.train()
    attention_statistics(model, next(corpus.validation.evaluation_batches()))
    assert model.training
    assert not threads.any_open
    assert all(weight.grad is None for weight in model.parameters())


def test_a_limited_number_of_rows_is_measured(parts: Callable) -> None:
    _, corpus, _ = parts("encoder-decoder")
    batch = next(corpus.validation.evaluation_batches())
    for tokens, rows in ((1, 1), (int(batch.ids.offsets[2]), 2), (10**6, len(batch.ids))):
        result = batch.first_rows(tokens)
        assert len(result.ids) == len(result.decoder_ids) == rows
        assert len(result.labels) == len(result.decoder_ids.values)


def test_a_collapsed_head_is_named(parts: Callable) -> None:
    _, corpus, model = parts("language-model")
    with torch.no_grad():  # the queries and keys of head 1 are 10,000 times as large
        layer = model.decoder.layers[0].attention
        layer.query.weight[8:] *= 1e4
        layer.key.weight[8:] *= 1e4
    result = attention_statistics(model, next(corpus.validation.evaluation_batches()))
    (entropy, sinks) = (result["decoder 0"][name] for name in ("normalized_entropy", "sink"))
    assert entropy[1] < 0.05 < 0.9 < entropy[0]
    assert attention_summary(result) == (
        f"lowest normalized entropy {entropy[1]:.3f} (decoder 0 head 1), "
        f"highest weight on the first token {max(sinks):.3f} (decoder 0 head {sinks.index(max(sinks))})"
    )
