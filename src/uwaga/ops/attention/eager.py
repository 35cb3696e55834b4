"""Gradients of the native engine in plain eager mode.

These two functions do what the registered operators in schema.py do, without the dispatcher: an operator with autograd
costs 0.2 ms a call, more than the kernels need for a short batch.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from uwaga.ops.attention import gradients
from uwaga.ops.attention.spec import Call


class Attention(torch.autograd.Function):
    """The output and lse of a call; only the first six arguments are differentiable, and `call` holds them too."""

    @staticmethod
    def forward(ctx, query, key, value, relative, bias, sinks, call: Call, engine: str):
        output, lse = gradients.forward(engine, call)
        # All tensors go through save_for_backward: it notices changes in place, and checkpointing hooks see them.
        ctx.save_for_backward(*_tensors(call), output, lse)
        ctx.options, ctx.engine = call.options, engine
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx, grad_output: Tensor | None, grad_lse: Tensor | None):
        if grad_output is None and grad_lse is None:
            return (None,) * 8
        *tensors, output, lse = ctx.saved_tensors
        call = _call(tensors, ctx.options)
        needs = ctx.needs_input_grad[:6]
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        if torch.is_grad_enabled():  # create_graph=True
            found = AttentionBackward.apply(
                grad_output, grad_lse, *gradients.operands(call), call, ctx.engine, output, lse, needs
            )
        else:
            found = gradients.backward(ctx.engine, call, output, lse, grad_output, grad_lse, needs)
        return (*found, None, None)


class AttentionBackward(torch.autograd.Function):
    """The backward pass of Attention as something to differentiate once more."""

    @staticmethod
    def forward(ctx, grad_output, grad_lse, query, key, value, relative, bias, sinks, call, engine, output, lse, needs):
        ctx.save_for_backward(*_tensors(call), grad_output, grad_lse)
        ctx.options, ctx.needs = call.options, needs
        ctx.set_materialize_grads(False)
        return gradients.backward(engine, call, output, lse, grad_output, grad_lse, needs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *cotangents: Tensor | None):
        *tensors, grad_output, grad_lse = ctx.saved_tensors
        call = _call(tensors, ctx.options)
        *found, of_grad_output, of_grad_lse = gradients.double_backward(
            call, grad_output, grad_lse, cotangents, ctx.needs
        )
        return (of_grad_output, of_grad_lse, *found, None, None, None, None, None)


def run(call: Call, engine: str) -> tuple[Tensor, Tensor | None]:
    """The call by an engine of opaque kernels, recorded for autograd where an operand asks for it."""
    inputs = gradients.operands(call)
    if not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)):
        return gradients.forward(engine, call)
    if call.options.softmax and not call.options.wants_lse:  # the backward pass reads the lse
        call = replace(call, options=replace(call.options, wants_lse=True))
    return Attention.apply(*inputs, call, engine)


def _tensors(call: Call) -> tuple[Tensor | None, ...]:
    others = (call.query_offsets, call.key_offsets, call.relative_starts, call.seed)
    return (*gradients.operands(call), *others, *call.mask_tensors)


def _call(tensors: Sequence[Tensor | None], options) -> Call:
    query, key, value, relative, bias, sinks, query_offsets, key_offsets, relative_starts, seed, *masks = tensors
    return Call(
        query=query,
        key=key,
        value=value,
        relative=relative,
        bias=bias,
        sinks=sinks,
        query_offsets=query_offsets,
        key_offsets=key_offsets,
        relative_starts=relative_starts,
        seed=seed,
        mask_tensors=tuple(masks),
        options=options,
    )
