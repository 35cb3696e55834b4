"""What the doors of PyTorch have in common."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from uwaga._base import native
from uwaga._base.tracing import Transform, has_tangent, is_autocast, is_plain_tensor, transforms


class Replacement:
    """A function in the place of one of PyTorch's.

    It has that one's names, which graphs of torch.fx and pickles refer to it by, and equals that one: a subclass of Tensor
    finds it in a table of overrides that was made of PyTorch's functions.
    """

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable, original: Callable, module: str) -> None:
        self.function, self.original, self.__doc__ = function, original, function.__doc__
        for named in (function, self):
            named.__module__, named.__name__, named.__qualname__ = module, original.__name__, original.__name__

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.function(*args, **options)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.original

    def __hash__(self) -> int:
        return hash(self.original)

    def __repr__(self) -> str:
        return f"<uwaga's {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> str:
        return self.__qualname__


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def serves(*tensors: Tensor) -> bool:
    """Whether the native engine can read these as they are."""
    return native.reason_unavailable() is None and all(
        is_plain_tensor(x)
        and x.device.type == "cpu"
        and x.dtype in _DTYPES
        and x.layout is torch.strided
        and not x.is_nested
        for x in tensors
    )


def is_differentiable(*tensors: Tensor) -> bool:
    """Whether the native engine has the derivatives that are asked for here: those of reverse mode, and under torch.func
    first ones only."""
    if has_tangent(*tensors):
        return False
    active = transforms()
    return {Transform.Vmap, Transform.Grad}.issuperset(active) and active.count(Transform.Grad) < 2


def is_mapped() -> bool:
    """Inside torch.func.vmap."""
    return Transform.Vmap in transforms()


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What autocast does to the arguments of PyTorch's own function."""
    device = tensors[0].device.type
    if not is_autocast(device):
        return tensors
    to = torch.get_autocast_dtype(device)
    return tuple(x.to(to) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)
