"""A plain call by the native kernels: carried out, and recorded for autograd. Letters as in spec.py."""

from dataclasses import replace

import torch
from torch import Tensor

from uwaga._base.tracing import is_batch_of_gradients, is_transformed
from uwaga.ops.attention import autograd
from uwaga.ops.attention.arguments import four, packed
from uwaga.ops.attention.call import Call
from uwaga.ops.attention.engines import cpu
from uwaga.ops.attention.layouts import Layout
from uwaga.ops.attention.native_structs import Frame


def forward(
    layout: Layout, dropout: float, seed: int, wants_lse: bool, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor | None]:
    output = q.new_empty_strided(*layout.output)
    lse = q.new_empty_strided(*layout.lse, dtype=torch.float32) if wants_lse else None
    cpu.run_forward(layout.frame.problem(q, k, v, dropout, seed), layout.result.result(output, lse))
    return output, lse


class PlainAttention(torch.autograd.Function):
    """A plain call recorded for autograd; autograd.Attention records all others."""

    @staticmethod
    def forward(
        ctx, layout: Layout, dropout: float, seed: int, gives_lse: bool, q: Tensor, k: Tensor, v: Tensor, *offsets
    ):
        output, lse = forward(layout, dropout, seed, layout.plan.options.softmax, q, k, v)
        ctx.call = layout, dropout, seed
        ctx.save_for_backward(q, k, v, output, lse, *offsets)
        if not gives_lse:
            return output
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx, grad_output: Tensor | None, grad_lse: Tensor | None = None):
        layout, dropout, seed = ctx.call
        q, k, v, output, lse, *offsets = ctx.saved_tensors
        absent = (None,) * len(offsets)
        if grad_output is None and grad_lse is None:
            return (None,) * (7 + len(offsets))
        grad_output = torch.zeros_like(output) if grad_output is None else grad_output.resolve_neg()
        grad_lse = None if grad_lse is None else grad_lse.resolve_neg()
        needs_q, needs_k, needs_v = ctx.needs_input_grad[4:7]
        is_batch = is_batch_of_gradients(grad_output) or is_batch_of_gradients(grad_lse)
        if torch.is_grad_enabled() or is_transformed() or is_batch:
            needs = (needs_q, needs_k, needs_v, False, False, False)
            call = _long_call(layout, dropout, seed, q, k, v, offsets)
            found = _differentiable_backward(call, needs, output, lse, grad_output, grad_lse)
            return None, None, None, None, *found, *absent
        frame, strides = layout.frame, (q.stride(), k.stride(), v.stride())
        if offsets or strides != layout.strides:  # hooks may have moved what was saved
            kept = tuple(offsets) or (None, None)
            frame = Frame.of(layout.plan.rule, layout.sizes, layout.tokens, kept, frame.dtype, strides)
        if (q.shape, k.shape, v.shape) != layout.shapes:  # hooks or `x.data = y` put others in their place
            found = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
            raise ValueError(
                f"attention: query, key and value were {layout.shapes} when the call began, and are {found}"
            )
        frame.check_dtypes(q, k, v)
        grad_q = torch.empty_like(q) if needs_q else None
        grad_k = torch.empty_like(k) if needs_k else None
        grad_v = torch.empty_like(v) if needs_v else None
        problem = frame.problem(q, k, v, dropout, seed)
        cpu.run_backward(problem, output, lse, grad_output, grad_lse, grad_q, grad_k, grad_v)
        return None, None, None, None, grad_q, grad_k, grad_v, *absent


# Function.apply itself would ask once more whether torch.func looks on, and cost as much as the rest.
record = super(torch.autograd.Function, PlainAttention).apply


def _long_call(
    layout: Layout, dropout: float, seed: int, q: Tensor, k: Tensor, v: Tensor, offsets: list[Tensor]
) -> Call:
    """The same call as the long way would have it."""
    canonical = packed if offsets else four
    query_offsets, key_offsets = offsets or (None, None)
    return Call(
        query=canonical(q),
        key=canonical(k),
        value=canonical(v),
        query_offsets=query_offsets,
        key_offsets=key_offsets,
        seed=torch.tensor(seed) if dropout else None,
        options=replace(
            layout.plan.options,
            dropout=dropout,
            max_queries=layout.sizes[3],
            max_keys=layout.sizes[4],
            wants_lse=layout.plan.options.softmax,
        ),
    )


def _differentiable_backward(call: Call, needs, output, lse, grad_output, grad_lse) -> list[Tensor | None]:
    """The gradients of query, key and value by the long way's backward pass, which can be differentiated once more."""
    if call.query_offsets is None:
        state = (grad_output, grad_lse, output, lse)
    else:
        rows = [None if x is None else x.t()[None] for x in (grad_lse, lse)]
        state = (packed(grad_output), rows[0], packed(output), rows[1])
    found = autograd.AttentionBackward.apply(call.options, "cpu", needs, *state, *call.tensors)[:3]
    if call.query_offsets is None:
        return list(found)
    return [None if x is None else x[0].transpose(0, 1) for x in found]
