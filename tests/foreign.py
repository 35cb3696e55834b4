"""Pretended foreign products whose rows depend on their number, as MKL's and oneDNN's do on some processors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_PRODUCTS: set[Callable[..., Any]] = {
    functional.linear, functional.scaled_dot_product_attention, torch.addmm, torch.baddbmm, torch.bmm, torch.einsum, torch.matmul, torch.mm,
    torch.mv, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.bmm, Tensor.matmul, Tensor.mm, Tensor.mv,
}  # fmt: skip


def drifting(product: Tensor) -> Tensor:
    """(..., rows, width) with an error of the size of rounding that depends on the number of all rows."""
    rows = product.numel() // max(product.shape[-1], 1)
    unit: float = torch.finfo(product.dtype).eps
    return product * (1 + unit * (1 + rows % 5))


class ForeignKernels(TorchFunctionMode):
    """A context in which PyTorch's products of this thread drift, and are counted by name."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        # float64 is none of the dtypes of the promise.
        if func not in _PRODUCTS or result.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return result
        self.called.append(func.__name__)
        return drifting(result)


class Drifting:
    """An engine of the linear map, as uwaga.ops.linear.choose describes them, that keeps no promise."""

    def __init__(self) -> None:
        self.calls = 0

    def refusal(self, *tensors: Tensor | None) -> str | None:
        return None

    def product(self, a: Tensor, b: Tensor, **more: Any) -> Tensor:
        self.calls += 1
        mapped = functional.linear(a, b, more.get("bias"))
        residual = more.get("residual")
        return drifting(mapped if residual is None else mapped + residual)
