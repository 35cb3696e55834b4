"""Linear maps that give a token the same bits among any others.

PyTorch's products of float32 matrices on the CPU are MKL's, which multiplies rows in fours and what is left over by another
kernel, in another order of sums; a few rows are shared out among threads in such leftovers. Rows of zeros complete the last
four. bfloat16 needs none; float64 and accelerators choose kernels by more than that, and are left as they are.

Letters: M and W widths.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

_FOUR = 4
# From here on a thread's share ends in whole fours, up to 32 threads.
_MANY = 256


def steady(linear: Callable[[Tensor], Tensor], x: Tensor, *, wanted: bool = True) -> Tensor:
    """`linear` of rows (..., M), (..., W). One row costs as much as four: `wanted` says whether it is worth that.

    >>> steady(torch.nn.Linear(3, 5), torch.ones(2, 3, 3)).shape
    torch.Size([2, 3, 5])
    """
    # First what costs a graph no guard on the number of rows.
    if not wanted or not _is_mkls(x):
        return linear(x)
    rows = x.numel() // max(x.shape[-1], 1)
    if rows >= _MANY or rows % _FOUR == 0:
        return linear(x)
    whole = functional.pad(x.reshape(rows, -1), (0, 0, 0, -rows % _FOUR))
    return linear(whole)[:rows].reshape(*x.shape[:-1], -1)


def _is_mkls(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.is_cpu and not torch.compiler.is_compiling()
