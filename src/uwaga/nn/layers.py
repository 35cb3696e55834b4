"""Layers: attention and a feed-forward layer, each with a residual connection and a norm.

    post: x = norm(x + f(x))      (Vaswani et al. 2017, section 3.1)
    pre:  x = x + f(norm(x))      (Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020)

Letters: B batch, Q tokens, M model width, N packed tokens.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

from uwaga.nn.cache import LayerCache
from uwaga.nn.carry import carry, dropped, need_width
from uwaga.nn.rotary import Rotation
from uwaga.nn.spec import LayerSpec
from uwaga.ops.biases import DistanceBias
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward layer; with a causal mask also the layer of a decoder-only model, as GPT-2.

    Submodules: attention, attention_norm, feed_forward, feed_forward_norm. As torch.nn.TransformerEncoderLayer, which
    `dropout`, `attention_dropout` and `activation_dropout` of one value make it equal to.

    >>> import torch
    >>> layer = EncoderLayer(LayerSpec(d_model=8, num_heads=2, d_ff=16))
    >>> layer(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, spec: LayerSpec, *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.attention = spec.new_attention(**made)
        self.attention_norm = spec.new_norm(**made)
        self.feed_forward = spec.new_feed_forward(**made)
        self.feed_forward_norm = spec.new_norm(**made)
        self.dropout, self.is_pre = nn.Dropout(spec.dropout), spec.norm == "pre"

    def forward(
        self,
        x: Operand,
        *,
        mask: Mask | Tensor | None = None,
        bias: DistanceBias | Tensor | None = None,
        rotary: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Operand:
        """(..., Q, M), or Ragged with values (N, M), as x is.

        Args:
            x: (..., Q, M), or Ragged with values (N, M); with a cache (B, Q, M) or Ragged.
            mask, bias: of self-attention, as in `uwaga.attention`.
            rotary: of x's tokens, from RotaryPositions.
            cache: of this layer, `KeyValueCache[n]`; x is then the next tokens.

        Raises:
            ShapeError, ValueError: as MultiHeadAttention.
        """
        need_width("EncoderLayer", "x", x, self.attention.query.in_features)
        slot = None if cache is None else cache.attention
        attend = partial(self.attention, mask=mask, bias=bias, rotary=rotary, cache=slot)
        x = residual(x, attend, self.attention_norm, self.dropout, self.is_pre)
        feed_forward = partial(self.feed_forward, steadily=cache is None)
        return residual(x, feed_forward, self.feed_forward_norm, self.dropout, self.is_pre)


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention to a memory, then a feed-forward layer (Vaswani et al. 2017, section 3.1).

    Submodules: attention, attention_norm, cross_attention, cross_attention_norm, feed_forward, feed_forward_norm. As
    torch.nn.TransformerDecoderLayer; `mask=Causal()` makes it one of a language model.

    >>> import torch
    >>> layer = DecoderLayer(LayerSpec(d_model=8, num_heads=2, d_ff=16))
    >>> layer(torch.randn(2, 5, 8), torch.randn(2, 7, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, spec: LayerSpec, *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.attention = spec.new_attention(**made)
        self.attention_norm = spec.new_norm(**made)
        self.cross_attention = spec.new_attention(memory_dim=spec.memory_dim or spec.d_model, **made)
        self.cross_attention_norm = spec.new_norm(**made)
        self.feed_forward = spec.new_feed_forward(**made)
        self.feed_forward_norm = spec.new_norm(**made)
        self.dropout, self.is_pre = nn.Dropout(spec.dropout), spec.norm == "pre"

    def forward(
        self,
        x: Operand,
        memory: Operand | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: DistanceBias | Tensor | None = None,
        memory_mask: Mask | Tensor | None = None,
        memory_bias: DistanceBias | Tensor | None = None,
        rotary: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Operand:
        """(..., Q, M), or Ragged with values (N, M), as x is.

        Args:
            x: (..., Q, M), or Ragged with values (N, M); with a cache (B, Q, M) or Ragged.
            memory: (..., K, memory_dim) or Ragged, of x's kind: what an encoder gave. Where the cache holds its keys and
                values from an earlier call it is not read, and may be None.
            mask, bias: of self-attention, as in `uwaga.attention`.
            memory_mask, memory_bias: of cross-attention.
            rotary: of x's tokens, from RotaryPositions; of self-attention.
            cache: of this layer, `KeyValueCache[n]`; x is then the next tokens.

        Raises:
            ShapeError, ValueError: as MultiHeadAttention; no memory, and no cache that holds its keys.
        """
        need_width("DecoderLayer", "x", x, self.attention.query.in_features)
        own, cross = (None, None) if cache is None else cache
        if memory is None and (cross is None or cross.held is None):
            raise ValueError("DecoderLayer: there is no memory, and no cache that holds its keys and values")
        attend = partial(self.attention, mask=mask, bias=bias, rotary=rotary, cache=own)
        look = partial(self.cross_attention, key=memory, mask=memory_mask, bias=memory_bias, cache=cross)
        x = residual(x, attend, self.attention_norm, self.dropout, self.is_pre)
        x = residual(x, look, self.cross_attention_norm, self.dropout, self.is_pre)
        feed_forward = partial(self.feed_forward, steadily=cache is None)
        return residual(x, feed_forward, self.feed_forward_norm, self.dropout, self.is_pre)


def residual(
    x: Operand, sublayer: Callable[[Operand], Operand], norm: nn.Module, dropout: nn.Module, is_pre: bool
) -> Operand:
    """The sublayer with its residual connection, the norm before it or after the sum."""
    added = sublayer(carry(norm, x) if is_pre else x)
    total = carry(lambda values, more: values + dropped(dropout, more), x, added)
    return total if is_pre else carry(norm, total)
