"""From a call and an engine's name to the result, by the shortest way that the surroundings allow."""

import torch
from torch import Tensor

from uwaga._base.tracing import (
    Transform,
    has_tangent,
    is_autocast,
    is_intercepted,
    is_plain_tensor,
    is_transformed,
    transforms,
)
from uwaga.ops.attention import autograd, available, operators
from uwaga.ops.attention.call import Call, no_forward_mode


def run(call: Call, engine: str) -> tuple[Tensor, Tensor | None]:
    """The output (B, H, Q, E) and the lse (B, H, Q), None where nobody asked for it. Autocast has no part in it: operands
    come in the type that they are to be read in, and arithmetic is float32.

    PyTorch's own kernels are traced and differentiated by PyTorch itself, and so are the other engines made of PyTorch
    operations in plain eager mode. The rest of them is opaque to PyTorch: an autograd.Function where nothing but
    autograd and torch.func look on, else a registered operator.
    """
    device = call.query.device.type
    if engine == "cpu" or not is_autocast(device):
        return _run(call, engine)
    with torch.autocast(device, enabled=False):
        return _run(call, engine, is_autocast_outside=True)


def _run(call: Call, engine: str, *, is_autocast_outside: bool = False) -> tuple[Tensor, Tensor | None]:
    if engine == "torch":
        return available.engine(engine).attend(call)
    if has_tangent(*call.operands):
        if engine == "cpu":
            raise no_forward_mode()
        return available.engine(engine).attend(call)
    if is_intercepted() or not all(map(is_plain_tensor, call.operands)) or Transform.Functionalize in transforms():
        return operators.run(call, engine)
    if is_transformed() or is_autocast_outside:  # then autocast may be on in the backward pass, too
        return autograd.run(call, engine)
    if engine != "cpu":
        return available.engine(engine).attend(call)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in call.operands):
        return autograd.run(call, engine)
    return available.engine(engine).forward(call)
