"""Whether this is plain eager execution: real tensors, whose values may be read and whose operators need no dispatch."""

import torch
from torch import Tensor
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)


def is_eager() -> bool:
    """False under torch.compile and export, inside torch.func transforms, and under any dispatch mode."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
    )


def is_plain(tensor: Tensor | None) -> bool:
    """Whether this is no tensor, or one of torch's own type: a subclass has operators of its own."""
    return tensor is None or type(tensor) in _PLAIN


def is_readable(tensor: Tensor) -> bool:
    """Whether reading the values costs no synchronisation and breaks no graph: a plain CPU tensor in eager mode."""
    return is_eager() and is_plain(tensor) and tensor.device.type == "cpu"
