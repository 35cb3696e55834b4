"""PyTorch's own doors to attention, opened onto this engine for tensors on the CPU.

Covered: every call that looks the name up when it runs, torch.nn.functional.scaled_dot_product_attention or
torch.nn.attention.varlen.varlen_attn, and so nn.MultiheadAttention, nn.Transformer* and the models of transformers.
Not covered: modules that took the function by `from torch.nn.functional import ...` before the patch; and the fused
inference path of nn.TransformerEncoderLayer in eval mode, which never calls the function
(torch.backends.mha.set_fastpath_enabled(False) turns it off).

Letters: H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N packed tokens.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor

from uwaga._base import native
from uwaga._base.eager import is_plain
from uwaga.ops.attention.api import attention, attention_and_lse
from uwaga.ops.masks import Causal, KeyLengths, Mask, Window
from uwaga.ops.ragged import Ragged

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(slots=True, kw_only=True)
class _Door:
    """One function of PyTorch: where it lives, what replaces it while patches are open, and the original."""

    module: ModuleType
    name: str
    ours: Callable
    original: Callable


_LOCK = threading.RLock()
_DOORS: list[_Door] = []  # open while _OPEN > 0
_OPEN = 0


@dataclass(slots=True, kw_only=True)
class Patch:
    """An open patch. `undo()` closes it, and so does leaving its `with` block; closing twice does nothing.

    Patches nest, in any order and over threads: PyTorch's own functions are back when the last one is closed.
    """

    _is_open: bool = field(default=True, repr=False)

    def undo(self) -> None:
        """Close this patch. Raises RuntimeError where someone else has replaced the functions since."""
        with _LOCK:
            if self._is_open:
                _close()
                self._is_open = False

    def __enter__(self) -> "Patch":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def patch_torch() -> Patch:
    """From now on scaled_dot_product_attention and varlen_attn on CPU tensors run through this engine.

    What it does not serve goes to PyTorch's own function: other devices, float64, tensor subclasses, a kernel chosen by
    torch.nn.attention.sdpa_kernel, calls that PyTorch refuses, and everything where there is no native library.

    >>> with patch_torch():
    ...     x = torch.nn.functional.scaled_dot_product_attention(*torch.zeros(3, 1, 2, 4, 8))
    """
    with _LOCK:
        _open()
        return Patch()


def _open() -> None:
    global _OPEN
    if _OPEN == 0:
        _DOORS.extend(_find_doors())
        for door in _DOORS:
            setattr(door.module, door.name, door.ours)
    _OPEN += 1


def _close() -> None:
    global _OPEN
    if _OPEN == 1:
        for door in _DOORS:
            if getattr(door.module, door.name) is not door.ours:
                where = f"{door.module.__name__}.{door.name}"
                raise RuntimeError(f"patch_torch: {where} was replaced by someone else since; undo that first")
        for door in _DOORS:
            setattr(door.module, door.name, door.original)
        _DOORS.clear()
    _OPEN -= 1


def _find_doors() -> list[_Door]:
    import torch.nn.attention.varlen as varlen  # here, since importing it registers operators

    sdpa = torch.nn.functional.scaled_dot_product_attention
    return [
        _Door(module=torch.nn.functional, name="scaled_dot_product_attention", ours=_sdpa(sdpa), original=sdpa),
        _Door(module=varlen, name="varlen_attn", ours=_varlen(varlen.varlen_attn), original=varlen.varlen_attn),
    ]


def _serves(*tensors: Tensor) -> bool:
    """Whether the native engine can read these as they are."""
    return native.reason_unavailable() is None and all(
        is_plain(x) and x.device.type == "cpu" and x.dtype in _DTYPES and not x.is_nested for x in tensors
    )


def _sdpa(original: Callable) -> Callable:
    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """torch.nn.functional.scaled_dot_product_attention, by uwaga on the CPU (uwaga.integrations.patch_torch)."""
        tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        q, k, v, *masks = _autocast(tensors)
        if _serves(q, k, v) and _fits(q, k, v, masks, enable_gqa) and not (is_causal and masks) and dropout_p < 1.0:
            q, k, v = _aligned(q, k, v, enable_gqa)
            mask, bias = _mask_and_bias(masks, is_causal)
            return attention(q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout_p, impl="cpu")
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    return scaled_dot_product_attention


def _autocast(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What autocast does to the arguments of PyTorch's own function."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    to = torch.get_autocast_dtype("cpu")
    return tuple(x.to(to) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


def _fits(q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor], enable_gqa: bool) -> bool:
    """Whether PyTorch would take these; where it would not, its own error is the right one."""
    if not 2 <= q.dim() == k.dim() == v.dim() or not q.dtype == k.dtype == v.dtype:
        return False
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0 or k.shape[-2] != v.shape[-2]:
        return False
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
    kinds = (torch.bool, q.dtype)
    return is_plain(masks[0]) and masks[0].dtype in kinds and _broadcast([masks[0].shape, scores]) == scores


def _other_kernel_named() -> bool:
    """Whether torch.nn.attention.sdpa_kernel asks for another kernel than the flash one; on the CPU it counts too."""
    return not torch.backends.cuda.flash_sdp_enabled()


# A flag outside the graph: torch.compile takes it as it is when it traces (see ops/attention/available.py).
_other_kernel_named._dynamo_marked_constant = True


def _broadcast(shapes: list) -> tuple[int, ...] | None:
    """The common shape, or None where there is none."""
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


def _varlen(original: Callable) -> Callable:
    def varlen_attn(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        return_aux=None,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
        seqused_k: Tensor | None = None,
        block_table: Tensor | None = None,
        num_splits: int | None = None,
    ):
        """torch.nn.attention.varlen.varlen_attn, by uwaga on the CPU (uwaga.integrations.patch_torch)."""
        same_heads = enable_gqa or query.shape[1] == key.shape[1]
        if not _serves(query, key, value) or block_table is not None or cu_seq_k is None or not same_heads:
            extras = {"seqused_k": seqused_k, "block_table": block_table, "num_splits": num_splits}
            options = {"return_aux": return_aux, "scale": scale, "window_size": window_size, "enable_gqa": enable_gqa}
            return original(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options, **extras)
        # num_splits asks for results that do not depend on the batch: here they never do.
        key_offsets = cu_seq_k.long()
        ragged = Ragged(query, cu_seq_q.long()), Ragged(key, key_offsets), Ragged(value, key_offsets)
        mask = _varlen_mask(tuple(window_size), seqused_k)
        output, lse = attention_and_lse(*ragged, mask=mask, scale=scale, impl="cpu")
        return (output.values, lse.values.T) if return_aux is not None and return_aux.lse else output.values

    return varlen_attn


def _varlen_mask(window: tuple[int, int], used: Tensor | None) -> Mask | None:
    """window_size is lower right, -1 for unbounded; seqused_k counts the keys in use."""
    left, right = (None if reach < 0 else reach for reach in window)
    band = None if left is None and right is None else Window(left, right)
    if used is None:
        return band
    return KeyLengths(used) if band is None else band & KeyLengths(used)
