"""Gradients of opaque engines in eager mode, and torch.func over them.

These functions do what the registered operators in operators.py do, without the dispatcher: an operator with autograd costs
0.2 ms a call, more than the kernels need for a short batch, and torch.func does not differentiate operators at all.
"""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from uwaga._base.tracing import is_batch_of_gradients, is_transformed
from uwaga.ops.attention import gradients, operators, vmap
from uwaga.ops.attention.call import Call, Options, no_forward_mode


def run(call: Call, engine: str) -> tuple[Tensor, Tensor | None]:
    """The call by an engine, recorded for autograd and torch.func."""
    options = call.options
    if options.softmax and not options.wants_lse:  # the backward pass reads the lse
        options = _with_lse(options)
    function = TransformedAttention if is_transformed() else Attention
    return function.apply(options, engine, *call.tensors)


@lru_cache(maxsize=64)
def _with_lse(options: Options) -> Options:
    return replace(options, wants_lse=True)


class Attention(torch.autograd.Function):
    """The output and lse of the call with these options and `Call.tensors`."""

    @staticmethod
    def forward(ctx, options: Options, engine: str, *tensors: Tensor | None):
        output, lse = gradients.forward(engine, Call.of(tensors, options))
        _save(ctx, options, engine, tensors, output, lse)
        return output, lse

    @staticmethod
    def backward(ctx, grad_output: Tensor | None, grad_lse: Tensor | None):
        return _backward(ctx, grad_output, grad_lse, create_graph=torch.is_grad_enabled())


class TransformedAttention(torch.autograd.Function):
    """The same in the form that torch.func asks for; to bind its arguments costs PyTorch 50 us a call."""

    @staticmethod
    def forward(options: Options, engine: str, *tensors: Tensor | None):
        return gradients.forward(engine, Call.of(tensors, options))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        options, engine, *tensors = inputs
        _save(ctx, options, engine, tensors, *output)

    @staticmethod
    def backward(ctx, grad_output: Tensor | None, grad_lse: Tensor | None):
        return _backward(ctx, grad_output, grad_lse, create_graph=True)

    @staticmethod
    def jvp(ctx, *tangents):
        raise no_forward_mode()

    @staticmethod
    def vmap(info, in_dims, options: Options, engine: str, *tensors: Tensor | None):
        size, batch = info.batch_size, vmap.batch_of(in_dims[2:], tensors)
        folded = vmap.fold(size, in_dims[2:], tensors, options)
        return vmap.unfold(size, batch, TransformedAttention.apply(options, engine, *folded))


def _save(ctx, options: Options, engine: str, tensors, output: Tensor, lse: Tensor | None) -> None:
    ctx.options, ctx.engine = options, engine
    # All tensors go through save_for_backward: it notices changes in place, and checkpointing hooks see them.
    ctx.save_for_backward(*tensors, output, lse)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_output: Tensor | None, grad_lse: Tensor | None, *, create_graph: bool):
    *tensors, output, lse = ctx.saved_tensors
    absent = (None,) * (len(tensors) - 6)
    if grad_output is None and grad_lse is None:
        return None, None, *(None,) * 6, *absent
    grad_output = torch.zeros_like(output) if grad_output is None else grad_output.resolve_neg()
    grad_lse = None if grad_lse is None else grad_lse.resolve_neg()
    needs = ctx.needs_input_grad[2:8]
    if create_graph:
        state = (grad_output, grad_lse, output, lse)
        found = AttentionBackward.apply(ctx.options, ctx.engine, needs, *state, *tensors)
    else:
        call = Call.of(tensors, ctx.options)
        found = _gradients(ctx.engine, call, output, lse, grad_output, grad_lse, needs)
    return None, None, *found, *absent


def _gradients(engine: str, call: Call, output, lse, grad_output, grad_lse, needs) -> gradients.Gradients:
    if not (is_batch_of_gradients(grad_output) or is_batch_of_gradients(grad_lse)):
        return gradients.backward(engine, call, output, lse, grad_output, grad_lse, needs)
    # PyTorch runs an operator once per gradient of the batch.
    lse = call.query.new_empty(0) if lse is None else lse
    arguments = operators.flatten(call.tensors, call.options, engine)
    found = torch.ops.uwaga.backward(grad_output, grad_lse, output, lse, list(needs), *arguments)
    return tuple(x if needed else None for x, needed in zip(found, needs, strict=True))


class AttentionBackward(torch.autograd.Function):
    """The backward pass of Attention as something to differentiate once more."""

    @staticmethod
    def forward(options, engine, needs, grad_output, grad_lse, output, lse, *tensors):
        return _gradients(engine, Call.of(tensors, options), output, lse, grad_output, grad_lse, needs)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.options, _, ctx.needs, grad_output, grad_lse, _, _, *tensors = inputs
        ctx.save_for_backward(*tensors, grad_output, grad_lse)
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx, *cotangents: Tensor | None):
        if is_transformed():
            raise NotImplementedError(
                "attention: torch.func gives first derivatives only; torch.autograd.grad with create_graph gives second ones"
            )
        *tensors, grad_output, grad_lse = ctx.saved_tensors
        found = gradients.double_backward(Call.of(tensors, ctx.options), grad_output, grad_lse, cotangents, ctx.needs)
        return None, None, None, *found[6:], None, None, *found[:6], *(None,) * (len(tensors) - 6)

    @staticmethod
    def vmap(info, in_dims, options, engine, needs, *tensors):
        size, batch = info.batch_size, vmap.batch_of(in_dims[7:], tensors[4:])
        state = vmap.lead_all(size, batch, in_dims[3:7], tensors[:4])
        folded = vmap.fold(size, in_dims[7:], tensors[4:], options, needs)
        found = AttentionBackward.apply(options, engine, needs, *state, *folded)
        return vmap.unfold_gradients(size, batch, in_dims[7:], tensors[4:], found)
