"""Modules that are computed by an operation in their place: those of PyTorch's own class that nobody extended.

A module that was replaced by another class, has hooks, or whose forward was replaced, is called. Linear maps are batch-invariant: a token
gives the same bits whatever other tokens are in the batch. One with hooks is called, and its product is computed by `uwaga.linear` all the
same; the activation is then PyTorch's, since a hook may change what it is taken of. A replaced one (LoRA, quantized layers) computes as it
does, on rows that are padded if that suffices (`ops/linear/engines/torch_linear.py`).

Letters: M width of the input, W width of the output.
"""

from collections.abc import Callable
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from uwaga._base.tracing import is_intercepted
from uwaga.ops import dropout as ops_dropout
from uwaga.ops import norms
from uwaga.ops.activations import ACTIVATIONS
from uwaga.ops.linear.api import linear_map
from uwaga.ops.linear.choose import is_compiled
from uwaga.ops.linear.engines.torch_linear import needs_padding, with_padding
from uwaga.ops.norms import Normed

_FORWARD = nn.Linear.forward


class ZeroCenteredRMSNorm(nn.RMSNorm):
    """x / sqrt(mean of squares + eps) * (1 + weight), as in Gemma: weight (M,) begins at 0, so that weight decay draws the factor
    to 1, and half precision stores it finely there."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def factor(self) -> Tensor:
        """Return (M,) 1 + weight, in float32 (float64 for float64)."""
        return 1.0 + (self.weight.float() if self.weight.dtype != torch.float64 else self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., M), computed in float32 (float64 for float64) and rounded once."""
        factor = self.factor()
        return functional.rms_norm(x.to(factor.dtype), self.normalized_shape, factor, self.eps).to(x.dtype)


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether the module is of this very class, without hooks, its own or those of all modules, and with the class's forward."""
    return (
        type(module) is kind
        and not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
        and not (module._backward_pre_hooks or "forward" in module.__dict__)
        and not torch_module._has_any_global_hook()
    )


def apply_linear(linear: Callable[[Tensor], Tensor], x: Tensor, *, activation: str | None = None) -> Tensor:
    """Compute f(linear(x)), (..., W), of rows (..., M), with an activation f as in `uwaga.linear`.

    >>> import torch
    >>> apply_linear(torch.nn.Linear(3, 5), torch.ones(2, 3, 3)).shape
    torch.Size([2, 3, 5])
    """
    if is_plain_linear(linear):
        return linear_map(x, linear.weight, linear.bias, activation)
    if _is_observed_linear(linear):
        with _ProductOf(linear):
            mapped = linear(x)
    else:
        mapped = with_padding(linear, x) if needs_padding(x) else linear(x)
    return mapped if activation is None else ACTIVATIONS[activation](mapped)


def is_plain_linear(linear: Callable[[Tensor], Tensor]) -> TypeGuard[nn.Linear]:
    """Return whether calling this module computes x W^T + b and nothing else: a torch.nn.Linear that nobody observes or replaced, outside
    tracers, which record calls of modules."""
    return (
        isinstance(linear, nn.Linear)
        and is_plain(linear, nn.Linear)
        and nn.Linear.forward is _FORWARD
        and (not is_intercepted() or is_compiled())
    )


def _is_observed_linear(linear: Callable[[Tensor], Tensor]) -> TypeGuard[nn.Linear]:
    """Return whether it is a torch.nn.Linear that `is_plain_linear` would accept without its hooks."""
    return (
        not is_intercepted()
        and type(linear) is nn.Linear
        and "forward" not in linear.__dict__
        and nn.Linear.forward is _FORWARD
    )


class _ProductOf(TorchFunctionMode):
    """A context in which F.linear with the weight of one module is computed by `uwaga.linear`; other calls of hooks stay as they are."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.linear and len(args) == 3 and args[1] is self.weight:  # as nn.Linear.forward calls it
            return linear_map(*args)
        return func(*args, **(kwargs or {}))


def apply_dropout(dropout: nn.Module, x: Tensor) -> Tensor:
    """Compute `dropout` of x: the operation `uwaga.ops.dropout` in place of a plain nn.Dropout. The module may be replaced."""
    if type(dropout) is nn.Dropout:
        if not (dropout.p and dropout.training):
            return x
        if _drops_plainly(dropout):
            return ops_dropout.dropout(x, dropout.p)
    result: Tensor = dropout(x)
    return result


def add_dropped(dropout: nn.Module, x: Tensor, added: Tensor) -> Tensor:
    """Compute x + dropout(added), in one pass where `dropout` is a plain nn.Dropout."""
    if _drops_plainly(dropout):
        return ops_dropout.add_dropped(x, added, float(cast(float, dropout.p)))
    return x + apply_dropout(dropout, added)


def residual_norm(norm: nn.Module, dropout: nn.Module, x: Tensor, added: Tensor, *, wants_sum: bool) -> Normed:
    """Compute norm(x + dropout(added)), and the sum where it is wanted: in one pass where both modules are plain, an nn.LayerNorm or
    nn.RMSNorm (zero-centered too) of the last dimension and an nn.Dropout."""
    if not _is_plain_norm(norm):
        total = add_dropped(dropout, x, added)
        return Normed(norm(total), total if wants_sum else None)
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    assert norm.eps is not None
    p = 0.0
    if _drops_plainly(dropout):
        p = float(cast(float, dropout.p))
    else:
        added = apply_dropout(dropout, added)
    return norms.residual_norm(
        x,
        added,
        kind="layer" if isinstance(norm, nn.LayerNorm) else "rms",
        weight=norm.factor() if isinstance(norm, ZeroCenteredRMSNorm) else norm.weight,
        bias=norm.bias if isinstance(norm, nn.LayerNorm) else None,
        eps=norm.eps,
        p=p,
        wants_sum=wants_sum,
    )


def _is_plain_norm(norm: nn.Module) -> bool:
    """Return whether it is a plain norm of the last dimension. An RMSNorm without eps takes one that depends on the dtype."""
    # In half precision the factor 1 + weight is float32, which the operation does not take.
    if is_plain(norm, ZeroCenteredRMSNorm) and norm.weight.dtype != torch.float32:
        return False
    if not any(is_plain(norm, kind) for kind in (nn.LayerNorm, nn.RMSNorm, ZeroCenteredRMSNorm)):
        return False
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    return len(norm.normalized_shape) == 1 and norm.eps is not None


def _drops_plainly(dropout: nn.Module) -> bool:
    """Return whether it is a plain nn.Dropout that drops something, out of place."""
    return is_plain(dropout, nn.Dropout) and bool(dropout.p) and dropout.training and not dropout.inplace
