"""patch_torch(): PyTorch's scaled_dot_product_attention on CPU tensors computed by uwaga.

Covered: every call that looks the name torch.nn.functional.scaled_dot_product_attention up when it runs, and so nn.MultiheadAttention,
nn.Transformer* and the models of transformers.
Not covered: modules that imported the function by name (`from torch.nn.functional import ...`) before the patch; and the fused
inference path of nn.TransformerEncoderLayer in eval mode, which never calls the function
(torch.backends.mha.set_fastpath_enabled(False) turns it off).

Letters: H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.jit import _builtins
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from uwaga._base import native
from uwaga._base.tracing import Transform, has_tangent, is_autocast, is_plain_tensor, transforms
from uwaga.ops.attention.api import attention
from uwaga.ops.attention.native_structs import MAX_WIDTH
from uwaga.ops.masks import Causal, Mask

_LOCK = threading.RLock()
_OPEN = 0


class TorchPatch:
    """An open patch. `undo()` closes it, and so does leaving its `with` block; closing it again has no effect.

    Patches nest, in any order and over threads: PyTorch's own function is back when the last one is closed.
    """

    _is_open = True

    def undo(self) -> None:
        """Close this patch. Raises RuntimeError: other code has replaced the function since."""
        with _LOCK:
            if self._is_open:
                _close()
                self._is_open = False

    def __enter__(self) -> "TorchPatch":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def patch_torch() -> TorchPatch:
    """Compute scaled_dot_product_attention on CPU tensors with uwaga from now on.

    PyTorch's own function still computes what uwaga does not support: other devices, float64, a kernel chosen by
    torch.nn.attention.sdpa_kernel, forward-mode derivatives, second ones by torch.func, dropout under vmap,
    torch.func.functionalize, calls that PyTorch rejects, and everything if there is no native library. So do tensor
    subclasses and TorchFunctionModes, whose `__torch_function__` comes first, and what torch.jit.script compiles.

    >>> with patch_torch():
    ...     x = torch.nn.functional.scaled_dot_product_attention(*torch.zeros(3, 1, 2, 4, 8))
    """
    global _OPEN
    with _LOCK:
        if _OPEN == 0:
            replacement: Any = _replacement(functional.scaled_dot_product_attention)
            functional.scaled_dot_product_attention = replacement
        _OPEN += 1
        return TorchPatch()


def _close() -> None:
    global _OPEN
    if _OPEN == 1:
        function: Any = functional.scaled_dot_product_attention
        if not isinstance(function, _Replacement):
            where = "torch.nn.functional.scaled_dot_product_attention"
            raise RuntimeError(
                f"patch_torch: {where} has been replaced by other code since; undo that replacement first"
            )
        functional.scaled_dot_product_attention = function.original
    _OPEN -= 1


@cache
def _replacement(original: Callable[..., Tensor]) -> "_Replacement":
    result = _Replacement(original)
    builtin = _builtins._find_builtin(original)
    if builtin is not None:  # torch.jit.script does not compile the replacement, but calls PyTorch's own operator
        _builtins._register_builtin(result, builtin)
    return result


class _Replacement:
    """scaled_dot_product_attention, by uwaga where it can compute a call.

    It has the names of the original, by which graphs of torch.fx and pickles refer to it, and compares equal to it: subclasses of
    Tensor look it up in tables that are keyed by PyTorch's functions.
    """

    def __init__(self, original: Callable[..., Tensor]) -> None:
        self.original = original
        self.__module__, self.__name__, self.__qualname__ = functional.__name__, original.__name__, original.__name__
        self.__doc__ = (
            "torch.nn.functional.scaled_dot_product_attention, by uwaga on the CPU (uwaga.integrations.patch_torch)."
        )

    def __call__(
        self,
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
        tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        options: Any = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        if has_torch_function(tensors) and not _is_nested(query):
            result: Tensor = handle_torch_function(self, tensors, query, key, value, attn_mask=attn_mask, **options)
            return result
        if all(isinstance(x, Tensor) and is_plain_tensor(x) for x in tensors):
            q, k, v, *masks = autocast(*tensors)
            if (
                _are_supported_options(masks, **options)
                and is_supported(q, k, v)
                and _fits(q, k, v, masks, enable_gqa)
                and _is_differentiable(tensors, dropout_p)
            ):
                q, k, v = _aligned(q, k, v, enable_gqa)
                mask, bias = _mask_and_bias(masks, is_causal)
                output = attention(q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout_p, impl="cpu")
                assert isinstance(output, Tensor)
                return output
        return self.original(query, key, value, attn_mask=attn_mask, **options)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.original

    def __hash__(self) -> int:
        return hash(self.original)

    def __repr__(self) -> str:
        return f"<uwaga's {self.__module__}.{self.__name__}>"

    def __reduce__(self) -> str:
        return self.__name__


_Replacement.__call__.__qualname__ = "scaled_dot_product_attention"  # in errors about arguments

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


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


def _is_differentiable(tensors: tuple[Tensor, ...], dropout_p: float) -> bool:
    """Return whether the native engine has the derivatives that are active here: reverse mode, and under torch.func first order only."""
    active = transforms()
    return (
        not has_tangent(*tensors)
        and {Transform.Vmap, Transform.Grad}.issuperset(active)
        and active.count(Transform.Grad) < 2
        and not (dropout_p and Transform.Vmap in active)
    )


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in the dtype that torch.autocast gives to PyTorch's own function."""
    device = tensors[0].device.type
    if not is_autocast(device):
        return tensors
    to = torch.get_autocast_dtype(device)
    return tuple(x.to(to) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


_LARGEST = torch.finfo(torch.float32).max  # the kernels compute in float32


def _is_nested(query: Tensor) -> bool:
    """Return whether this is a nested tensor. Jagged ones compare the function with that of torch._C._nn, which is not replaced."""
    if torch.compiler.is_dynamo_compiling():
        return isinstance(query, Tensor) and query.is_nested
    with torch._C.DisableTorchFunction():  # which would ask the overrides
        return isinstance(query, Tensor) and query.is_nested


def _are_supported_options(
    masks: list[Tensor], dropout_p: float, is_causal: bool, scale: float | None, enable_gqa: bool
) -> bool:
    """Return whether uwaga supports the options; PyTorch also takes tensors and infinities as scale."""
    return (
        (scale is None or (isinstance(scale, int | float) and abs(scale) <= _LARGEST))
        and isinstance(dropout_p, int | float)
        and 0.0 <= dropout_p < 1.0
        and isinstance(is_causal, bool)
        and isinstance(enable_gqa, bool)
        and not (is_causal and masks)
    )


def _fits(q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor], enable_gqa: bool) -> bool:
    """Return whether PyTorch accepts these shapes; where it does not, PyTorch raises its own error."""
    if not 2 <= q.dim() == k.dim() == v.dim() or not q.dtype == k.dtype == v.dtype:
        return False
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        return False
    if not all(0 < x.shape[-1] <= MAX_WIDTH for x in (q, v)) or 0 in q.shape[-3:-2]:
        return False  # not supported by the engine
    if _other_kernel_named():
        return False
    grouped = 3 if enable_gqa else 2
    if enable_gqa and (q.dim() < 3 or k.shape[-3] != v.shape[-3] or not k.shape[-3] or q.shape[-3] % k.shape[-3]):
        return False
    leading = [x.shape[:-grouped] for x in (q, k, v)]
    common = _broadcast(leading)
    if common is None:
        return False
    heads = q.shape[-3:-2] if enable_gqa else ()
    scores = (*common, *heads, q.shape[-2], k.shape[-2])
    return all(
        mask.dtype in (torch.bool, q.dtype)
        and mask.dim() >= 2
        and mask.layout is torch.strided
        and _broadcast([mask.shape, scores]) == scores
        for mask in masks
    )


def _other_kernel_named() -> bool:
    """Return whether torch.nn.attention.sdpa_kernel excludes the flash kernel, as it may on the CPU too."""
    return not torch.backends.cuda.flash_sdp_enabled()


# A flag outside the graph: torch.compile takes it as it is when it traces (see ops/attention/choose.py).
vars(_other_kernel_named)["_dynamo_marked_constant"] = True


def _broadcast(shapes: list) -> tuple[int, ...] | None:
    """Return the shape that all shapes broadcast to, or None if they do not."""
    if all(shape == shapes[0] for shape in shapes):  # torch.broadcast_shapes takes longer than a small call
        return tuple(shapes[0])
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return None


def _aligned(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same leading dimensions for all, by zero strides."""
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
