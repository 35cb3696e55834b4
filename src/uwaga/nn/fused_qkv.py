"""Query, key and value of the same tokens by one matrix product, while gradients are recorded.

One product is faster than three, forward and backward, although the weights are concatenated for it, if there are enough tokens
to pay for that copy. The gradients of the weights are one product too. Without gradients the maps are computed separately.

Letters: N tokens in all leading dimensions, M width of the input, W width of a map.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from uwaga._base.tracing import is_intercepted, is_plain_tensor, is_transformed
from uwaga.nn.batch_invariant import is_plain_linear
from uwaga.ops.linear import choose
from uwaga.ops.linear.api import linear_map
from uwaga.ops.linear.autograd import product_of
from uwaga.ops.linear.choose import Operands

# With fewer tokens than this, or than the input width, copying the weights takes longer than one product saves.
_LEAST_TOKENS = 256


def is_worthwhile(linears: Sequence[nn.Linear], x: Tensor) -> bool:
    """Whether `fused_linears` may replace the separate calls: many float32 tokens on the CPU with gradients, no tracer,
    transform or autocast active, and plain nn.Linear modules of one input width without hooks."""
    if not torch.is_grad_enabled() or x.dtype != torch.float32 or not x.is_cpu or not is_plain_tensor(x):
        return False
    if is_intercepted() or is_transformed() or torch.is_autocast_enabled("cpu"):
        return False
    width, has_bias, needs_grad = x.shape[-1], linears[0].bias is not None, x.requires_grad
    if x.numel() < max(_LEAST_TOKENS, width) * width:
        return False
    for linear in linears:
        # Other modules and hooks must be called; weights of another dtype or subclass need their own product.
        if not is_plain_linear(linear):
            return False
        weight, bias = linear.weight, linear.bias
        if weight.dtype != torch.float32 or not is_plain_tensor(weight) or (bias is not None) != has_bias:
            return False
        if weight.shape[1] != width:  # the separate call raises the error
            return False
        needs_grad = needs_grad or weight.requires_grad
    return needs_grad


def fused_linears(linears: Sequence[nn.Linear], x: Tensor) -> tuple[Tensor, ...]:
    """The outputs (..., W) of all linears for x (..., M), as views of one tensor; batch-invariant as `uwaga.linear` is."""
    weights = [linear.weight for linear in linears]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    mapped = cast(Tensor, _FusedLinears.apply(x, len(weights), *weights, *biases))
    return mapped.split([weight.shape[0] for weight in weights], -1)


class _FusedLinears(torch.autograd.Function):
    """(..., sum of W) of x (..., M), weights (W, M) each, and as many biases (W,) or none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:count], parameters[count:]
        ctx.weight = torch.cat(weights)
        ctx.save_for_backward(x, *weights)  # detects changes in place, and allows double backward
        bias = torch.cat(biases) if biases else None
        ctx.engine = choose.engine_name(Operands(x, ctx.weight, bias, None), None)
        return linear_map(x, ctx.weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        weight = torch.cat(weights) if torch.is_grad_enabled() else ctx.weight
        widths = [weight.shape[0] for weight in weights]
        grad_NW, x_NM = grad.reshape(-1, sum(widths)), x.reshape(-1, weight.shape[1])
        product = product_of(ctx.engine)
        needs_x, needs_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2 : 2 + len(weights)])
        needs_biases = any(ctx.needs_input_grad[2 + len(weights) :])
        grad_weights = product(grad_NW.t(), x_NM.t()).split(widths) if needs_weights else (None,) * len(weights)
        grad_biases = (
            grad_NW.sum(0).split(widths) if needs_biases else (None,) * (len(ctx.needs_input_grad) - 2 - len(weights))
        )
        return product(grad_NW, weight.t()).view_as(x) if needs_x else None, None, *grad_weights, *grad_biases
