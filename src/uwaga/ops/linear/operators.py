"""The registered operator uwaga::linear, as which torch.compile records a linear map by an engine of native code.

Where gradients are recorded, the activation stays outside: the compiler fuses it with what follows. So the operator's own
gradients are products.

Letters as in autograd.py.
"""

from typing import Any, cast

import torch
from torch import Tensor

from uwaga._base.tracing import is_recorded
from uwaga.ops.activations import ACTIVATIONS
from uwaga.ops.linear.choose import NATIVE
from uwaga.ops.linear.engines import torch_linear

torch.library.define(
    "uwaga::linear", "(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, str activation, str engine) -> Tensor"
)


def run(
    engine: str, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None
) -> Tensor:
    """residual + f(x W^T + b), (..., W), as the registered operator."""
    if activation is not None and is_recorded(x, weight, bias, residual):
        activated = ACTIVATIONS[activation](_call(x, weight, bias, None, "", engine))
        return activated if residual is None else residual + activated
    return _call(x, weight, bias, residual, activation or "", engine)


def _call(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, engine: str
) -> Tensor:
    return cast(Tensor, torch.ops.uwaga.linear(x, weight, bias, residual, activation, engine))


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, engine: str
) -> Tensor:
    if x.numel() == 0 or weight.numel() == 0:  # a compiled graph may meet an empty batch
        return torch_linear.linear(x, weight, bias, activation or None, residual, batch_invariant=False)
    return NATIVE[engine].product(x, weight, bias=bias, activation=activation or None, residual=residual)


def _linear_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, engine: str
) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, _, activation, ctx.engine = inputs
    if activation:
        raise NotImplementedError("uwaga::linear has no gradients of activations; call it without one")
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias, needs_residual = ctx.needs_input_grad[:4]
    grad_NW, x_NM = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    return (
        _call(grad_NW, weight.t(), None, None, "", ctx.engine).view(x.shape) if needs_x else None,
        _call(grad_NW.t(), x_NM.t(), None, None, "", ctx.engine) if needs_weight else None,
        grad_NW.sum(0) if needs_bias else None,
        grad if needs_residual else None,
        None,
        None,
    )


torch.library.impl("uwaga::linear", "CPU", _linear)
torch.library.register_fake("uwaga::linear", _linear_fake)
torch.library.register_autograd("uwaga::linear", _backward, setup_context=_setup)
