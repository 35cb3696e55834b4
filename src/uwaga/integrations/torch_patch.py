"""patch_torch(): PyTorch's scaled_dot_product_attention on CPU tensors computed by uwaga.

Covered: every call that looks the name torch.nn.functional.scaled_dot_product_attention up when it runs, and so nn.MultiheadAttention,
nn.Transformer* and the models of transformers.
Not covered: modules that imported the function by name (`from torch.nn.functional import ...`) before the patch; and the fused
inference path of nn.TransformerEncoderLayer in eval mode, which never calls the function
(torch.backends.mha.set_fastpath_enabled(False) turns it off).

Letters: H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from uwaga._base import native
from uwaga._base.tracing import is_autocast, is_in_forward_mode, is_plain_tensor, is_transformed
from uwaga.ops.attention.api import attention
from uwaga.ops.attention.native_structs import MAX_WIDTH
from uwaga.ops.masks import Causal

_LOCK = threading.Lock()
_OPEN = 0
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST = torch.finfo(torch.float32).max  # the kernels compute in float32


@contextmanager
def patch_torch() -> Iterator[None]:
    """Compute scaled_dot_product_attention on CPU tensors with uwaga inside the `with` block, in all threads.

    PyTorch's own function still computes what uwaga does not support: other devices, float64, tensor subclasses, leading dimensions that
    broadcast, a kernel chosen by torch.nn.attention.sdpa_kernel, transforms of torch.func, forward-mode derivatives, calls that PyTorch
    rejects, and everything if there is no native library. Blocks may overlap: the last one that ends puts the function back.

    >>> with patch_torch():
    ...     x = torch.nn.functional.scaled_dot_product_attention(*torch.zeros(3, 1, 2, 4, 8))
    """
    global _OPEN
    with _LOCK:
        if _OPEN == 0:
            replacement: Any = _replacement(functional.scaled_dot_product_attention)
            functional.scaled_dot_product_attention = replacement
        _OPEN += 1
    try:
        yield
    finally:
        with _LOCK:
            _OPEN -= 1
            if _OPEN == 0:
                # What other code put there since stays.
                original = getattr(functional.scaled_dot_product_attention, "uwaga_original", None)
                functional.scaled_dot_product_attention = original or functional.scaled_dot_product_attention


def _replacement(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return scaled_dot_product_attention, by uwaga if uwaga can compute a call."""

    @functools.wraps(original)
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
        if all(isinstance(x, Tensor) and is_plain_tensor(x) for x in (query, key, value, attn_mask) if x is not None):
            q, k, v, *masks = autocast(query, key, value, *(() if attn_mask is None else (attn_mask,)))
            if _are_supported_options(masks, dropout_p, is_causal, scale) and _fits(q, k, v, masks, enable_gqa):
                is_bool = bool(masks) and masks[0].dtype == torch.bool
                output = attention(
                    q,
                    k,
                    v,
                    mask=Causal(start=0) if is_causal else masks[0] if is_bool else None,  # aligned to the upper left
                    bias=masks[0] if masks and not is_bool else None,
                    scale=scale,
                    dropout=dropout_p,
                    impl="cpu",
                )
                assert isinstance(output, Tensor)
                return output
        options: Any = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal}
        options |= {"scale": scale, "enable_gqa": enable_gqa}
        if attn_mask is not None and has_torch_function((attn_mask,)):
            # Masks of torch.nn.attention.bias compare the function with the one that has the name.
            result: Tensor = handle_torch_function(
                scaled_dot_product_attention, (attn_mask,), query, key, value, **options
            )
            return result
        return original(query, key, value, **options)

    vars(scaled_dot_product_attention)["uwaga_original"] = original
    return scaled_dot_product_attention


def is_supported(*tensors: Tensor) -> bool:
    """Return whether the native kernels can read these tensors: plain, strided, on the CPU, of a supported dtype."""
    return native.reason_unavailable() is None and all(
        is_plain_tensor(x)
        and x.device.type == "cpu"
        and x.dtype in _DTYPES
        and x.layout is torch.strided
        and not x.is_nested
        for x in tensors
    )


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in the dtype that torch.autocast gives to PyTorch's own function."""
    device = tensors[0].device.type
    if not is_autocast(device):
        return tensors
    to = torch.get_autocast_dtype(device)
    return tuple(x.to(to) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


def _are_supported_options(masks: list[Tensor], dropout_p: float, is_causal: bool, scale: float | None) -> bool:
    """Return whether uwaga supports the options; PyTorch also takes tensors and infinities as scale."""
    return (
        (scale is None or (isinstance(scale, int | float) and abs(scale) <= _LARGEST))
        and isinstance(dropout_p, int | float)
        and 0.0 <= dropout_p < 1.0
        and isinstance(is_causal, bool)
        and not (is_causal and masks)
        and not (is_transformed() or is_in_forward_mode())
        and not _other_kernel_named()
    )


def _fits(q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor], enable_gqa: bool) -> bool:
    """Return whether uwaga can compute these shapes. PyTorch computes or rejects the others."""
    if not is_supported(q, k, v) or not 2 <= q.dim() == k.dim() == v.dim() or not q.dtype == k.dtype == v.dtype:
        return False
    grouped = 3 if enable_gqa else 2
    heads = (q.shape[-3], k.shape[-3]) if enable_gqa and q.dim() > 2 else (1, 1)
    scores = (*q.shape[:-1], k.shape[-2])
    return (
        q.shape[:-grouped] == k.shape[:-grouped]
        and k.shape[:-2] == v.shape[:-2]
        and (q.shape[-1], k.shape[-2]) == (k.shape[-1], v.shape[-2])
        and all(0 < x.shape[-1] <= MAX_WIDTH for x in (q, v))
        and 0 not in q.shape[-3:-2]
        and q.dim() >= grouped
        and heads[1] > 0
        and heads[0] % heads[1] == 0
        and all(
            mask.dtype in (torch.bool, q.dtype)
            and 2 <= mask.dim() <= q.dim()
            and mask.layout is torch.strided
            and all(n in (1, m) for n, m in zip(reversed(mask.shape), reversed(scores), strict=False))
            for mask in masks
        )
    )


def _other_kernel_named() -> bool:
    """Return whether torch.nn.attention.sdpa_kernel excludes the flash kernel, as it may on the CPU too."""
    return not torch.backends.cuda.flash_sdp_enabled()


# A flag outside the graph: torch.compile takes it as it is when it traces (see ops/attention/choose.py).
vars(_other_kernel_named)["_dynamo_marked_constant"] = True
