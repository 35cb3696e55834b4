"""Batch-invariant linear maps: a token gives the same bits whatever other tokens are in the batch.

PyTorch's float32 matrix products on the CPU are MKL's, which processes rows in blocks of four and the remaining rows by another
kernel with another order of summation; with few rows, each thread's share of them may end in such a remainder. Rows of zeros fill
up the last block. bfloat16 needs no padding; float64 and accelerators choose kernels by more than the number of rows, and are
left as they are.

Letters: M width of the input, W width of the output.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

_BLOCK = 4  # rows that MKL's kernel takes at once
# From here on each thread's share is a whole number of blocks, up to 32 threads.
_MANY_ROWS = 256


def apply_linear(linear: Callable[[Tensor], Tensor], x: Tensor, *, batch_invariant: bool = True) -> Tensor:
    """`linear` of rows (..., M): (..., W). One row costs as much as four; batch_invariant=False avoids that and calls `linear` as
    it is.

    >>> apply_linear(torch.nn.Linear(3, 5), torch.ones(2, 3, 3)).shape
    torch.Size([2, 3, 5])
    """
    # The dtype and the device are tested first: they cost a graph no guard on the number of rows.
    if not batch_invariant or not _uses_mkl(x):
        return linear(x)
    rows = x.numel() // max(x.shape[-1], 1)
    if rows >= _MANY_ROWS or rows % _BLOCK == 0:
        return linear(x)
    padded = functional.pad(x.reshape(rows, -1), (0, 0, 0, -rows % _BLOCK))
    return linear(padded)[:rows].reshape(*x.shape[:-1], -1)


def _uses_mkl(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.is_cpu and not torch.compiler.is_compiling()
