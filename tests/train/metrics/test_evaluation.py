"""The validation loss: the mean over all labels, whoever computes which batch."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch

from uwaga.train.distributed import World
from uwaga.train.metrics.evaluation import _shared, validation_loss
from uwaga.train.objective import Objective
from uwaga.train.step import given

OBJECTIVES = ["language-model", "encoder-decoder", "masked-language-model"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_it_is_the_mean_over_all_labels(parts: Callable, alone: World, objective: str) -> None:
    config, corpus, model = parts(objective)
    module = Objective(model, 0.2).train()
    found = validation_loss(module, corpus.validation, None, alone, nullcontext)
    assert module.training
    total = labels = 0.0
    with torch.no_grad():
        for batch in corpus.validation.all():
            ready = given(batch, torch.device("cpu"))
            total += float(Objective(model.eval())(*ready.arguments))
            labels += ready.scored
    assert found == pytest.approx(total / labels)
    del config


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_process_has_as_many_batches_and_each_batch_one_process(parts: Callable, size: int) -> None:
    _, corpus, _ = parts("language-model", "batch.tokens_per_batch=32")
    every = list(corpus.validation.all())
    assert len(every) > 2
    worlds = [World(rank=rank, size=size, device=torch.device("cpu")) for rank in range(size)]
    shares = [list(_shared(iter(every), world)) for world in worlds]
    assert len({len(share) for share in shares}) == 1
    assert sum(batch.scored for share in shares for batch in share) == sum(batch.scored for batch in every)
