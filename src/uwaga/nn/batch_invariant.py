"""Linear maps of modules, by `uwaga.linear`; batch-invariant: a token gives the same bits whatever other tokens are in the batch.

A plain torch.nn.Linear is computed from its parameters. One with hooks is called, and its product is computed by `uwaga.linear` all
the same; the activation is then PyTorch's, since a hook may change what it is taken of. Every other module is called: replaced modules
(LoRA, quantized layers) compute as they do, on rows that are padded (`ops/linear/engines/torch_linear.py` says where that suffices).

Letters: M width of the input, W width of the output.
"""

from collections.abc import Callable
from typing import Any, TypeGuard

from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

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
    if _is_observed_linear(linear):
        with _ProductOf(linear, batch_invariant=batch_invariant):
            mapped = linear(x)
    else:
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


def _is_observed_linear(linear: Callable[[Tensor], Tensor]) -> TypeGuard[nn.Linear]:
    """Whether it is a torch.nn.Linear that `is_plain_linear` would have but for hooks."""
    return (
        not is_intercepted()
        and type(linear) is nn.Linear
        and "forward" not in linear.__dict__
        and nn.Linear.forward is _FORWARD
    )


class _ProductOf(TorchFunctionMode):
    """A context in which F.linear with the weight of one module is computed by `uwaga.linear`; what hooks call besides stays as it is."""

    def __init__(self, linear: nn.Linear, *, batch_invariant: bool) -> None:
        super().__init__()
        self.weight, self.batch_invariant = linear.weight, batch_invariant

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.linear and len(args) == 3 and args[1] is self.weight:  # as nn.Linear.forward calls it
            return linear_map(*args, batch_invariant=self.batch_invariant)
        return func(*args, **(kwargs or {}))
