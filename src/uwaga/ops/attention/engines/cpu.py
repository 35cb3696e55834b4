"""The native kernels: a Call is packed as C structs and passed to the library."""

import torch
from torch import Tensor

from uwaga._base import native
from uwaga.ops.attention.call import Call, new_lse, new_output
from uwaga.ops.attention.native_structs import (
    DTYPES,
    FORWARD_RESULT,
    MAX_OPERATIONS,
    MAX_WIDTH,
    problem,
    row_fields,
    run,
    run_backward,
    tensor_fields,
)

_LARGEST, _SMALLEST = torch.finfo(torch.float32).max, torch.finfo(torch.float32).smallest_normal


def refusal(call: Call) -> str | None:
    """Return why this engine cannot serve the call, or None."""
    query = call.query
    if query.device.type != "cpu":
        return f"its kernels run on the CPU, and the tensors are on {query.device}"
    if query.dtype not in DTYPES:
        return f"it computes float32, bfloat16 and float16, not {str(query.dtype).removeprefix('torch.')}"
    if not (query.shape[1] > 0 and 0 < query.shape[3] <= MAX_WIDTH and 0 < call.value.shape[3] <= MAX_WIDTH):
        return f"it needs at least one head, and head widths from 1 to {MAX_WIDTH}"
    if abs(call.options.scale) > _LARGEST or 0.0 < call.options.softcap < _SMALLEST or call.options.softcap > _LARGEST:
        return "it computes in float32, where this scale or softcap is infinite or zero"
    if call.bias is not None and call.bias.dtype not in DTYPES:
        return f"it reads biases of float32, bfloat16 and float16, not {str(call.bias.dtype).removeprefix('torch.')}"
    if len(call.options.mask_program) > MAX_OPERATIONS:
        return f"a mask has more than {MAX_OPERATIONS} parts"
    return native.reason_unavailable()


def forward(call: Call) -> tuple[Tensor, Tensor | None]:
    output = new_output(call)
    lse = new_lse(call) if call.options.wants_lse else None
    run("uwaga_forward", call, FORWARD_RESULT.pack(*tensor_fields(output), *row_fields(lse)))
    return output, lse


def backward(
    call: Call,
    output: Tensor,
    lse: Tensor | None,
    grad_output: Tensor,
    grad_lse: Tensor | None,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    grads = _new_gradients(call, needs)
    packed, alive = problem(call)
    run_backward(packed, output, lse, grad_output, grad_lse, *grads)
    del alive
    return grads


def _new_gradients(call: Call, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Return uninitialised gradients; those that the kernels add to start at zero."""
    query, key, value, relative, bias, sinks = needs
    scores = (call.sequences, call.query.shape[1], call.options.max_queries, call.options.max_keys)
    return (
        torch.empty_like(call.query) if query else None,
        torch.empty_like(call.key) if key else None,
        torch.empty_like(call.value) if value else None,
        torch.zeros_like(call.relative) if relative and call.relative is not None else None,
        torch.zeros(scores, dtype=torch.float32) if bias else None,
        torch.zeros_like(call.sinks) if sinks and call.sinks is not None else None,
    )
