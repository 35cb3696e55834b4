"""Reading with a model that may be in training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Within it the module is in evaluation mode, and records no gradients; behind it every part is in its own mode again.

    >>> layers = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5).eval())
    >>> with evaluating(layers):
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
