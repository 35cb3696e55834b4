"""Rotary positions of the heads of each token in one pass over memory.

Letters: H heads, D width of a head, W rotated numbers of it, I = W / 2 pairs.
"""

import torch
from torch import Tensor

from uwaga._base import native
from uwaga._base.native_layout import struct_of
from uwaga.ops import rows

_ARGUMENTS = struct_of("uwaga_rotate_args")


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
    """Rotate the pairs i and i + I of each head of x (..., H, D), in float32 arithmetic for bfloat16 and float16; None where the native
    kernel cannot serve: gradients, another device, dtype or layout, or a tracer. The same bits as PyTorch's operators one after another.

    cos, sin: (..., I) float32 of the tokens; their leading dimensions are the last ones of the tokens'. 2 * I <= D.
    """
    heads, width = x.shape[-2:]
    tokens, pairs = x.shape[:-2], cos.shape[-1]
    shared = cos.shape[:-1]
    if torch.is_grad_enabled() and (x.requires_grad or cos.requires_grad or sin.requires_grad):
        return None
    if not (rows.is_native(x) and rows.is_native(cos, sin)) or cos.dtype is not torch.float32:
        return None
    if not shared or len(shared) > len(tokens) or tokens[-len(shared) :] != shared or cos.shape != sin.shape:
        return None
    x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
    if not x.numel() or not pairs:
        return None
    packed = _ARGUMENTS.pack(
        x.numel() // (heads * width),
        heads,
        width,
        pairs,
        shared.numel(),
        *rows.strided(x, heads * width),
        *rows.strided(out, heads * width),
        *_table(cos),
        *_table(sin),
        native.threads(),
        0,
    )
    native.check(native.library().functions.uwaga_rotate(packed))
    return out


def _table(x: Tensor) -> tuple[int, ...]:
    """Return a uwaga_tensor of rows (..., I), which may be parts of longer ones."""
    flat = x.flatten(0, -2)
    flat = flat if flat.stride(1) == 1 else flat.contiguous()
    return rows.strided(flat, flat.stride(0))
