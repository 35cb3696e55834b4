"""The short way of a plain call: query, key, value and a mask, on the CPU, while nobody looks on.

A short batch keeps the kernels busy for less time than Python takes to look at a call as `lower` does, with words for
everything that can be wrong. So a plain call is only compared with itself here, and what its options come to is
remembered (`layouts`). Whatever is not plain or does not fit goes the long way.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N packed tokens,
R ragged rows.
"""

import torch
from torch import Tensor

from uwaga._base.tracing import is_plain_eager
from uwaga.ops.attention import layouts, plain
from uwaga.ops.masks import Causal, Mask, Window
from uwaga.ops.ragged import Operand, Ragged

_MASKS = (type(None), Causal, Window)
_NUMBERS = (float, int, type(None))  # a tensor could be written to, and is remembered by its place alone


def attend(
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Mask | Tensor | None,
    scale: float | None,
    normalize: str | None,
    softcap: float | None,
    dropout: float,
    impl: str | None,
    wants_lse: bool,
) -> tuple[Operand, Operand | None] | None:
    """The output (B, H, Q, E) or Ragged (N, H, E), and where wanted the lse (B, H, Q) or Ragged (N, H); None where the
    call must go the long way."""
    if not is_plain_eager() or not (
        isinstance(scale, _NUMBERS) and isinstance(softcap, _NUMBERS) and isinstance(dropout, float | int)
    ):
        return None
    is_ragged = type(query) is Ragged
    if is_ragged:
        if not type(key) is type(value) is Ragged or key.offsets is not value.offsets:
            return None
        q, k, v, offsets = query.values, key.values, value.values, (query.offsets, key.offsets)
    else:
        q, k, v, offsets = query, key, value, ()
    if not type(q) is type(k) is type(v) is Tensor:
        return None
    dtype = q.dtype
    if not (
        dtype is k.dtype is v.dtype
        and q.is_cpu
        and k.is_cpu
        and v.is_cpu
        and not (q.is_neg() or k.is_neg() or v.is_neg())
    ):
        return None
    records = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    try:
        if type(mask) not in _MASKS or (mask is not None and isinstance(mask.start, Tensor)):
            if records or not isinstance(mask, Mask):  # autograd has to keep its tensors
                return None
            layout = layouts.of_mask(query, key, value, mask, (scale, normalize, softcap, impl))
        elif is_ragged:
            layout = layouts.of_ragged(query, key, v, (mask, scale, normalize, softcap, impl))
        else:
            rules = (mask, scale, normalize, softcap, impl)
            layout = layouts.of_dense(dtype, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), rules)
        if layout is None or not 0.0 <= dropout < 1.0:
            return None
    except TypeError:  # an option of a type that means nothing
        return None
    seed = int(torch.randint(2**63 - 1, (), device="cpu")) if dropout else 0
    if records:
        found = plain.record(layout, dropout, seed, wants_lse, q, k, v, *offsets)
        output, lse = found if wants_lse else (found, None)
    else:
        output, lse = plain.forward(layout, dropout, seed, wants_lse, q, k, v)
    if is_ragged:
        return query.with_values(output), query.with_values(lse) if wants_lse else None
    return output, lse
