"""Who looks on while this runs: nobody (plain eager mode), torch.func, or a tracer such as torch.compile."""

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)

_modes = torch._C._len_torch_dispatch_stack
_jit_trace = torch._C._get_tracing_state
_transforms = torch._C._are_functorch_transforms_active


def is_traced() -> bool:
    """Under torch.compile or export, any dispatch mode (fake tensors, make_fx, flop counters), or torch.jit.trace."""
    return torch.compiler.is_compiling() or _modes() > 0 or _jit_trace() is not None


def is_transformed() -> bool:
    """Inside torch.func's vmap, grad and their relatives."""
    return _transforms()


def is_in_forward_mode() -> bool:
    """Inside torch.autograd.forward_ad.dual_level: a tensor may carry a tangent."""
    return forward_ad._current_level >= 0


def is_watched() -> bool:
    """Whether anybody but autograd looks on."""
    return is_traced() or is_transformed() or is_in_forward_mode()


def is_plain(tensor: Tensor | None) -> bool:
    """Whether this is no tensor, or one of torch's own type: a subclass has operators of its own."""
    return tensor is None or type(tensor) in _PLAIN


def is_readable(tensor: Tensor) -> bool:
    """Whether reading the values costs no synchronisation and breaks no graph: a plain CPU tensor, and nobody looks on."""
    return is_plain(tensor) and tensor.device.type == "cpu" and not is_traced() and not is_transformed()
