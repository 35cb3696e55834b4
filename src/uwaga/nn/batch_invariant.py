"""Linear maps of modules, by `uwaga.linear`; batch-invariant: a token gives the same bits whatever other tokens are in the batch.

A plain torch.nn.Linear is computed from its parameters. Every other module is called: replaced modules (LoRA, quantized layers) and
observed ones (hooks). Then PyTorch's product is made batch-invariant by padding (`ops/linear/engines/torch_linear.py`).

Letters: M width of the input, W width of the output.
"""

from collections.abc import Callable
from typing import TypeGuard

from torch import Tensor, nn

from uwaga._base.tracing import is_intercepted
from uwaga.nn.plain_modules import is_plain
from uwaga.ops.activations import ACTIVATIONS
from uwaga.ops.linear.api import linear_map
from uwaga.ops.linear.choose import is_compiled
from uwaga.ops.linear.engines.torch_linear import needs_padding, with_padding

_FORWARD = nn.Linear.forward


def apply_linear(
    linear: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    activation: str | None = None,
    batch_invariant: bool = True,
) -> Tensor:
    """f(linear(x)), (..., W), of rows (..., M), with an activation f as in `uwaga.linear`.

    batch_invariant=False permits other last bits for other numbers of rows, where that is faster.

    >>> import torch
    >>> apply_linear(torch.nn.Linear(3, 5), torch.ones(2, 3, 3)).shape
    torch.Size([2, 3, 5])
    """
    if is_plain_linear(linear):
        return linear_map(x, linear.weight, linear.bias, activation, batch_invariant=batch_invariant)
    mapped = with_padding(linear, x) if batch_invariant and needs_padding(x) else linear(x)
    return mapped if activation is None else ACTIVATIONS[activation](mapped)


def is_plain_linear(linear: Callable[[Tensor], Tensor]) -> TypeGuard[nn.Linear]:
    """Whether calling this module computes x W^T + b and nothing else: a torch.nn.Linear that nobody observes or replaced, outside
    tracers, which record calls of modules."""
    return (
        isinstance(linear, nn.Linear)
        and is_plain(linear, nn.Linear)
        and nn.Linear.forward is _FORWARD
        and (not is_intercepted() or is_compiled())
    )
