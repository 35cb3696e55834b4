"""Runs a linear map by an engine: as PyTorch's own operator, directly, as an autograd.Function, or as a registered operator.

The gradients are products again, of the same engine. With h = x W^T + b, z = r + f(h) and the gradient dz:

    dh = dz f'(h)    dx = dh W    dW = dh^T x    db = sum of the rows of dh    dr = dz

Letters: M width of the input, W width of the output, N rows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from uwaga._base.tracing import is_autocast, is_batch_of_gradients, is_plain_eager, is_recorded, without_autocast
from uwaga.ops import rows
from uwaga.ops.activations import ACTIVATIONS, gelu_backward
from uwaga.ops.linear import choose
from uwaga.ops.linear.choose import Operands
from uwaga.ops.linear.engines import cpu, torch_linear

_aten = torch.ops.aten
# dh from dz and h.
_ACTIVATION_BACKWARD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gelu": gelu_backward,
    "gelu_tanh": partial(gelu_backward, approximate="tanh"),
    "relu": lambda grad, h: _aten.threshold_backward(grad, h, 0),
    "silu": lambda grad, h: _silu_backward(grad, h),
}


def _silu_backward(grad: Tensor, h: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return cast(Tensor, _aten.silu_backward(grad, h))
    sigmoid = h.sigmoid()  # PyTorch's operator cannot be differentiated
    return grad * sigmoid * (1 + h * (1 - sigmoid))


def run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    impl: str | None,
) -> Tensor:
    """Compute residual + f(x W^T + b), (..., W), of operands that fit together."""
    if is_autocast(x.device.type):
        return _under_autocast(Operands(x, weight, bias, None), activation, residual, impl)
    engine = choose.engine_name(Operands(x, weight, bias, residual), impl)
    if engine == "torch":
        return torch_linear.linear(x, weight, bias, activation, residual)
    if choose.is_compiled():
        return run_operator(x, weight, bias, activation, residual)
    return run_eagerly(x, weight, bias, activation, residual)


def _under_autocast(operands: Operands, activation: str | None, residual: Tensor | None, impl: str | None) -> Tensor:
    low = lowered(operands)
    if choose.engine_name(low, impl) == "torch":
        return torch_linear.linear(*operands[:3], activation, residual)
    with torch.autocast(operands.x.device.type, enabled=False):
        mapped = run(*low[:3], activation, None, impl)
    return mapped if residual is None else residual + mapped


def lowered(operands: Operands) -> Operands:
    """Return x, weight and bias in the dtype of autocast, as F.linear under autocast computes with them: float64 and what is not floating
    stay. The residual is added afterwards, and left out. Without autocast the operands as they are."""
    device = operands.x.device.type
    if not is_autocast(device):
        return operands
    dtype = torch.get_autocast_dtype(device)

    def lower(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor

    return Operands(
        lower(operands.x), lower(operands.weight), None if operands.bias is None else lower(operands.bias), None
    )


def run_eagerly(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None
) -> Tensor:
    """Compute the map by the native kernels, where nothing but autograd is active."""
    if torch.is_grad_enabled() and (
        x.requires_grad
        or weight.requires_grad
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
    ):
        return cast(Tensor, _apply(activation, x, weight, bias, residual))
    return cpu.product(x, weight, bias=bias, activation=activation, residual=residual)


class Linear(torch.autograd.Function):
    """A linear map by the native kernels, recorded for autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        activation: str | None,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
    ) -> Tensor:
        ctx.activation = activation
        if activation is None:
            ctx.save_for_backward(x, weight)
            return cpu.product(x, weight, bias=bias, residual=residual)
        mapped, preactivation = cpu.product_and_preactivation(
            x, weight, bias=bias, activation=activation, residual=residual
        )
        ctx.save_for_backward(x, weight, bias, preactivation)
        return mapped

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *rest = ctx.saved_tensors
        _, needs_x, needs_weight, needs_bias, needs_residual = ctx.needs_input_grad
        is_plain = not torch.is_grad_enabled() and _is_readable_gradient(grad, x, weight)
        product = cpu.product if is_plain else product_of("cpu")
        with without_autocast(grad.device):
            grad_NW = _before_activation(ctx.activation, grad, x, weight, rest, product)
            grad_x = product(grad_NW, weight.t()).view(x.shape) if needs_x else None
            grad_weight = product(grad_NW.t(), _rows(x).t()) if needs_weight else None
        grad_bias = grad_NW.sum(0) if needs_bias else None
        return None, grad_x, grad_weight, grad_bias, grad if needs_residual else None


# Function.apply would check again whether a transform of torch.func is active, see ops/attention/fast_path.py.
_apply = cast(Any, super(torch.autograd.Function, Linear)).apply


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def _is_readable_gradient(grad: Tensor, x: Tensor, weight: Tensor) -> bool:
    """Return whether native code reads the right numbers at the address of a gradient and of what was saved, which saved-tensor hooks may
    replace."""
    is_plain = rows.is_native(grad, x, weight) and not is_batch_of_gradients(grad)
    return is_plain and grad.numel() != 0 and not grad._is_zerotensor()


def _before_activation(
    activation: str | None,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    rest: Sequence[Tensor | None],
    product: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Compute dh, (N, W)."""
    if activation is None:
        return _rows(grad)
    bias, preactivation = rest
    if torch.is_grad_enabled():  # to be differentiated again, so it must depend on x, weight and bias
        preactivation = product(_rows(x), weight)
        preactivation = preactivation if bias is None else preactivation + bias
    assert preactivation is not None
    return _rows(_ACTIVATION_BACKWARD[activation](grad, preactivation.view(grad.shape)))


def product_of(engine: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function a b^T, differentiable if gradients are recorded: by the engine, or by PyTorch's operators, which every transform,
    tracer and tensor subclass knows."""

    if engine == "torch":
        return _torch_product

    def product(a: Tensor, b: Tensor) -> Tensor:
        is_plain = is_plain_eager() and not (is_batch_of_gradients(a) or is_batch_of_gradients(b))
        if is_plain and choose.refusal("cpu", Operands(a, b, None, None)) is None:
            return run_eagerly(a, b, None, None, None)
        return _torch_product(a, b)

    return product


def _torch_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.t()


# The registered operator uwaga::linear, as which torch.compile records a linear map by the native kernels. Where gradients are
# recorded, the activation stays outside: the compiler fuses it with what follows. So the operator's own gradients are products.

torch.library.define(
    "uwaga::linear", "(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, str activation) -> Tensor"
)


_call_operator: Callable[..., Tensor] = torch.ops.uwaga.linear


def run_operator(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None
) -> Tensor:
    """Compute residual + f(x W^T + b), (..., W), as the registered operator."""
    if activation is not None and is_recorded(x, weight, bias, residual):
        activated = ACTIVATIONS[activation](_call_operator(x, weight, bias, None, ""))
        return activated if residual is None else residual + activated
    return _call_operator(x, weight, bias, residual, activation or "")


def _kernel(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str) -> Tensor:
    if x.numel() == 0 or weight.numel() == 0:  # a compiled graph may meet an empty batch
        return torch_linear.linear(x, weight, bias, activation or None, residual)
    return cpu.product(x, weight, bias=bias, activation=activation or None, residual=residual)


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, _, activation = inputs
    if activation:
        raise NotImplementedError("uwaga::linear has no gradients of activations; call it without one")
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias, needs_residual = ctx.needs_input_grad[:4]
    grad_NW, x_NM = _rows(grad), _rows(x)
    return (
        _call_operator(grad_NW, weight.t(), None, None, "").view(x.shape) if needs_x else None,
        _call_operator(grad_NW.t(), x_NM.t(), None, None, "") if needs_weight else None,
        grad_NW.sum(0) if needs_bias else None,
        grad if needs_residual else None,
        None,
    )


torch.library.impl("uwaga::linear", "CPU", _kernel)
torch.library.register_fake("uwaga::linear", _fake)
torch.library.register_autograd("uwaga::linear", _backward, setup_context=_setup)
