"""Several linear maps of the same tokens by one product of matrices, while gradients are recorded.

To multiply once costs less than three times, forward and backward, though the weights are copied side by side for it, where
there are more tokens than that copy is worth. The gradients of the weights come out of one product as well. Without gradients
the maps stay apart.

Letters: N tokens in all leading dimensions, M width of the input, W width of a map.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from uwaga._base.tracing import is_intercepted, is_plain_tensor, is_transformed
from uwaga.nn.steady import steady

# With fewer tokens, or fewer than numbers in each, copying the weights takes longer than one product saves.
_LEAST_TOKENS = 256


def is_worthwhile(linears: Sequence[nn.Linear], x: Tensor) -> bool:
    """Whether `maps` may stand for the calls of these: many tokens in float32 on the CPU with gradients, where nobody looks
    on, and maps that fit each other."""
    if not torch.is_grad_enabled() or x.dtype != torch.float32 or not x.is_cpu or not is_plain_tensor(x):
        return False
    if is_intercepted() or is_transformed() or torch.is_autocast_enabled("cpu"):
        return False
    width, has_bias, needs_grad = x.shape[-1], linears[0].bias is not None, x.requires_grad
    if x.numel() < max(_LEAST_TOKENS, width) * width:
        return False
    for linear in linears:
        # Another module in its place, or hooks, want to be called; a weight of another kind wants its own product.
        if type(linear) is not nn.Linear or linear._forward_hooks or linear._forward_pre_hooks:
            return False
        if linear._backward_hooks or linear._backward_pre_hooks:
            return False
        weight, bias = linear.weight, linear.bias
        if weight.dtype != torch.float32 or not is_plain_tensor(weight) or (bias is not None) != has_bias:
            return False
        if weight.shape[1] != width:  # who maps it says so
            return False
        needs_grad = needs_grad or weight.requires_grad
    return needs_grad


def maps(linears: Sequence[nn.Linear], x: Tensor) -> tuple[Tensor, ...]:
    """Each map of x (..., M), (..., W): views of one tensor. A token gives the same bits among any others."""
    weights = [linear.weight for linear in linears]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    mapped = steady(lambda rows: cast(Tensor, _JointMaps.apply(rows, len(weights), *weights, *biases)), x)
    return mapped.split([weight.shape[0] for weight in weights], -1)


class _JointMaps(torch.autograd.Function):
    """(..., sum of W) of x (..., M), weights (W, M) each, and as many biases (W,) or none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:count], parameters[count:]
        ctx.joint = torch.cat(weights)
        ctx.save_for_backward(x, *weights)  # notices changes in place, and differentiates twice
        return functional.linear(x, ctx.joint, torch.cat(biases) if biases else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        joint = torch.cat(weights) if torch.is_grad_enabled() else ctx.joint
        widths = [weight.shape[0] for weight in weights]
        grad_NW, x_NM = grad.reshape(-1, sum(widths)), x.reshape(-1, joint.shape[1])
        needs_x, needs_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2 : 2 + len(weights)])
        needs_biases = any(ctx.needs_input_grad[2 + len(weights) :])
        grad_weights = (grad_NW.t() @ x_NM).split(widths) if needs_weights else (None,) * len(weights)
        grad_biases = (
            grad_NW.sum(0).split(widths) if needs_biases else (None,) * (len(ctx.needs_input_grad) - 2 - len(weights))
        )
        return (grad_NW @ joint).view_as(x) if needs_x else None, None, *grad_weights, *grad_biases
