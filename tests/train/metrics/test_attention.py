"""Attention statistics of every head, compared with those of a recording by uwaga.watch."""

from collections.abc import Callable

import pytest
import torch

import uwaga
from uwaga._base import threads
from uwaga.inspect import head_table
from uwaga.train.metrics import attention

KINDS = {
    "language-model": {"decoder 0"},
    "encoder-decoder": {"encoder 0", "decoder 0", "cross 0"},
    "masked-language-model": {"encoder 0"},
}


@pytest.mark.parametrize("objective", KINDS)
def test_statistics_equal_those_of_a_recording(parts: Callable, objective: str) -> None:
    _, corpus, model = parts(objective)
    batch = attention.first_rows(next(corpus.validation.evaluation_batches()))
    results = {each.name: each for each in attention.measure(model, batch)}
    assert results.keys() == KINDS[objective]
    model.eval()
    with uwaga.watch(model) as recording, torch.no_grad():
        model(batch.ids) if batch.decoder_ids is None else model(batch.ids, batch.decoder_ids)
    for (kind, layer), map in recording.maps.items():
        table, look = head_table(map), results[f"{kind} {layer}"]
        assert look.entropy == pytest.approx(table.columns["entropy"], abs=1e-5)
        assert look.normalized_entropy == pytest.approx(table.columns["normalized_entropy"], abs=1e-5)
        assert look.sink == pytest.approx(table.columns["sink"], abs=1e-5)


def test_measuring_does_not_change_the_model(parts: Callable) -> None:
    _, corpus, model = parts("language-model")
    model.train()
    attention.measure(model, next(corpus.validation.evaluation_batches()))
    assert model.training
    assert not threads.any_open
    assert all(weight.grad is None for weight in model.parameters())


def test_a_limited_number_of_rows_is_measured(parts: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    _, corpus, _ = parts("encoder-decoder")
    batch = next(corpus.validation.evaluation_batches())
    for tokens, rows in ((1, 1), (int(batch.ids.offsets[2]), 2), (10**6, len(batch.ids))):
        monkeypatch.setattr(attention, "_TOKENS", tokens)
        result = attention.first_rows(batch)
        assert len(result.ids) == len(result.decoder_ids) == rows
        assert len(result.labels) == len(result.decoder_ids.values)


def test_a_collapsed_head_is_named(parts: Callable) -> None:
    _, corpus, model = parts("language-model")
    with torch.no_grad():  # the queries and keys of head 1 are 10,000 times as large
        layer = model.decoder.layers[0].attention
        layer.query.weight[8:] *= 1e4
        layer.key.weight[8:] *= 1e4
    result = attention.measure(model, next(corpus.validation.evaluation_batches()))
    assert result[0].normalized_entropy[1] < 0.05 < 0.9 < result[0].normalized_entropy[0]
    sink = max(result[0].sink)
    assert attention.summary(result) == (
        f"lowest normalized entropy {result[0].normalized_entropy[1]:.3f} (decoder 0 head 1), "
        f"highest weight on the first token {sink:.3f} (decoder 0 head {result[0].sink.index(sink)})"
    )
    assert set(attention.by_name(result)["decoder 0"]) == {"entropy", "normalized_entropy", "sink"}
