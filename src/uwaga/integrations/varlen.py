"""torch.nn.attention.varlen.varlen_attn for tensors on the CPU, where PyTorch has none; opened by torch_patch.py.

Letters: N packed tokens, H query heads, G key/value heads, D query/key width, E value width, R ragged rows.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from uwaga.integrations.serving import Replacement, is_differentiable, is_mapped, serves
from uwaga.ops.attention.api import attention_and_lse
from uwaga.ops.masks import KeyLengths, Mask, Window
from uwaga.ops.ragged import Ragged

if TYPE_CHECKING:  # importing it registers operators
    from torch.nn.attention.varlen import AuxRequest


@cache
def door(original: Callable) -> Replacement:
    """The function that serves what it can, and hands the rest to `original`."""

    def varlen_attn(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        return_aux: "AuxRequest | None" = None,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
        seqused_k: Tensor | None = None,
        block_table: Tensor | None = None,
        num_splits: int | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """torch.nn.attention.varlen.varlen_attn, by uwaga on the CPU (uwaga.integrations.patch_torch)."""
        same_heads = enable_gqa or query.shape[1] == key.shape[1]
        derives = is_differentiable(query, key, value) and not is_mapped()
        known = block_table is None and _are_offsets(cu_seq_q, cu_seq_k) and len(window_size) == 2
        if not (serves(query, key, value) and derives and same_heads and known):
            extras = {"seqused_k": seqused_k, "block_table": block_table, "num_splits": num_splits}
            options = {"return_aux": return_aux, "scale": scale, "window_size": window_size, "enable_gqa": enable_gqa}
            return original(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options, **extras)
        # num_splits asks for results that do not depend on the batch: here they never do.
        assert cu_seq_k is not None
        key_offsets = cu_seq_k.long()
        ragged = Ragged(query, cu_seq_q.long()), Ragged(key, key_offsets), Ragged(value, key_offsets)
        mask = _mask(window_size, seqused_k)
        output, lse = attention_and_lse(*ragged, mask=mask, scale=scale, impl="cpu")
        assert isinstance(output, Ragged)
        assert isinstance(lse, Ragged)
        return (output.values, lse.values.T) if return_aux is not None and return_aux.lse else output.values

    return Replacement(varlen_attn, original, "torch.nn.attention.varlen")


def _are_offsets(*offsets: Tensor | None) -> bool:
    return all(isinstance(x, Tensor) and x.dtype in (torch.int32, torch.int64) for x in offsets)


def _mask(window: Sequence[int], used: Tensor | None) -> Mask | None:
    """window_size is lower right, -1 for unbounded; seqused_k counts the keys in use."""
    left, right = (None if reach < 0 else reach for reach in window)
    band = None if left is None and right is None else Window(left, right)
    if used is None:
        return band
    return KeyLengths(used) if band is None else band & KeyLengths(used)
