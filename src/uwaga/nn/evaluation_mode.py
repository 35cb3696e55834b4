"""A context manager that runs a model in evaluation mode without gradients, and restores its mode."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_LOCK = threading.Lock()
_CONTEXTS: dict[nn.Module, int] = {}  # how many contexts a part is in that was in training mode before


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside the context; after the last context of all threads, each submodule is in the mode that it was
    in before. Another thread that trains the module meanwhile computes in evaluation mode, too: the mode is the module's own.

    >>> layers = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5).eval())
    >>> with evaluation_mode(layers):
    ...     layers(torch.ones(3))
    tensor([1., 1., 1.])
    >>> [layer.training for layer in layers]
    [True, False]
    """
    with _LOCK:
        parts = [part for part in module.modules() if part.training or part in _CONTEXTS]
        for part in parts:
            part.training = False
            _CONTEXTS[part] = _CONTEXTS.get(part, 0) + 1
    try:
        with torch.no_grad():
            yield
    finally:
        with _LOCK:
            for part in parts:
                _CONTEXTS[part] -= 1
                if not _CONTEXTS[part]:
                    del _CONTEXTS[part]
                    part.training = True
