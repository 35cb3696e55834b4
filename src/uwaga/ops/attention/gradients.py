"""Forward, backward and double backward of one call by any engine: what the eager functions and the registered
operators share.

Letters as in call.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from uwaga._base.tracing import without_autocast
from uwaga.ops.attention import choose, reference
from uwaga.ops.attention.call import DIFFERENTIABLE, Attend, Call, Gradients
from uwaga.ops.attention.engines import cpu

# The dispatch key under which autograd records what a kind of device computes.
_AUTOGRAD = {"cuda": torch._C.DispatchKey.AutogradCUDA, "xpu": torch._C.DispatchKey.AutogradXPU}


def forward(engine: str, call: Call) -> tuple[Tensor, Tensor | None]:
    """Return the output and the lse of the call, computed by the named engine."""
    if engine in choose.DIFFERENTIABLE:
        return choose.DIFFERENTIABLE[engine].attend(call)
    return cpu.forward(call)


def backward(
    engine: str,
    call: Call,
    output: Tensor,
    lse: Tensor | None,
    grad_output: Tensor,
    grad_lse: Tensor | None,
    needs: Sequence[bool],
) -> Gradients:
    """Return the six gradients, each with the shape and dtype of its operand, None where not needed."""
    if engine in choose.DIFFERENTIABLE:
        return _differentiate(choose.DIFFERENTIABLE[engine].attend, call, grad_output, grad_lse, needs)
    gradients = cpu.backward(call, output, lse, grad_output, grad_lse, tuple(needs))
    return tuple(
        _like(operand, gradient) if needed else None
        for operand, gradient, needed in zip(call.operands, gradients, needs, strict=True)
    )


def double_backward(
    call: Call, grad_output: Tensor, grad_lse: Tensor | None, cotangents: Gradients, needs: Sequence[bool]
) -> Gradients:
    """Return gradients of the backward pass's results, weighted by `cotangents`, to the six operands, grad_output and grad_lse.

    It differentiates the reference: second derivatives are rarely needed, and correctness counts more than speed there.
    """
    with _recording(call.query.device):
        grad_output, grad_lse = grad_output.detach().requires_grad_(), _leaf(grad_lse, True)
        inputs = [*(_leaf(x, True) for x in call.operands), grad_output, grad_lse]
        repeated = with_operands(call, inputs[:6])
        first = _differentiate(reference.attend, repeated, grad_output, grad_lse, needs, create_graph=True)
        pairs = [(x, y) for x, y in zip(first, cotangents, strict=True) if x is not None and y is not None]
        return _grad([x for x, _ in pairs], [y for _, y in pairs], inputs, [x is not None for x in inputs])


def _differentiate(
    attend: Attend,
    call: Call,
    grad_output: Tensor,
    grad_lse: Tensor | None,
    needs: Sequence[bool],
    create_graph: bool = False,
) -> Gradients:
    with _recording(call.query.device):
        # Within a double backward the operands are leaves already, and a detached copy would cut the graph.
        inputs = call.operands
        if not create_graph:
            inputs = tuple(_leaf(x, needed) for x, needed in zip(inputs, needs, strict=True))
        output, lse = attend(with_operands(call, inputs))
        outputs, weights = [output], [grad_output]
        if grad_lse is not None:
            assert lse is not None
            outputs.append(lse)
            weights.append(grad_lse)
        return _grad(outputs, weights, inputs, needs, create_graph)


def with_operands(call: Call, operands: Sequence[Tensor | None]) -> Call:
    """Return the call with other operands, in the order of DIFFERENTIABLE."""
    return Call.of((*operands, *call.tensors[len(DIFFERENTIABLE) :]), call.options)


def _grad(
    outputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    inputs: Sequence[Tensor | None],
    needs: Sequence[bool],
    create_graph: bool = False,
) -> Gradients:
    """Compute torch.autograd.grad for the needed inputs; zeros where no output depends on one, None where not needed."""
    needed_inputs = [x for x, needed in zip(inputs, needs, strict=True) if needed and x is not None]
    result = iter(grad_or_zeros(outputs, needed_inputs, weights, create_graph))
    return tuple(next(result) if needed and x is not None else None for x, needed in zip(inputs, needs, strict=True))


def grad_or_zeros(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor], create_graph: bool = False
) -> Sequence[Tensor]:
    """Compute torch.autograd.grad of the outputs that have a graph; zeros where no output depends on an input."""
    live = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
    if not live or not inputs:
        return [torch.zeros_like(x) for x in inputs]
    ys, gs = zip(*live, strict=True)
    return torch.autograd.grad(ys, inputs, gs, create_graph=create_graph, allow_unused=True, materialize_grads=True)


@contextmanager
def _recording(device: torch.device) -> Iterator[None]:
    """Autograd without autocast, also inside an operator's kernel: there the dispatcher leaves autograd out, and without
    this guard all gradients would be zeros."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    excluded = excluded - torch._C.DispatchKeySet(_AUTOGRAD.get(device.type, torch._C.DispatchKey.AutogradCPU))
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad(), without_autocast(device):
        yield


def _leaf(tensor: Tensor | None, needs_grad: bool) -> Tensor | None:
    return None if tensor is None else tensor.detach().requires_grad_(needs_grad)


def _like(operand: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if operand is None:
        return None
    assert gradient is not None
    if gradient.shape != operand.shape:
        gradient = gradient.sum_to_size(operand.shape)
    return gradient if gradient.dtype == operand.dtype else gradient.to(operand.dtype)
