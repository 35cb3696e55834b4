"""What the native functions on rows of numbers (activations, norms, dropout, embeddings) share: which tensors they serve, and how
a tensor is passed to them.

Letters: N rows, M numbers of a row.
"""

import torch
from torch import Tensor

from uwaga._base import native
from uwaga._base.tracing import is_autocast, is_plain_eager, is_plain_tensor
from uwaga.ops.attention.native_structs import DTYPES

NO_TENSOR = (0, 0, 0, 0, 0, 0, 0, 0)


def is_native(*tensors: Tensor | None) -> bool:
    """Return whether the native kernels compute with these tensors: in plain eager mode without autocast, on the CPU, all of one dtype
    that they read. Elsewhere PyTorch's operators do, which every tracer and transform knows."""
    if not is_plain_eager() or is_autocast("cpu"):
        return False
    dtype = None
    for x in tensors:
        if x is None:
            continue
        if not (x.is_cpu and is_plain_tensor(x) and x.layout is torch.strided) or x.is_neg():
            return False
        if dtype is None:
            dtype = x.dtype
        elif x.dtype is not dtype:
            return False
    return dtype in DTYPES and native.reason_unavailable() is None


def is_native_index(*indices: Tensor) -> bool:
    """Return whether the native kernels read these indices: plain int64 tensors on the CPU."""
    return all(x.is_cpu and is_plain_tensor(x) and x.dtype is torch.int64 for x in indices)


def sizes(x: Tensor) -> tuple[int, int]:
    """Return N and M of a tensor (..., M); (1, 1) of a scalar."""
    width = x.shape[-1] if x.dim() else 1
    return x.numel() // max(width, 1), width


def fields(x: Tensor | None) -> tuple[int, ...]:
    """Return a uwaga_tensor of rows (N, M) from a contiguous tensor (..., M)."""
    return NO_TENSOR if x is None else strided(x, x.shape[-1] if x.dim() else 1)


def strided(x: Tensor, row: int, column: int = 1) -> tuple[int, ...]:
    """Return a uwaga_tensor of two dimensions from the first number of x on, with these strides; batch and head are not read."""
    size = x.untyped_storage().nbytes() - int(x.storage_offset()) * x.itemsize
    return x.data_ptr(), size, 0, 0, row, column, DTYPES[x.dtype], 0


def dense(x: Tensor) -> Tensor:
    """Return x contiguous, and with memory, which PyTorch's zero tensors lack."""
    return torch.zeros(x.shape, dtype=x.dtype) if x._is_zerotensor() else x.contiguous()
