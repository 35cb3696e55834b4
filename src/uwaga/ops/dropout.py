"""Dropout of hidden states (Srivastava et al. 2014) whose mask is a hash of (seed, row, column), as that of attention weights is.

Nothing is stored for the backward pass, which computes the mask again, and the work is shared by threads; PyTorch draws its mask
from one generator, number by number.

Letters: N rows, M width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from uwaga._base import native
from uwaga._base.native_layout import struct_of
from uwaga._base.tracing import is_batch_of_gradients
from uwaga.ops import rows
from uwaga.ops.attention.native_structs import DTYPES

ARGUMENTS = struct_of("uwaga_norm_args")
RESULT = struct_of("uwaga_norm_result")
_NO_NORM = 0  # UWAGA_NO_NORM
# SplitMix64 (reference.kept has all of it).
_LOW_64, _STEP = 2**64 - 1, 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


# The row of a longer batch that row 0 is, or None outside of `rows_from`.
_first_row: int | None = None


@contextmanager
def rows_from(first: int) -> Iterator[None]:
    """Open a context in which row n is dropped as row first + n of a longer batch would be, in all threads.

    PyTorch's dropout, which knows no rows, is rejected there (NotImplementedError)."""
    global _first_row
    before, _first_row = _first_row, first
    try:
        yield
    finally:
        _first_row = before


def draw_seed() -> int:
    """Return a seed from PyTorch's default generator, so that torch.manual_seed makes a call repeatable."""
    seed = int(torch.randint(2**63 - 1, (), device="cpu"))
    return _seed_of_later_rows(seed, _first_row) if _first_row else seed


def _seed_of_later_rows(seed: int, rows: int) -> int:
    """Return the seed by which row 0 is what row `rows` is by this one: the hash of row n is splitmix(splitmix(seed) + n), and splitmix can be
    inverted."""
    x = (seed + _STEP) & _LOW_64
    for shift, factor in _ROUNDS:
        x = ((x ^ x >> shift) * factor) & _LOW_64
    x = _unshifted(((x ^ x >> 31) + rows) & _LOW_64, 31)
    for shift, factor in reversed(_ROUNDS):
        x = _unshifted((x * pow(factor, -1, 2**64)) & _LOW_64, shift)
    return (x - _STEP) & _LOW_64


def _unshifted(x: int, shift: int) -> int:
    """Return the y for which x is y ^ y >> shift."""
    result = x
    while x := x >> shift:
        result ^= x
    return result


def dropout(x: Tensor, p: float) -> Tensor:
    """Set each number of x (..., M) to 0 with probability p, and multiply the others by 1 / (1 - p).

    The native kernels compute it where they can (`rows.is_native`), PyTorch's dropout elsewhere. The seed is drawn from PyTorch's
    default generator.

    Args:
        x: (..., M).
        p: the probability in [0, 1].

    Raises:
        ValueError: p is not in [0, 1].

    >>> bool(dropout(torch.ones(100, 100), 0.25).count_nonzero() > 7000)
    True
    """
    _check(p)
    if p in (0.0, 1.0) or not rows.is_native(x):
        return _by_pytorch(x, p)
    return _dropout(x, p, draw_seed())


def add_dropped(x: Tensor, added: Tensor, p: float) -> Tensor:
    """Compute x + dropout(added, p) in one pass over memory; both (..., M) of one shape. Arguments and errors as `dropout`."""
    _check(p)
    if p in (0.0, 1.0) or x.shape != added.shape or not rows.is_native(x, added):
        return x + _by_pytorch(added, p)
    seed = draw_seed()
    if torch.is_grad_enabled() and (x.requires_grad or added.requires_grad):
        return cast(Tensor, _AddDropped.apply(x, added, p, seed))
    return run(x, added, p, seed)


def _by_pytorch(x: Tensor, p: float) -> Tensor:
    if _first_row is not None and 0.0 < p < 1.0:
        raise NotImplementedError(
            "dropout: only the native kernels drop rows of a part of a batch; run on the CPU, without autocast, in float32, bfloat16 "
            "or float16"
        )
    return functional.dropout(x, p)


def _check(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout: the probability must lie in [0, 1], not {p}")


def run(x: Tensor | None, added: Tensor, p: float, seed: int) -> Tensor:
    """Compute x + dropout(added) by the native kernels; x None: zeros."""
    added = rows.dense(added)
    x = None if x is None else x.contiguous()
    total = torch.empty_like(added)
    if total.numel():
        packed = arguments(x, added, None, None, _NO_NORM, 0.0, p, seed)
        result = RESULT.pack(*rows.NO_TENSOR, *rows.fields(total))
        native.check(native.library().functions.uwaga_norm_forward(packed, result))
    return total


def arguments(
    x: Tensor | None,
    added: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    kind: int,
    eps: float,
    p: float,
    seed: int,
) -> bytes:
    """Return a uwaga_norm_args of contiguous tensors, x and added (..., M), weight and bias (M,)."""
    one = added if x is None else x
    assert one is not None
    tensors = (*rows.fields(x), *rows.fields(added), *rows.fields(weight), *rows.fields(bias))
    return ARGUMENTS.pack(*rows.sizes(one), *tensors, DTYPES[one.dtype], kind, eps, p, seed, native.threads(), 0)


def _dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """Return the dropout of this seed, recorded for autograd, also where it is a gradient that is differentiated once more."""
    if torch.is_grad_enabled() and x.requires_grad:
        return cast(Tensor, _AddDropped.apply(None, x, p, seed))
    return run(None, x, p, seed)


def gradient(grad: Tensor, p: float, seed: int) -> Tensor:
    """Return the gradient of `added` from that of x + dropout(added), differentiable."""
    if is_batch_of_gradients(grad) or not rows.is_native(grad):
        return grad * run(None, torch.ones(grad.shape, dtype=grad.dtype), p, seed)
    return _dropout(grad, p, seed)


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor | None, added: Tensor, p: float, seed: int) -> Tensor:
        ctx.p, ctx.seed = p, seed
        return run(x, added, p, seed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needs_x, needs_added = ctx.needs_input_grad[:2]
        return (grad if needs_x else None, gradient(grad, ctx.p, ctx.seed) if needs_added else None, None, None)
