"""A context manager that runs a model in evaluation mode without gradients, and restores its mode."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside the context; afterwards each submodule is in the mode that it was in before.

    >>> layers = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5).eval())
    >>> with evaluation_mode(layers):
    ...     layers(torch.ones(3))
    tensor([1., 1., 1.])
    >>> [layer.training for layer in layers]
    [True, False]
    """
    in_training = [part for part in module.modules() if part.training]
    for part in in_training:
        part.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for part in in_training:
            part.training = True
