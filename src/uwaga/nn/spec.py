"""What a layer is made of. Letters: M model width, F hidden width, H query heads, G key heads, D, E widths of a head."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from uwaga.nn.attention import MultiHeadAttention
from uwaga.nn.feed_forward import FeedForward


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What a layer is made of; EncoderLayer, DecoderLayer and the stacks of them take one.

    Raises:
        ValueError: `norm` or `norm_kind` is none of those that there are.
    """

    width: int  # M
    heads: int  # H
    hidden: int  # F
    key_heads: int | None = None  # G; H by default
    key_width: int | None = None  # D; M / H by default
    value_width: int | None = None  # E; D by default
    memory_width: int | None = None  # of what a decoder's cross-attention reads; M by default
    norm: str = "post"  # where norms stand: "post" or "pre"
    norm_kind: str = "layer"  # "layer" (Ba et al. 2016) or "rms" (Zhang and Sennrich 2019)
    eps: float = 1e-5  # of the norms
    activation: str = "gelu"  # of the feed-forward layer, see FeedForward
    gated: bool = False
    bias: bool = True  # of every linear map, and of layer norms
    scale: float | None = None  # of the scores; None for 1/sqrt(D)
    softcap: float | None = None
    dropout: float = 0.0  # of what a residual connection adds
    attention_dropout: float = 0.0  # of attention weights
    hidden_dropout: float = 0.0  # inside the feed-forward layer, after the activation

    def __post_init__(self) -> None:
        for name, known in (("norm", ("post", "pre")), ("norm_kind", ("layer", "rms"))):
            given = getattr(self, name)
            if given not in known:
                raise ValueError(f"LayerSpec: {name} must be {known[0]!r} or {known[1]!r}, not {given!r}")

    def new_attention(self, *, memory_width: int | None = None, **made: Any) -> MultiHeadAttention:
        """Self-attention, or with a memory width cross-attention."""
        return MultiHeadAttention(
            self.width,
            self.heads,
            key_heads=self.key_heads,
            key_width=self.key_width,
            value_width=self.value_width,
            key_input=memory_width,
            value_input=memory_width,
            bias=self.bias,
            dropout=self.attention_dropout,
            scale=self.scale,
            softcap=self.softcap,
            **made,
        )

    def new_feed_forward(self, **made: Any) -> FeedForward:
        return FeedForward(
            self.width,
            self.hidden,
            activation=self.activation,
            gated=self.gated,
            bias=self.bias,
            dropout=self.hidden_dropout,
            **made,
        )

    def new_norm(self, **made: Any) -> nn.Module:
        if self.norm_kind == "rms":
            return nn.RMSNorm(self.width, eps=self.eps, **made)
        return nn.LayerNorm(self.width, eps=self.eps, bias=self.bias, **made)
