"""Runs a call by an engine: directly, as an autograd.Function, or as a registered operator, depending on the active tracers
and transforms.

The autograd functions here do what the registered operators in operators.py do, without the dispatcher: an operator with autograd costs
0.2 ms a call, more than the kernels need for a short batch.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from uwaga._base.tracing import (
    has_tangent,
    is_autocast,
    is_batch_of_gradients,
    is_intercepted,
    is_plain_tensor,
    is_recorded,
    is_transformed,
)
from uwaga.ops.attention import choose, gradients, operators
from uwaga.ops.attention.call import Call, Gradients, Options, no_forward_mode
from uwaga.ops.attention.engines import cpu


def run(call: Call, engine: str) -> tuple[Tensor, Tensor | None]:
    """Return the output (B, H, Q, E) and the lse (B, H, Q), None where it is not wanted. Autocast is switched off: operands are
    read in the dtype that they have, and arithmetic is float32 (float64 for float64).

    PyTorch's own kernels (`torch`, `flex`) are traced and differentiated by PyTorch itself, and so are the other engines made of PyTorch
    operations in plain eager mode. The other engines are opaque to PyTorch: an autograd.Function where at most autograd is active,
    else a registered operator.
    """
    device = call.query.device.type
    if engine == "cpu" or not is_autocast(device):
        return _run(call, engine)
    with torch.autocast(device, enabled=False):
        return _run(call, engine, is_autocast_outside=True)


def _run(call: Call, engine: str, *, is_autocast_outside: bool = False) -> tuple[Tensor, Tensor | None]:
    if engine == "torch" or (engine == "flex" and (torch.compiler.is_compiling() or not is_intercepted())):
        return choose.DIFFERENTIABLE[engine].attend(call)
    if has_tangent(*call.operands):
        if engine == "cpu":
            raise no_forward_mode()
        return choose.DIFFERENTIABLE[engine].attend(call)
    if is_intercepted() or is_transformed() or not all(map(is_plain_tensor, call.operands)):
        return operators.run(call, engine)
    if is_autocast_outside:  # then autocast may be on in the backward pass, too
        return record(call, engine)
    if engine != "cpu":
        return choose.DIFFERENTIABLE[engine].attend(call)
    if is_recorded(*call.operands):
        return record(call, engine)
    return cpu.forward(call)


def record(call: Call, engine: str) -> tuple[Tensor, Tensor | None]:
    """Compute the call by an engine, recorded for autograd."""
    options = call.options
    if options.softmax and not options.wants_lse:  # the backward pass reads the lse
        options = _with_lse(options)
    return cast(tuple[Tensor, Tensor | None], Attention.apply(options, engine, *call.tensors))


@lru_cache(maxsize=64)
def _with_lse(options: Options) -> Options:
    return replace(options, wants_lse=True)


class Attention(torch.autograd.Function):
    """The output and lse of the call with these options and `Call.tensors`."""

    @staticmethod
    def forward(ctx: Any, options: Options, engine: str, *tensors: Tensor | None) -> tuple[Tensor, Tensor | None]:
        output, lse = gradients.forward(engine, Call.of(tensors, options))
        ctx.options, ctx.engine = options, engine
        # All tensors go through save_for_backward: it notices changes in place, and checkpointing hooks see them.
        ctx.save_for_backward(*tensors, output, lse)
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> Gradients:
        *tensors, output, lse = ctx.saved_tensors
        absent = (None,) * (len(tensors) - 6)
        if grad_output is None and grad_lse is None:
            return None, None, *(None,) * 6, *absent
        grad_output = torch.zeros_like(output) if grad_output is None else grad_output.resolve_neg()
        grad_lse = None if grad_lse is None else grad_lse.resolve_neg()
        call, needs = Call.of(tensors, ctx.options), ctx.needs_input_grad[2:8]
        return None, None, *backward(ctx.engine, call, output, lse, grad_output, grad_lse, needs), *absent


def backward(
    engine: str,
    call: Call,
    output: Tensor,
    lse: Tensor | None,
    grad_output: Tensor,
    grad_lse: Tensor | None,
    needs: Sequence[bool],
) -> Gradients:
    """Return the six gradients of a call, recorded where gradients are."""
    if is_transformed() or is_batch_of_gradients(grad_output) or is_batch_of_gradients(grad_lse):
        # Transforms know the operator; PyTorch runs it once per gradient of a batch.
        lse = call.query.new_empty(0) if lse is None else lse
        arguments = operators.flatten(call.tensors, call.options, engine)
        result = torch.ops.uwaga.backward(grad_output, grad_lse, output, lse, list(needs), *arguments)
        return tuple(x if needed else None for x, needed in zip(result, needs, strict=True))
    state = (grad_output, grad_lse, output, lse)
    if not torch.is_grad_enabled():
        return gradients.backward(engine, call, output, lse, grad_output, grad_lse, needs)
    return cast(Gradients, AttentionBackward.apply(call.options, engine, needs, *state, *call.tensors))


class AttentionBackward(torch.autograd.Function):
    """The backward pass of Attention as something to differentiate once more."""

    @staticmethod
    def forward(
        ctx: Any,
        options: Options,
        engine: str,
        needs: Sequence[bool],
        grad_output: Tensor,
        grad_lse: Tensor | None,
        output: Tensor,
        lse: Tensor | None,
        *tensors: Tensor | None,
    ) -> Gradients:
        ctx.options, ctx.needs = options, needs
        ctx.save_for_backward(*tensors, grad_output, grad_lse)
        ctx.set_materialize_grads(False)
        return gradients.backward(engine, Call.of(tensors, options), output, lse, grad_output, grad_lse, needs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> Gradients:
        *tensors, grad_output, grad_lse = ctx.saved_tensors
        result = gradients.double_backward(Call.of(tensors, ctx.options), grad_output, grad_lse, cotangents, ctx.needs)
        return None, None, None, *result[6:], None, None, *result[:6], *(None,) * (len(tensors) - 6)
