"""The validation loss, the mean over all labels in any number of processes; error rates; and attention statistics of every head."""

from collections.abc import Callable

import pytest
import torch

import uwaga
from uwaga._base import threads
from uwaga.inspect import head_table
from uwaga.train.evaluation import attention_statistics, attention_summary, error_rates
from uwaga.train.parallel import World
from uwaga.train.step import Objective, TrainableModel

OBJECTIVES = ["language-model", "encoder-decoder", "masked-language-model"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_validation_loss_is_the_mean_over_all_labels(parts: Callable, objective: str) -> None:
    config, corpus, model = parts(objective, "optimizer.label_smoothing=0.2")
    alone = World(rank=0, size=1, device=torch.device("cpu"))
    result = TrainableModel(model, config, alone).validation_loss(corpus.validation)
    assert model.training
    total = labels = 0.0
    with torch.no_grad():
        for batch in corpus.validation.evaluation_batches():
            arguments, scored = batch.inputs(alone.device)
            total += float(Objective(model.eval())(*arguments))
            labels += scored
    assert result == pytest.approx(total / labels)


def test_the_nearest_reference_counts() -> None:
    references = [["R IY D", "R EH D"], ["T AH M EY T OW", "T AH M AA T OW"], ["K AE T"]]
    assert error_rates(["R EH D", "T AH M AA T OW", "K AE T"], references) == (0.0, 0.0, 3)
    # One substitution, one deletion and one insertion, per 3 + 6 + 3 phonemes.
    assert error_rates(["R AH D", "T M AA T OW", "K AE T S"], references) == (3 / 12, 1.0, 3)
    assert error_rates(["R EH D", "", "K AE T"], references) == (6 / 12, 1 / 3, 3)


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
    model.train()
    results = attention_statistics(model, batch)
    assert results.keys() == KINDS[objective]
    assert model.training
    assert not threads.any_open
    assert all(weight.grad is None for weight in model.parameters())
    model.eval()
    with uwaga.watch(model) as recording, torch.no_grad():
        model(batch.ids) if batch.decoder_ids is None else model(batch.ids, batch.decoder_ids)
    for (kind, layer), map in recording.maps.items():
        table, look = head_table(map), results[f"{kind} {layer}"]
        assert look == {name: pytest.approx(table.columns[name], abs=1e-5) for name in look}
        assert list(look) == ["entropy", "normalized_entropy", "sink"]


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
