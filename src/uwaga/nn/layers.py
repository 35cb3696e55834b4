"""Layers: attention and a feed-forward layer, each with a residual connection and a norm.

    post: x = norm(x + f(x))      (Vaswani et al. 2017, section 3.1)
    pre:  x = x + f(norm(x))      (Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020)

Letters: B batch, Q tokens, M model width, N packed tokens.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from uwaga.nn.carry import carry, need_width
from uwaga.nn.spec import LayerSpec
from uwaga.ops.attention.lower import Operand
from uwaga.ops.biases import DistanceBias
from uwaga.ops.masks import Mask


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward layer; with a causal mask also the layer of a decoder-only model, as GPT-2.

    Submodules: attention, attention_norm, feed_forward, feed_forward_norm. As torch.nn.TransformerEncoderLayer, which
    `dropout`, `attention_dropout` and `hidden_dropout` of one value make it equal to.

    >>> import torch
    >>> layer = EncoderLayer(LayerSpec(width=8, heads=2, hidden=16))
    >>> layer(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, spec: LayerSpec, *, device=None, dtype=None) -> None:
        super().__init__()
        made = {"device": device, "dtype": dtype}
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
    ) -> Operand:
        """(..., Q, M), or Ragged with values (N, M), as x is.

        Args:
            x: (..., Q, M), or Ragged with values (N, M).
            mask, bias: of self-attention, as in `uwaga.attention`.

        Raises:
            ShapeError, ValueError: as MultiHeadAttention.
        """
        need_width("EncoderLayer", "x", x, self.attention.query.in_features)
        attend = partial(self.attention, mask=mask, bias=bias)
        x = residual(x, attend, self.attention_norm, self.dropout, self.is_pre)
        return residual(x, self.feed_forward, self.feed_forward_norm, self.dropout, self.is_pre)


def residual(
    x: Operand, sublayer: Callable[[Operand], Operand], norm: nn.Module, dropout: nn.Module, is_pre: bool
) -> Operand:
    """The sublayer with its residual connection, the norm before it or after the sum."""
    added = sublayer(carry(norm, x) if is_pre else x)
    total = carry(lambda values, more: values + dropout(more), x, added)
    return total if is_pre else carry(norm, total)
