"""The loss on the validation data."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import nn

from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.train.data.batch import Batch
from uwaga.train.data.corpus import Split
from uwaga.train.distributed import World
from uwaga.train.step import blank, given

Arithmetic = Callable[[], AbstractContextManager[None]]


def validation_loss(
    objective: nn.Module, data: Split, tokens: int | None, world: World, arithmetic: Arithmetic
) -> float:
    """The mean cross-entropy over all labels, in nats; every process takes a part, and all know the result.

    Args:
        objective: as it computes, on the device.
        data: the validation side.
        tokens: of them at most, about; None: all.
        world: all processes.
        arithmetic: a context for the passes.
    """
    total = torch.zeros(2, dtype=torch.float64, device=world.device)
    with evaluation_mode(objective):
        for batch in _shared(data.all(tokens), world):
            ready = given(batch, world.device)
            with arithmetic():
                found = objective(*ready.arguments)
            total += torch.stack((found.double(), found.new_full((), ready.scored, dtype=torch.float64)))
    found, labels = world.total(total).tolist()
    return float(found / max(labels, 1))


def _shared(batches: Iterator[Batch], world: World) -> Iterator[Batch]:
    """Every size-th batch, and one without labels where the others have one more."""
    number = -1
    for number, batch in enumerate(batches):
        last = batch
        if number % world.size == world.rank:
            yield batch
    if number % world.size < world.rank and (number + 1) % world.size:
        yield blank(last)
