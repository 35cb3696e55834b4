"""What surrounds a pass over a map: tracers, transforms. None of them may change a number in silence."""

import torch
from torch import Tensor

from uwaga._base.tracing import is_plain_tensor, is_tracing, is_transformed

_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def need_lengths() -> None:
    """Raise NotImplementedError where a tracer would write down the lengths of ragged sequences as it saw them."""
    if is_tracing():
        raise NotImplementedError(
            "AttentionMap: no tracer can write down a ragged map, whose lengths are numbers for Python; trace dense maps, "
            "or the output of attend alone"
        )


def is_memory(tensor: Tensor | None) -> bool:
    """Whether this is no tensor, or a plain one whose memory a kernel can read."""
    if tensor is None or not is_plain_tensor(tensor) or torch.compiler.is_dynamo_compiling():
        return is_plain_tensor(tensor)
    # PyTorch's own zeros, as derivatives hold them, have no memory either.
    return not tensor._is_zerotensor() and not (is_transformed() and _is_wrapped(tensor))


def may_branch_on(tensor: Tensor) -> bool:
    """Whether Python may decide by the values: they are there, and are those of one call alone."""
    return is_plain_tensor(tensor) and not tensor.is_meta and not is_transformed() and not is_tracing()
