"""Activations of feed-forward layers by name, and GELU with a backward pass in one pass over memory.

    gelu(x) = x Phi(x),    gelu'(x) = Phi(x) + x phi(x)      (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016)

with Phi and phi of the standard normal distribution; "gelu_tanh" is the approximation of GPT-2.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from uwaga._base import native
from uwaga._base.native_layout import struct_of
from uwaga._base.tracing import is_batch_of_gradients
from uwaga.ops import rows

_NUMBERS = {"none": 1, "tanh": 2}  # UWAGA_GELU, UWAGA_GELU_TANH
_ARGUMENTS = struct_of("uwaga_activation_backward_args")


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Compute GELU of each number of x, torch.nn.functional.gelu, with `gelu_backward` as its gradient.

    Args:
        x: of any shape.
        approximate: "none", or "tanh": x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.

    Raises:
        ValueError: an unknown approximation.

    >>> gelu(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """
    if approximate not in _NUMBERS:
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', not {approximate!r}")
    if x.requires_grad and torch.is_grad_enabled() and rows.is_native(x):
        return cast(Tensor, _Gelu.apply(x, approximate))
    return functional.gelu(x, approximate=approximate)


def gelu_backward(grad: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    """Compute grad gelu'(x), of the shape of x, with float32 arithmetic for bfloat16 and float16.

    PyTorch's operator computes it where the native kernels do not (`rows.is_native`), and where it is differentiated once more.

    Args:
        grad: the gradient with respect to gelu(x), of the shape and dtype of x.
        x: what GELU was taken of.
        approximate: as in `gelu`.
    """
    is_recorded = torch.is_grad_enabled() and (grad.requires_grad or x.requires_grad)
    if is_recorded or is_batch_of_gradients(grad) or not rows.is_native(x, grad):
        return cast(Tensor, torch.ops.aten.gelu_backward(grad, x, approximate=approximate))
    x, grad = x.contiguous(), rows.dense(grad)
    output = torch.empty_like(x)
    if x.numel():
        count, width = rows.sizes(x)
        tensors = (*rows.fields(x), *rows.fields(grad), *rows.fields(output))
        packed = _ARGUMENTS.pack(count, width, _NUMBERS[approximate], native.threads(), *tensors)
        native.check(native.library().functions.uwaga_activation_backward(packed))
    return output


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, approximate: str) -> Tensor:
        ctx.approximate = approximate
        ctx.save_for_backward(x)
        return functional.gelu(x, approximate=approximate)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gelu_backward(grad, x, ctx.approximate), None


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}
