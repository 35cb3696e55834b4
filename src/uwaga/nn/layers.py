"""The layers of encoders and decoders, and stacks of them: attention and a feed-forward layer, each with a residual connection
and a norm.

    post: x = norm(x + f(x))      (Vaswani et al. 2017, section 3.1)
    pre:  x = x + f(norm(x))      (Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020)

Letters: B batch, Q tokens, M model width, F feed-forward width, H query heads, G key/value heads, D query/key width, E value
width, N packed tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

from uwaga._base import threads
from uwaga._base.arguments import check, choice
from uwaga.nn.attention import MultiHeadAttention
from uwaga.nn.kv_cache import KeyValueCache, LayerCache
from uwaga.nn.operand import check_width, map_values, one_per_row, tokens_of_rows, values_of
from uwaga.nn.plain_modules import ZeroCenteredRMSNorm, add_dropped, apply_dropout, apply_linear, residual_norm
from uwaga.nn.positions import Rotation
from uwaga.ops.activations import ACTIVATIONS
from uwaga.ops.attention import hooks
from uwaga.ops.biases import AlibiBias, DistanceBias, RelativeBias
from uwaga.ops.masks import Both, Causal, Either, KeyLengths, Mask, Window
from uwaga.ops.ragged import Operand, Ragged


class FeedForward(nn.Module):
    """down(f(up x)) (Vaswani et al. 2017, section 3.3); gated: down(f(gate x) * up x) (Shazeer, "GLU Variants Improve
    Transformer", 2020). Each token is mapped by itself, so a packed batch needs no padding.

    Weights: up.weight (F, M), gate.weight (F, M) where gated, down.weight (M, F), with biases if `bias`.

    Args:
        d_model: M.
        d_ff: F.
        activation: "gelu", "gelu_tanh" (the tanh approximation of GELU, as in GPT-2), "relu" or "silu".
        gated: whether up x is multiplied by f(gate x), a second linear map of the input, instead of being activated itself.
        bias: whether the linear maps add a bias.
        down_bias: whether the last map adds a bias; as `bias` by default.
        dropout: probability of dropping a hidden activation, in training.

    Raises:
        ValueError: an unknown activation.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = True,
        down_bias: bool | None = None,
        dropout: float = 0.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        choice(activation, "FeedForward: activation", ACTIVATIONS)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.activation = activation
        self.up = nn.Linear(d_model, d_ff, bias, **factory)
        self.gate = nn.Linear(d_model, d_ff, bias, **factory) if gated else None
        self.down = nn.Linear(d_ff, d_model, bias if down_bias is None else down_bias, **factory)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Operand) -> Operand:
        """Map each token: (..., Q, M), or Ragged with values (N, M), as x is. The maps are batch-invariant as `uwaga.linear` is.

        Args:
            x: (..., Q, M), or Ragged with values (N, M).

        Raises:
            ShapeError: x has another width.
        """
        check_width("FeedForward", "x", x, self.up.in_features)
        return map_values(self._map, x)

    def _map(self, x: Tensor) -> Tensor:
        if self.gate is None:
            hidden = apply_linear(self.up, x, activation=self.activation)
        else:
            hidden = apply_linear(self.gate, x, activation=self.activation) * apply_linear(self.up, x)
        return apply_linear(self.down, apply_dropout(self.dropout, hidden))

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """The options of a layer; the argument of EncoderLayer, DecoderLayer, Encoder and Decoder.

    Raises:
        ValueError: an unknown `norm` or `norm_type`.
    """

    d_model: int  # M
    num_heads: int  # H
    d_ff: int  # F
    num_kv_heads: int | None = None  # G; H by default
    d_k: int | None = None  # D; M / H by default
    d_v: int | None = None  # E; D by default
    memory_dim: int | None = None  # the width of the memory of cross-attention; M by default
    norm: str = "post"  # "post": after the residual sum, "pre": before the sublayer
    # "layer" (Ba et al. 2016), "rms" (Zhang and Sennrich 2019), or "zero_centered_rms", as in Gemma
    norm_type: str = "layer"
    output_norms: bool = False  # the outputs of a pre-norm encoder layer's sublayers are normed too (Ding et al., "CogView", 2021; Gemma 2)
    norm_eps: float = 1e-5  # of the norms
    activation: str = "gelu"  # of the feed-forward layer, see FeedForward
    gated: bool = False
    bias: bool = True  # of linear layers and layer norms; those below are None for the same
    qkv_bias: bool | None = None  # of the query, key and value maps
    output_bias: bool | None = None  # of the output map of attention
    feed_forward_bias: bool | None = None
    down_bias: bool | None = None  # of the last map of the feed-forward layer; as feed_forward_bias by default
    norm_bias: bool | None = None  # of layer norms
    qk_norm: bool = False  # an RMS norm of each head's queries and keys
    scale: float | None = None  # of the scores; None for 1/sqrt(D)
    softcap: float | None = None
    dropout: float = 0.0  # of the sublayers' outputs
    attention_dropout: float = 0.0  # of attention weights
    activation_dropout: float = 0.0  # in the feed-forward layer, after the activation

    def __post_init__(self) -> None:
        choice(self.norm, "LayerSpec: norm", ("post", "pre"))
        choice(self.norm_type, "LayerSpec: norm_type", ("layer", "rms", "zero_centered_rms"))
        check(self.norm == "pre" or not self.output_norms, "LayerSpec: output_norms needs norm='pre'")

    def new_attention(self, *, memory_dim: int | None = None, **made: Any) -> MultiHeadAttention:
        """Make a layer of self-attention, or of cross-attention if memory_dim is given."""
        return MultiHeadAttention(
            self.d_model,
            self.num_heads,
            num_kv_heads=self.num_kv_heads,
            d_k=self.d_k,
            d_v=self.d_v,
            key_dim=memory_dim,
            value_dim=memory_dim,
            bias=_either(self.qkv_bias, self.bias),
            output_bias=_either(self.output_bias, self.bias),
            dropout=self.attention_dropout,
            scale=self.scale,
            softcap=self.softcap,
            qk_norm_eps=self.norm_eps if self.qk_norm else None,
            qk_norm_zero_centered=self.norm_type == "zero_centered_rms",
            **made,
        )

    def new_feed_forward(self, **made: Any) -> FeedForward:
        return FeedForward(
            self.d_model,
            self.d_ff,
            activation=self.activation,
            gated=self.gated,
            bias=_either(self.feed_forward_bias, self.bias),
            down_bias=self.down_bias,
            dropout=self.activation_dropout,
            **made,
        )

    def new_norm(self, **made: Any) -> nn.Module:
        if self.norm_type == "rms":
            return nn.RMSNorm(self.d_model, eps=self.norm_eps, **made)
        if self.norm_type == "zero_centered_rms":
            return ZeroCenteredRMSNorm(self.d_model, eps=self.norm_eps, **made)
        return nn.LayerNorm(self.d_model, eps=self.norm_eps, bias=_either(self.norm_bias, self.bias), **made)


def _either(option: bool | None, shared: bool) -> bool:
    return shared if option is None else option


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward layer; with a causal mask the layer of a decoder-only model such as GPT-2.

    Submodules: attention, attention_norm, feed_forward, feed_forward_norm, and attention_output_norm and feed_forward_output_norm, None
    without spec.output_norms. Equal to torch.nn.TransformerEncoderLayer where
    `dropout`, `attention_dropout` and `activation_dropout` are equal.

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
        self.attention_output_norm, self.feed_forward_output_norm = (
            spec.new_norm(**made) if spec.output_norms else None for _ in range(2)
        )
        self.dropout, self.is_pre = nn.Dropout(spec.dropout), spec.norm == "pre"

    def forward(
        self,
        x: Operand,
        *,
        mask: Mask | Tensor | None = None,
        bias: DistanceBias | Tensor | None = None,
        rotary: Rotation | None = None,
        cache: LayerCache | None = None,
        only: str | None = None,
    ) -> Operand:
        """Compute the layer: (..., Q, M), or Ragged with values (N, M), as x is; with `only` Ragged with values (R, M).

        Args:
            x: (..., Q, M), or Ragged with values (N, M); with a cache (B, Q, M) or Ragged.
            mask, bias: of self-attention, as in `uwaga.attention`.
            rotary: for the tokens of x, from RotaryPositions.
            cache: of this layer, `KeyValueCache[n]`; x then has the next tokens.
            only: "first" or "last", for Ragged x: return only this token of each row, with the same bits as in the full result. Use it for
                a last layer if nobody reads the other states: only keys and values are computed for the other tokens.

        Raises:
            ShapeError, ValueError: as MultiHeadAttention; an unknown `only`, or one of padded x or an empty row.
        """
        check_width("EncoderLayer", "x", x, self.attention.query.in_features)
        self_cache = None if cache is None else cache.attention
        tokens_R = None if only is None else tokens_of_rows("EncoderLayer", x, only)
        if tokens_R is not None and not self._computes_alone(mask, bias, cache):
            whole = self(x, mask=mask, bias=bias, rotary=rotary, cache=cache)
            return one_per_row(values_of(whole)[tokens_R])
        if only == "first":
            mask, bias = _with_start(mask), _with_start(bias)
        attend = partial(self.attention, mask=mask, bias=bias, rotary=rotary, cache=self_cache, queries=tokens_R)
        sublayers = [
            (_with_output_norm(attend, self.attention_output_norm), self.attention_norm),
            (_with_output_norm(self.feed_forward, self.feed_forward_output_norm), self.feed_forward_norm),
        ]
        return _run_sublayers(x, sublayers, self.dropout, self.is_pre, tokens_R)

    def _computes_alone(self, mask: Any, bias: Any, cache: LayerCache | None) -> bool:
        """Return whether attention may be computed for one query of each row alone: no hook reads the others, and the mask and the bias
        can take the position of that query."""
        is_seen = threads.any_open and bool(hooks.hooks_of(self.attention))
        return not is_seen and cache is None and _has_no_start(mask) and _has_no_start(bias)


def _has_no_start(x: object) -> bool:
    """Return whether it is a mask or a bias that depends on the positions of queries by `start` alone, and has none."""
    if isinstance(x, Both | Either):
        return _has_no_start(x.left) and _has_no_start(x.right)
    if isinstance(x, Causal | Window | AlibiBias | RelativeBias):
        return x.start is None
    return x is None or isinstance(x, KeyLengths)


def _with_start(x: Any) -> Any:
    """Return the mask or bias of queries at the first key: without a start the last query is at the last key."""
    if isinstance(x, Both | Either):
        return replace(x, left=_with_start(x.left), right=_with_start(x.right))
    return replace(x, start=0) if isinstance(x, Causal | Window | AlibiBias | RelativeBias) else x


def _with_output_norm(sublayer: Callable[[Operand], Operand], norm: nn.Module | None) -> Callable[[Operand], Operand]:
    return sublayer if norm is None else lambda x: map_values(norm, sublayer(x))


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention to a memory, and a feed-forward layer (Vaswani et al. 2017, section 3.1).

    Submodules: attention, attention_norm, cross_attention, cross_attention_norm, feed_forward, feed_forward_norm. As
    torch.nn.TransformerDecoderLayer; `mask=Causal()` for autoregressive decoding.

    >>> import torch
    >>> layer = DecoderLayer(LayerSpec(d_model=8, num_heads=2, d_ff=16))
    >>> layer(torch.randn(2, 5, 8), torch.randn(2, 7, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, spec: LayerSpec, *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        check(not spec.output_norms, "DecoderLayer: output_norms must be False; only encoder layers have them")
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
        """Compute the layer: (..., Q, M), or Ragged with values (N, M), as x is.

        Args:
            x: (..., Q, M), or Ragged with values (N, M); with a cache (B, Q, M) or Ragged.
            memory: the output of an encoder, (..., K, memory_dim), or Ragged if x is. It is not read, and may be None, if the
                cache contains its keys and values from an earlier call.
            mask, bias: for self-attention, as in `uwaga.attention`.
            memory_mask, memory_bias: for cross-attention.
            rotary: for self-attention over the tokens of x, from RotaryPositions.
            cache: of this layer, `KeyValueCache[n]`; x then has the next tokens.

        Raises:
            ShapeError, ValueError: as MultiHeadAttention; memory is None, and no cache holds its keys and values.
        """
        check_width("DecoderLayer", "x", x, self.attention.query.in_features)
        self_cache, cross_cache = (None, None) if cache is None else cache
        if memory is None and (cross_cache is None or cross_cache.view is None):
            raise ValueError("DecoderLayer: memory is None, and no cache holds its keys and values")
        attend = partial(self.attention, mask=mask, bias=bias, rotary=rotary, cache=self_cache)
        cross_attend = partial(self.cross_attention, key=memory, mask=memory_mask, bias=memory_bias, cache=cross_cache)
        sublayers: list[tuple[Callable[[Operand], Operand], nn.Module]] = [
            (attend, self.attention_norm),
            (cross_attend, self.cross_attention_norm),
            (self.feed_forward, self.feed_forward_norm),
        ]
        return _run_sublayers(x, sublayers, self.dropout, self.is_pre)


def _run_sublayers(
    x: Operand,
    sublayers: Sequence[tuple[Callable[[Operand], Operand], nn.Module]],
    dropout: nn.Module,
    is_pre: bool,
    tokens_R: Tensor | None = None,
) -> Operand:
    """Compute each sublayer with its norm: x = norm(x + dropout(sublayer(x))), or with is_pre x = x + dropout(sublayer(norm(x))).

    A residual sum and the norm that follows it are one operation. tokens_R: the tokens of x that the first sublayer gives; None: all.
    """
    if not is_pre:
        for sublayer, norm in sublayers:
            added = sublayer(x)
            if tokens_R is not None:
                x, tokens_R = one_per_row(values_of(x)[tokens_R]), None
            x, _ = _add_and_norm(x, added, norm, dropout, wants_sum=False)
        return x
    normed = map_values(sublayers[0][1], x)
    if tokens_R is not None:
        x = one_per_row(values_of(x)[tokens_R])
    for n, (sublayer, _) in enumerate(sublayers[:-1]):
        normed, x = _add_and_norm(x, sublayer(normed), sublayers[n + 1][1], dropout, wants_sum=True)
    return map_values(partial(add_dropped, dropout), x, sublayers[-1][0](normed))


def _add_and_norm(
    x: Operand, added: Operand, norm: nn.Module, dropout: nn.Module, *, wants_sum: bool
) -> tuple[Operand, Operand]:
    """Return norm(x + dropout(added)), and the sum if wants_sum, else x."""
    result = residual_norm(norm, dropout, values_of(x), values_of(added), wants_sum=wants_sum)
    pair = result.output, values_of(x) if result.sum is None else result.sum
    return (x.with_values(pair[0]), x.with_values(pair[1])) if isinstance(x, Ragged) else pair


class Encoder(nn.Module):
    """A stack of encoder layers (Vaswani et al. 2017, section 3.1); with a causal mask a decoder-only model.

    Submodules: layers (a ModuleList of EncoderLayer) and norm, the final norm after the last layer of a pre-norm stack,
    whose residual sum is not normalised otherwise; None in a post-norm stack.

    Args:
        spec: the options of every layer.
        num_layers: the number of layers.
    """

    def __init__(
        self, spec: LayerSpec, num_layers: int, *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.layers = nn.ModuleList(EncoderLayer(spec, **made) for _ in range(num_layers))
        self.norm = spec.new_norm(**made) if spec.norm == "pre" else None

    def forward(self, x: Operand, *, cache: KeyValueCache | None = None, **options: Any) -> Operand:
        """Compute all layers: (..., Q, M), or Ragged with values (N, M), as x is.

        Args:
            cache: of all layers.
            options: as in EncoderLayer, the same for all layers.

        Raises:
            ShapeError, ValueError: as EncoderLayer; a cache with another number of layers.
        """
        return _run_layers(self, x, cache, options)


class Decoder(nn.Module):
    """A stack of decoder layers with one memory (Vaswani et al. 2017, section 3.1).

    Submodules: layers (a ModuleList of DecoderLayer) and norm, the final norm of a pre-norm stack, else None.

    Args:
        spec: the options of every layer.
        num_layers: the number of layers.
    """

    def __init__(
        self, spec: LayerSpec, num_layers: int, *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.layers = nn.ModuleList(DecoderLayer(spec, **made) for _ in range(num_layers))
        self.norm = spec.new_norm(**made) if spec.norm == "pre" else None

    def forward(
        self, x: Operand, memory: Operand | None = None, *, cache: KeyValueCache | None = None, **options: Any
    ) -> Operand:
        """Compute all layers: (..., Q, M), or Ragged with values (N, M), as x is.

        Args:
            memory: the output of an encoder, as in DecoderLayer.
            cache: of all layers.
            options: as in DecoderLayer, the same for all layers.

        Raises:
            ShapeError, ValueError: as DecoderLayer; a cache with another number of layers.
        """
        return _run_layers(self, x, cache, {"memory": memory, **options})


def _run_layers(stack: Encoder | Decoder, x: Operand, cache: KeyValueCache | None, options: dict[str, Any]) -> Operand:
    layers = stack.layers
    if cache is not None and len(cache) != len(layers):
        raise ValueError(f"{type(stack).__name__}: the cache has {len(cache)} layers, the stack {len(layers)}")
    for n, layer in enumerate(layers):
        x = layer(x, cache=None if cache is None else cache[n], **options)
    return x if stack.norm is None else map_values(stack.norm, x)
