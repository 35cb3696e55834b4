"""From a call and an engine's name to the result, by the shortest way that the surroundings allow."""

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from uwaga._base.eager import is_in_forward_mode, is_plain, is_traced, is_transformed
from uwaga.ops.attention import available, functions, schema
from uwaga.ops.attention.spec import Call


def run(call: Call, engine: str) -> tuple[Tensor, Tensor | None]:
    """The output (B, H, Q, E) and the lse (B, H, Q), None where nobody asked for it.

    PyTorch's own kernels are traced and differentiated by PyTorch itself, and so are the other engines made of PyTorch
    operations in plain eager mode. The rest of them is opaque to PyTorch: an autograd.Function where nothing but
    autograd and torch.func look on, else a registered operator.
    """
    if engine == "torch":
        return available.engine(engine).attend(call)
    if is_traced() or not all(map(is_plain, call.operands)):
        return schema.run(call, engine)
    if is_transformed():
        return functions.run(call, engine)
    if engine != "cpu":
        return available.engine(engine).attend(call)
    if is_in_forward_mode() and any(x is not None and unpack_dual(x).tangent is not None for x in call.operands):
        raise functions.no_forward_mode()
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in call.operands):
        return functions.run(call, engine)
    return available.engine(engine).forward(call)
