"""torch.nn.functional.scaled_dot_product_attention for tensors on the CPU; opened by torch_patch.py.

Letters: H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from uwaga._base.tracing import is_plain_tensor
from uwaga.integrations.serving import Replacement, autocast, is_differentiable, is_mapped, serves
from uwaga.ops.attention.api import attention
from uwaga.ops.attention.native_structs import MAX_WIDTH
from uwaga.ops.masks import Causal, Mask

_LARGEST = torch.finfo(torch.float32).max  # the kernels compute in float32


@cache
def door(original: Callable) -> Replacement:
    """The function that serves what it can, and hands the rest to `original`; always the same one for the same."""

    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """torch.nn.functional.scaled_dot_product_attention, by uwaga on the CPU (uwaga.integrations.patch_torch)."""
        tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        if has_torch_function(tensors) and not _is_nested(query):
            return handle_torch_function(replacement, tensors, query, key, value, attn_mask=attn_mask, **options)
        if all(isinstance(x, Tensor) and is_plain_tensor(x) for x in tensors):
            q, k, v, *masks = autocast(*tensors)
            known = _are_known(masks, dropout_p, is_causal, scale, enable_gqa)
            if known and serves(q, k, v) and _fits(q, k, v, masks, enable_gqa) and _derives(tensors, dropout_p):
                q, k, v = _aligned(q, k, v, enable_gqa)
                mask, bias = _mask_and_bias(masks, is_causal)
                output = attention(q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout_p, impl="cpu")
                assert isinstance(output, Tensor)
                return output
        return original(query, key, value, attn_mask=attn_mask, **options)

    replacement = Replacement(scaled_dot_product_attention, original, "torch.nn.functional")
    return replacement


def _is_nested(query: Tensor) -> bool:
    """Whether this is a nested tensor: the jagged ones compare the function with torch._C._nn's, which is not replaced."""
    if torch.compiler.is_dynamo_compiling():
        return isinstance(query, Tensor) and query.is_nested
    with torch._C.DisableTorchFunction():  # which would ask the overrides
        return isinstance(query, Tensor) and query.is_nested


def _are_known(masks: list[Tensor], dropout_p: float, is_causal: bool, scale: float | None, enable_gqa: bool) -> bool:
    """Whether the options are of the kinds that both functions take; PyTorch takes tensors and infinities, too."""
    return (
        (scale is None or (isinstance(scale, int | float) and abs(scale) <= _LARGEST))
        and isinstance(dropout_p, int | float)
        and 0.0 <= dropout_p < 1.0
        and isinstance(is_causal, bool)
        and isinstance(enable_gqa, bool)
        and not (is_causal and masks)
    )


def _derives(tensors: tuple[Tensor, ...], dropout_p: float) -> bool:
    """Whether the derivatives that the surroundings ask for are ours to give, and vmap a dropout that is."""
    return is_differentiable(*tensors) and not (dropout_p and is_mapped())


def _fits(q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor], enable_gqa: bool) -> bool:
    """Whether PyTorch would take these; where it would not, its own error is the right one."""
    if not 2 <= q.dim() == k.dim() == v.dim() or not q.dtype == k.dtype == v.dtype:
        return False
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        return False
    if not all(0 < x.shape[-1] <= MAX_WIDTH for x in (q, v)) or 0 in q.shape[-3:-2]:
        return False  # what the engine does not compute
    if _other_kernel_named():
        return False
    grouped = 3 if enable_gqa else 2
    if enable_gqa and (q.dim() < 3 or k.shape[-3] != v.shape[-3] or not k.shape[-3] or q.shape[-3] % k.shape[-3]):
        return False
    leading = [x.shape[:-grouped] for x in (q, k, v)]
    common = _broadcast(leading)
    if common is None:
        return False
    if not masks:
        return True
    heads = q.shape[-3:-2] if enable_gqa else ()
    scores = (*common, *heads, q.shape[-2], k.shape[-2])
    mask = masks[0]
    of_kind = mask.dtype in (torch.bool, q.dtype) and mask.dim() >= 2 and mask.layout is torch.strided
    return of_kind and _broadcast([mask.shape, scores]) == scores


def _other_kernel_named() -> bool:
    """Whether torch.nn.attention.sdpa_kernel asks for another kernel than the flash one; on the CPU it counts too."""
    return not torch.backends.cuda.flash_sdp_enabled()


# A flag outside the graph: torch.compile takes it as it is when it traces (see ops/attention/choose.py).
vars(_other_kernel_named)["_dynamo_marked_constant"] = True


def _broadcast(shapes: list) -> tuple[int, ...] | None:
    """The common shape, or None where there is none."""
    if all(shape == shapes[0] for shape in shapes):  # torch.broadcast_shapes takes longer than a small call
        return tuple(shapes[0])
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return None


def _aligned(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The same leading dimensions for all, by zero strides."""
    if q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        return q, k, v
    kept = 3 if enable_gqa else 2
    common = torch.broadcast_shapes(*(x.shape[:-kept] for x in (q, k, v)))
    q, k, v = (x.expand(*common, *x.shape[-kept:]) for x in (q, k, v))
    return q, k, v


def _mask_and_bias(masks: list[Tensor], is_causal: bool) -> tuple[Mask | Tensor | None, Tensor | None]:
    if is_causal:
        return Causal(start=0), None  # PyTorch aligns to the upper left
    if not masks:
        return None, None
    return (masks[0], None) if masks[0].dtype == torch.bool else (None, masks[0])
