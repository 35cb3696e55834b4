"""Which tracers, transforms or dispatch modes are active: torch.compile, export, make_fx, torch.func, forward mode, autocast.

In plain eager mode none is, and an operation may read values, write into memory and keep results.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)
_P = ParamSpec("_P")
_R = TypeVar("_R")

_modes = torch._C._len_torch_dispatch_stack
_mode = torch._C._get_dispatch_mode
_Mode = torch._C._TorchDispatchModeKey
# Modes whose tensors have no values yet; other modes, such as flop counters, run on real tensors.
_TRACERS = (_Mode.PROXY, _Mode.FAKE, _Mode.FUNCTIONAL)
_is_included = torch._C._dispatch_tls_is_dispatch_key_included
_BEFORE_AUTOGRAD = torch._C.DispatchKey.PreDispatch  # active under make_fx and export with pre_dispatch=True
_jit_trace = torch._C._get_tracing_state
_transforms = torch._C._are_functorch_transforms_active
_is_legacy_batched = torch._C._functorch.is_legacy_batchedtensor


def constant(function: Callable[..., _R]) -> "functools._lru_cache_wrapper[_R]":
    """Cache a function, and let torch.compile take its results as constants, without tracing the function or its cache.

    torch.compiler.assume_constant_result has no cache, and imports the compiler, which takes seconds.
    """
    cached = functools.cache(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> _R:
        return cached(*arguments)

    vars(call).update(_dynamo_marked_constant=True, cache_clear=cached.cache_clear)
    return cast("functools._lru_cache_wrapper[_R]", call)


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let torch.compile call a function between two graphs, and not trace it.

    torch.compiler.disable as a decorator would import the compiler, which takes seconds, in every program.
    """

    @functools.wraps(function)
    def call(*arguments: _P.args, **options: _P.kwargs) -> _R:
        if torch.compiler.is_dynamo_compiling():
            return torch.compiler.disable(function)(*arguments, **options)
        return function(*arguments, **options)

    return call


def is_intercepted() -> bool:
    """Return whether calls of operators are intercepted: by torch.compile, export, torch.jit.trace, or a dispatch mode (fake tensors,
    make_fx, flop counters)."""
    return torch.compiler.is_compiling() or _modes() > 0 or _jit_trace() is not None or _is_included(_BEFORE_AUTOGRAD)


def is_tracing() -> bool:
    """Return whether PyTorch's operators are recorded into a graph: by torch.jit.trace, make_fx, export or fake tensors.

    What a native kernel writes into memory would be missing in the graph. torch.compile does not count: it breaks its graph at
    a kernel. Nor do other dispatch modes, such as flop counters, under which real tensors are computed.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    if _jit_trace() is not None or _is_included(_BEFORE_AUTOGRAD):
        return True
    return _modes() > 0 and any(_mode(key) is not None for key in _TRACERS)


def is_transformed() -> bool:
    """Return whether a transform of torch.func, such as vmap or grad, is active."""
    return _transforms()


def is_batch_of_gradients(gradient: Tensor | None) -> bool:
    """Return whether a gradient is a batch of gradients, of torch.autograd.grad(..., is_grads_batched=True), which
    torch.autograd.functional uses with vectorize=True. It is not a transform of torch.func."""
    return gradient is not None and _is_legacy_batched(gradient)


def is_in_forward_mode() -> bool:
    """Return whether torch.autograd.forward_ad.dual_level is active: a tensor may carry a tangent."""
    return forward_ad._current_level >= 0


def has_tangent(*tensors: Tensor | None) -> bool:
    """Return whether one of the tensors has a tangent of forward-mode differentiation."""
    return is_in_forward_mode() and any(
        x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors
    )


def is_plain_eager() -> bool:
    """Return whether nothing but autograd is active: no tracer, compiler, dispatch mode, torch.func transform or forward mode."""
    return not (is_intercepted() or is_transformed() or is_in_forward_mode())


def is_plain_tensor(tensor: Tensor | None) -> bool:
    """Return whether it is a torch.Tensor or Parameter and not of a subclass, which may override operators; None counts as plain."""
    return tensor is None or type(tensor) in _PLAIN


def is_readable(tensor: Tensor) -> bool:
    """Return whether Python may read the values: a plain CPU tensor, outside compilers, tracers and transforms. Reading then needs no
    synchronisation and breaks no graph."""
    return (
        is_plain_tensor(tensor)
        and tensor.device.type == "cpu"
        and not (torch.compiler.is_compiling() or is_tracing() or is_transformed())
    )


def may_branch_on(tensor: Tensor) -> bool:
    """Return whether Python code may branch on the values: the tensor has values, and no tracer or transform is active."""
    return is_plain_tensor(tensor) and not tensor.is_meta and not is_transformed() and not is_tracing()


def is_recorded(*tensors: Tensor | None) -> bool:
    """Return whether autograd records an operation on these tensors."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def check_in_graph(read: Tensor, holds: Callable[[], Tensor], message: str) -> None:
    """Record a check of a CPU tensor inside torch.compile and export, where `is_readable` is false.

    The compiled program raises RuntimeError with this message. A tensor on an accelerator is not checked: after a failed check there, the
    process could not use the device any more."""
    if torch.compiler.is_compiling() and read.device.type == "cpu":
        torch._assert_async(holds(), message)


def is_autocast(device: str) -> bool:
    """Return whether autocast changes what is computed on this kind of device."""
    if not torch._C._is_any_autocast_enabled():  # asking for one kind of device costs ten times as much
        return False
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Open a context with matrix products in the dtype of their operands, also under torch.autocast."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device.type) else nullcontext()
