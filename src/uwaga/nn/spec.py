"""What a layer is made of. Letters: M model width, F hidden width, H query heads, G key heads, D, E widths of a head."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from uwaga._base import renamed
from uwaga.nn.attention import MultiHeadAttention
from uwaga.nn.feed_forward import FeedForward


@renamed.parameters(
    width="d_model",
    heads="num_heads",
    hidden="d_ff",
    key_heads="num_kv_heads",
    key_width="d_k",
    value_width="d_v",
    memory_width="memory_dim",
    norm_kind="norm_type",
    eps="norm_eps",
    hidden_dropout="activation_dropout",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What a layer is made of; EncoderLayer, DecoderLayer and the stacks of them take one.

    Raises:
        ValueError: `norm` or `norm_type` is none of those that there are.
    """

    d_model: int  # M
    num_heads: int  # H
    d_ff: int  # F
    num_kv_heads: int | None = None  # G; H by default
    d_k: int | None = None  # D; M / H by default
    d_v: int | None = None  # E; D by default
    memory_dim: int | None = None  # of what a decoder's cross-attention reads; M by default
    norm: str = "post"  # where norms stand: "post" or "pre"
    norm_type: str = "layer"  # "layer" (Ba et al. 2016) or "rms" (Zhang and Sennrich 2019)
    norm_eps: float = 1e-5  # of the norms
    activation: str = "gelu"  # of the feed-forward layer, see FeedForward
    gated: bool = False
    bias: bool = True  # of every linear map, and of layer norms
    scale: float | None = None  # of the scores; None for 1/sqrt(D)
    softcap: float | None = None
    dropout: float = 0.0  # of what a residual connection adds
    attention_dropout: float = 0.0  # of attention weights
    activation_dropout: float = 0.0  # inside the feed-forward layer, after the activation

    def __post_init__(self) -> None:
        for name, known in (("norm", ("post", "pre")), ("norm_type", ("layer", "rms"))):
            given = getattr(self, name)
            if given not in known:
                raise ValueError(f"LayerSpec: {name} must be {known[0]!r} or {known[1]!r}, not {given!r}")

    def new_attention(self, *, memory_dim: int | None = None, **made: Any) -> MultiHeadAttention:
        """Self-attention, or with a memory width cross-attention."""
        return MultiHeadAttention(
            self.d_model,
            self.num_heads,
            num_kv_heads=self.num_kv_heads,
            d_k=self.d_k,
            d_v=self.d_v,
            key_dim=memory_dim,
            value_dim=memory_dim,
            bias=self.bias,
            dropout=self.attention_dropout,
            scale=self.scale,
            softcap=self.softcap,
            **made,
        )

    def new_feed_forward(self, **made: Any) -> FeedForward:
        return FeedForward(
            self.d_model,
            self.d_ff,
            activation=self.activation,
            gated=self.gated,
            bias=self.bias,
            dropout=self.activation_dropout,
            **made,
        )

    def new_norm(self, **made: Any) -> nn.Module:
        if self.norm_type == "rms":
            return nn.RMSNorm(self.d_model, eps=self.norm_eps, **made)
        return nn.LayerNorm(self.d_model, eps=self.norm_eps, bias=self.bias, **made)
