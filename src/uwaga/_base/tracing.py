"""Who looks on while this runs: nobody (plain eager mode), torch.func, or a tracer such as torch.compile."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)

_modes = torch._C._len_torch_dispatch_stack
_mode = torch._C._get_dispatch_mode
_Mode = torch._C._TorchDispatchModeKey
# Modes under which tensors stand for values that nobody knows yet; others, such as flop counters, only look on.
_TRACERS = (_Mode.PROXY, _Mode.FAKE, _Mode.FUNCTIONAL)
_is_included = torch._C._dispatch_tls_is_dispatch_key_included
_BEFORE_AUTOGRAD = torch._C.DispatchKey.PreDispatch  # where make_fx and export stand with pre_dispatch=True
_jit_trace = torch._C._get_tracing_state
_transforms = torch._C._are_functorch_transforms_active
_levels = torch._C._functorch.get_interpreter_stack
_is_legacy_batched = torch._C._functorch.is_legacy_batchedtensor
Transform = torch._C._functorch.TransformType


def is_intercepted() -> bool:
    """Under torch.compile or export, any dispatch mode (fake tensors, make_fx, flop counters), or torch.jit.trace."""
    return torch.compiler.is_compiling() or _modes() > 0 or _jit_trace() is not None or _is_included(_BEFORE_AUTOGRAD)


def is_tracing() -> bool:
    """Whether PyTorch's operations are written down, to be run again: torch.jit.trace, make_fx, export, fake tensors.

    What a kernel writes into memory is missing there. torch.compile is not meant: it breaks its graph at a kernel. Nor are
    other dispatch modes, such as flop counters, which look on while real tensors are computed.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    if _jit_trace() is not None or _is_included(_BEFORE_AUTOGRAD):
        return True
    return _modes() > 0 and any(_mode(key) is not None for key in _TRACERS)


def is_transformed() -> bool:
    """Inside torch.func's vmap, grad and their relatives."""
    return _transforms()


def transforms() -> tuple[Transform, ...]:
    """The kinds of torch.func's transforms that are active, from the outermost to the innermost."""
    return tuple(level.key() for level in _levels()) if is_transformed() else ()


def is_batch_of_gradients(gradient: Tensor | None) -> bool:
    """Whether a backward pass stands for many at once: torch.autograd.grad(..., is_grads_batched=True), which
    torch.autograd.functional calls with vectorize=True. It is no transform of torch.func."""
    return gradient is not None and _is_legacy_batched(gradient)


def is_in_forward_mode() -> bool:
    """Inside torch.autograd.forward_ad.dual_level: a tensor may carry a tangent."""
    return forward_ad._current_level >= 0


def has_tangent(*tensors: Tensor | None) -> bool:
    """Whether forward-mode differentiation, here and now, follows one of them."""
    return is_in_forward_mode() and any(
        x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors
    )


def is_plain_eager() -> bool:
    """Whether nothing but autograd is active: no tracer, compiler, dispatch mode, torch.func transform or forward mode."""
    return not (is_intercepted() or is_transformed() or is_in_forward_mode())


def is_plain_tensor(tensor: Tensor | None) -> bool:
    """Whether this is no tensor, or one of torch's own type: a subclass has operators of its own."""
    return tensor is None or type(tensor) in _PLAIN


def is_readable(tensor: Tensor) -> bool:
    """Whether reading the values costs no synchronisation and breaks no graph: a plain CPU tensor that stands for itself."""
    return (
        is_plain_tensor(tensor)
        and tensor.device.type == "cpu"
        and not (torch.compiler.is_compiling() or is_tracing() or is_transformed())
    )


def is_autocast(device: str) -> bool:
    """Whether autocast changes what is computed on this kind of device."""
    if not torch._C._is_any_autocast_enabled():  # asking for one kind of device costs ten times as much
        return False
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Matrix products in the dtype of their operands, also under torch.autocast."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device.type) else nullcontext()
