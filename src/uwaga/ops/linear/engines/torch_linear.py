"""torch.nn.functional.linear, whatever PyTorch computes it with; differentiable, for any dtype, device and tensor class.

PyTorch's float32 matrix products on the CPU are MKL's. On AMD's processors it processes rows in blocks of four and the remaining rows
by another kernel with another order of summation; with few rows, each thread's share of them may end in such a remainder. Rows of
zeros fill up the last block there, so that a token gives the same bits whatever other tokens are in the batch. One row then takes twice
the time. Other processors compute the rows alone: on Intel's, MKL chooses among more kernels, and elsewhere it was not shown that padding
suffices (`has_batch_invariant_rows` in choose.py). bfloat16 needs no padding; float64 and accelerators choose kernels by more than the
number of rows.

Letters: M width of the input, W width of the output.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from uwaga._base import processor
from uwaga._base.tracing import is_tracing
from uwaga.ops.activations import ACTIVATIONS

_BLOCK = 4  # rows that MKL's kernel takes at once
# From here on each thread's share is a whole number of blocks, up to 32 threads.
_MANY_ROWS = 256


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
) -> Tensor:
    """Compute residual + f(x W^T + b), (..., W)."""
    if needs_padding(x):
        mapped = with_padding(lambda rows: functional.linear(rows, weight, bias), x)
    else:
        mapped = functional.linear(x, weight, bias)
    if activation is not None:
        mapped = ACTIVATIONS[activation](mapped)
    return mapped if residual is None else residual + mapped


def needs_padding(x: Tensor) -> bool:
    """Return whether padding makes the bits of a row of F.linear independent of the number of rows of x, (..., M)."""
    # The dtype and the device are tested first: they cost a graph no guard on the number of rows.
    if x.dtype != torch.float32 or not x.is_cpu or torch.compiler.is_compiling() or is_tracing():
        return False
    rows = _rows(x)
    return rows < _MANY_ROWS and rows % _BLOCK != 0 and processor.detect().vendor == "AMD"


def with_padding(linear: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Compute `linear` of rows (..., M): (..., W), with rows of zeros behind them up to a whole block."""
    rows = _rows(x)
    padded = functional.pad(x.reshape(rows, -1), (0, 0, 0, -rows % _BLOCK))
    return linear(padded)[:rows].reshape(*x.shape[:-1], -1)


def _rows(x: Tensor) -> int:
    return x.numel() // max(x.shape[-1], 1)
