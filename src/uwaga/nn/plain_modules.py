"""Which modules may be computed by an operation in their place: those of PyTorch's own class that nobody extended.

A module that was replaced by another class, has hooks, or whose forward was replaced, is called.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from uwaga.nn.norms import ZeroCenteredRMSNorm
from uwaga.ops import dropout as ops_dropout
from uwaga.ops import norms
from uwaga.ops.norms import Normed


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the module is of this very class, without hooks, its own or those of all modules, and with the class's forward."""
    return (
        type(module) is kind
        and not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
        and not (module._backward_pre_hooks or "forward" in module.__dict__)
        and not torch_module._has_any_global_hook()
    )


def apply_dropout(dropout: nn.Module, x: Tensor) -> Tensor:
    """`dropout` of x: the operation `uwaga.ops.dropout` in place of a plain nn.Dropout. The module may be replaced."""
    if type(dropout) is nn.Dropout:
        if not (dropout.p and dropout.training):
            return x
        if _drops_plainly(dropout):
            return ops_dropout.dropout(x, dropout.p)
    result: Tensor = dropout(x)
    return result


def add_dropped(dropout: nn.Module, x: Tensor, added: Tensor) -> Tensor:
    """x + dropout(added), in one pass where `dropout` is a plain nn.Dropout."""
    if _drops_plainly(dropout):
        return ops_dropout.add_dropped(x, added, float(cast(float, dropout.p)))
    return x + apply_dropout(dropout, added)


def residual_norm(norm: nn.Module, dropout: nn.Module, x: Tensor, added: Tensor, *, wants_sum: bool) -> Normed:
    """norm(x + dropout(added)), and the sum where it is wanted: in one pass where both modules are plain, an nn.LayerNorm or
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
    """Whether it is a plain norm of the last dimension. An RMSNorm without eps takes one that depends on the dtype."""
    # In half precision the factor 1 + weight is float32, which the operation does not take.
    if is_plain(norm, ZeroCenteredRMSNorm) and norm.weight.dtype != torch.float32:
        return False
    if not any(is_plain(norm, kind) for kind in (nn.LayerNorm, nn.RMSNorm, ZeroCenteredRMSNorm)):
        return False
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    return len(norm.normalized_shape) == 1 and norm.eps is not None


def _drops_plainly(dropout: nn.Module) -> bool:
    """Whether it is a plain nn.Dropout that drops something, out of place."""
    return is_plain(dropout, nn.Dropout) and bool(dropout.p) and dropout.training and not dropout.inplace
