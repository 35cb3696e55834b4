"""Multi-head attention: four linear maps around `uwaga.attention`.

    MultiHead = Concat(head_1 ... head_H) W_O,  head_h = attention(x W_Q[h], y W_K[h], y W_V[h])

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, M model width,
N packed tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Never, cast

import torch
from torch import Tensor, nn
from torch.types import Device

from uwaga._base import keywords, threads
from uwaga._base.arguments import check
from uwaga._base.tracing import is_intercepted, is_plain_tensor, is_transformed
from uwaga.nn.kv_cache import CrossAttentionCache, KVView, SelfAttentionCache
from uwaga.nn.operand import check_width, one_per_row, values_of
from uwaga.nn.plain_modules import ZeroCenteredRMSNorm, apply_linear, is_plain_linear
from uwaga.nn.positions import Rotation
from uwaga.ops.attention import hooks
from uwaga.ops.attention.api import attention
from uwaga.ops.biases import DistanceBias
from uwaga.ops.linear import choose
from uwaga.ops.linear.api import linear_map
from uwaga.ops.linear.autograd import product_of
from uwaga.ops.linear.choose import Operands
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand, Ragged

# With fewer tokens than this, or than the input width, copying the weights takes longer than one product saves.
_LEAST_TOKENS = 256


class QKV(NamedTuple):
    """Operands of `uwaga.attention`, all padded or all Ragged."""

    query: Operand  # (..., H, Q, D); Ragged (N, H, D)
    key: Operand  # (..., G, K, D); Ragged (N, G, D)
    value: Operand  # (..., G, K, E); Ragged (N, G, E)


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2); fewer key heads than query
    heads after Ainslie et al., "GQA" (2023). H D and H E need not equal M.

    Weights: query.weight (H D, query_dim), key.weight (G D, key_dim), value.weight (G E, value_dim) and
    output.weight (output_dim, H E), with biases of the first size if requested; initialized like torch.nn.Linear.

    Args:
        d_model: M, the width of the inputs and of the output, unless an argument below sets another width.
        num_heads: H, query heads.
        num_kv_heads: G; H by default. H must be a multiple of it.
        d_k: D, of queries and keys; d_model // num_heads by default, which must then divide evenly.
        d_v: E; D by default.
        query_dim, key_dim, value_dim: widths of the three inputs; `d_model` by default.
        output_dim: `d_model` by default.
        bias: whether the query, key and value maps add a bias.
        output_bias: whether the output map adds a bias; as `bias` by default.
        dropout: probability of dropping an attention weight, in training.
        scale: factor of the scores; None for 1/sqrt(D), 1.0 for unscaled scores.
        softcap: c > 0 bounds the scores to c * tanh(s / c).
        qk_norm_eps: each head's queries and keys, of width D, go through an RMS norm before they are rotated (Henry et al. 2020;
            Qwen3), with this epsilon: the submodules query_norm and key_norm. None: they do not.
        qk_norm_zero_centered: whether that norm is `uwaga.nn.ZeroCenteredRMSNorm`, as in Gemma 3.

    Raises:
        ValueError: numbers of heads or widths that do not fit together.

    >>> import torch
    >>> from uwaga import Ragged
    >>> layer = MultiHeadAttention(12, num_heads=4, num_kv_heads=2)
    >>> layer(torch.randn(2, 5, 12)).shape
    torch.Size([2, 5, 12])
    >>> layer(Ragged(torch.randn(5, 12), torch.tensor([0, 2, 5]))).values.shape
    torch.Size([5, 12])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        query_dim: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        output_dim: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        softcap: float | None = None,
        qk_norm_eps: float | None = None,
        qk_norm_zero_centered: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **other: Never,
    ) -> None:
        if other:
            keywords.refuse(other, MultiHeadAttention.__init__)
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_heads if num_kv_heads is None else num_kv_heads
        wrong = ""
        if num_heads < 1 or self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            wrong = f"num_heads must be a multiple of num_kv_heads, not {num_heads} and {self.num_kv_heads}"
        elif d_k is None and d_model % num_heads:
            wrong = f"d_model {d_model} is not a multiple of num_heads {num_heads}; pass d_k"
        check(not wrong, f"MultiHeadAttention: {wrong}")
        self.d_k = d_model // num_heads if d_k is None else d_k
        self.d_v = self.d_k if d_v is None else d_v
        self.dropout, self.scale, self.softcap = dropout, scale, softcap

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        keys, values = self.num_kv_heads * self.d_k, self.num_kv_heads * self.d_v
        self.query = nn.Linear(query_dim or d_model, num_heads * self.d_k, bias, **factory)
        self.key = nn.Linear(key_dim or d_model, keys, bias, **factory)
        self.value = nn.Linear(value_dim or d_model, values, bias, **factory)
        output_bias = bias if output_bias is None else output_bias
        self.output = nn.Linear(num_heads * self.d_v, output_dim or d_model, output_bias, **factory)
        norm = ZeroCenteredRMSNorm if qk_norm_zero_centered else nn.RMSNorm
        self.query_norm, self.key_norm = (
            None if qk_norm_eps is None else norm(self.d_k, eps=qk_norm_eps, **factory) for _ in range(2)
        )

    def forward(
        self,
        query: Operand,
        key: Operand | None = None,
        value: Operand | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: DistanceBias | Tensor | None = None,
        rotary: Rotation | None = None,
        cache: SelfAttentionCache | CrossAttentionCache | None = None,
        sinks: Tensor | None = None,
        queries: Tensor | None = None,
        **other: Never,
    ) -> Operand:
        """Compute the output (..., Q, output_dim), or Ragged if the query is Ragged.

        Args:
            query: (..., Q, query_dim), or Ragged with values (N, query_dim).
            key: (..., K, key_dim) of the same kind and leading dimensions; None for the query itself.
            value: (..., K, value_dim); None for the key.
            mask, bias, sinks: as in `uwaga.attention`.
            rotary: rotates query and key by their positions; both must be of the same tokens.
            cache: one of a layer of a KeyValueCache, for rows of shape (B, Q, ...) or Ragged. A SelfAttentionCache appends the
                new keys and values, and attention reads all of them. A CrossAttentionCache is filled if it is empty; else
                key and value are read from it, and the arguments are ignored.
            queries: (R,) indices into the N tokens of a Ragged query, one for each row. Only these tokens are queries, and all tokens
                are keys. mask and bias refer to these queries; the output is Ragged with values (R, output_dim).

        Raises:
            ShapeError: an input of another width than the layer was made for, or operands that do not fit together.
            ValueError: as `uwaga.attention`; a value without a key; rotary with a key of other tokens; a cache whose rows
                do not fit, or while gradients are recorded; queries of a padded query, or together with a key or a cache.
        """
        if other:
            keywords.refuse(other, MultiHeadAttention.forward)
        if queries is None:
            query_heads, kv = self._query_and_kv(query, key, value, rotary, cache)
        else:
            if not isinstance(query, Ragged) or key is not None or cache is not None:
                raise ValueError("MultiHeadAttention: queries need a Ragged query, without a key or a cache")
            tokens, query = query, one_per_row(query.values[queries])
            query_heads = self._project("query", query, rotary and rotary.at(queries))
            kv = KVView(self._project("key", tokens, rotary), self._project("value", tokens))
        if kv.start_R is not None:
            mask, bias = kv.mask(mask), kv.bias(bias)
        options: dict[str, Any] = {
            "mask": mask,
            "bias": bias,
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": sinks,
            "dropout": self.dropout if self.training else 0.0,
        }
        if threads.any_open and (of_layer := hooks.hooks_of(self)):
            asked = hooks.Asked(query=query_heads, key=kv.key, value=kv.value, options=options, start=kv.start_R)
            heads = hooks.run_hooks(of_layer, asked, self, _compute)
        else:
            heads = attention(query_heads, kv.key, kv.value, **options)
        return _merge_heads(self.output, heads, query)

    def project(self, query: Operand, key: Operand, value: Operand, rotary: Rotation | None = None) -> QKV:
        """Project the three inputs and split them into heads, as views that `uwaga.attention` reads without a copy."""
        if key is query and value is query:
            linears = self.query, self.key, self.value
            if fuses(linears, values_of(query)):
                q, k, v = fused_linears(linears, values_of(query))
                return QKV(
                    _split_heads(q, query, self.num_heads, rotary, self.query_norm),
                    _split_heads(k, query, self.num_kv_heads, rotary, self.key_norm),
                    _split_heads(v, query, self.num_kv_heads, None),
                )
        return QKV(
            self._project("query", query, rotary),
            self._project("key", key, rotary),
            self._project("value", value),
        )

    def _project(self, name: str, x: Operand, rotary: Rotation | None = None) -> Operand:
        """Return (..., heads, Q, D), a view of (..., Q, heads * D) unless normed or rotated; or Ragged (N, heads, D). name: of the map."""
        linear: nn.Linear = getattr(self, name)
        check_width("MultiHeadAttention", name, x, linear.in_features)
        projected = apply_linear(linear, values_of(x))
        heads = self.num_heads if name == "query" else self.num_kv_heads
        norm = None if name == "value" else getattr(self, f"{name}_norm")
        return _split_heads(projected, x, heads, rotary, norm)

    def _query_and_kv(
        self,
        query: Operand,
        key: Operand | None,
        value: Operand | None,
        rotary: Rotation | None,
        cache: SelfAttentionCache | CrossAttentionCache | None,
    ) -> tuple[Operand, KVView]:
        """Return the query split into heads, and all keys and values that it attends to."""
        is_cross, wrong = isinstance(cache, CrossAttentionCache), ""
        if rotary is not None and (is_cross or not (key is None or key is query)):
            wrong = "rotary needs a query and a key of the same tokens, and key is another input"
        elif isinstance(cache, CrossAttentionCache) and cache.view is not None:
            return self._project("query", query), cache.view
        elif key is None and is_cross:
            wrong = "an empty CrossAttentionCache needs a key"
        elif key is None and value is not None:
            wrong = "a value without a key; pass key=query for the query's own tokens"
        if wrong:
            raise ValueError(f"MultiHeadAttention: {wrong}")
        key = query if key is None else key
        qkv = self.project(query, key, key if value is None else value, rotary)
        if isinstance(cache, SelfAttentionCache):
            # Packed rows of one length, as in generation, are padded ones too: then keys are read from the buffer directly.
            if not cache.is_empty and _have_one_length(qkv.query):
                qkv = QKV(*map(_as_padded, qkv))
            return qkv.query, cache.append(qkv.key, qkv.value)
        return qkv.query, KVView(qkv.key, qkv.value) if cache is None else cache.fill(qkv.key, qkv.value)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """Return a layer with a copy of the weights of torch.nn.MultiheadAttention.

        It gives the same numbers for inputs (..., Q, M), whatever the batch_first of the module.

        Raises:
            ValueError: the module was made with add_bias_kv or add_zero_attn.
        """
        hint = "; instead, call the layer with sinks=torch.zeros(num_heads)"
        for option, is_on, more in (
            ("add_bias_kv", module.bias_k is not None, ""),
            ("add_zero_attn", module.add_zero_attn, hint),
        ):
            check(not is_on, f"MultiHeadAttention.from_torch: {option}=True is not supported{more}")
        weight = module.out_proj.weight
        layer = cls(
            module.embed_dim,
            module.num_heads,
            key_dim=module.kdim,
            value_dim=module.vdim,
            bias=module.in_proj_bias is not None,
            dropout=module.dropout,
            device=weight.device,
            dtype=weight.dtype,
        )
        layer.load_state_dict(_state_of_torch(module))
        return layer.train(module.training)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, d_k={self.d_k}, d_v={self.d_v}"


def _compute(asked: hooks.Asked) -> Operand:
    return attention(asked.query, asked.key, asked.value, **asked.options)


def _split_heads(
    projected: Tensor, x: Operand, heads: int, rotary: Rotation | None, norm: nn.Module | None = None
) -> Operand:
    """Return the projection of x, (..., Q, heads * D) or (N, heads * D), split into heads, normed and rotated."""
    split = projected.view(*projected.shape[:-1], heads, projected.shape[-1] // heads)
    split = split if norm is None else norm(split)
    rotated = split if rotary is None else rotary.rotate(split)
    return x.with_values(rotated) if isinstance(x, Ragged) else rotated.transpose(-3, -2)


def _merge_heads(linear: nn.Linear, heads: Operand, query: Operand) -> Operand:
    """Return the outputs of all heads (..., H, Q, E) or (N, H, E), concatenated and projected; of the kind of the query.

    Heads come after tokens in memory already, so that concatenating them is a view.
    """
    if isinstance(heads, Ragged) and isinstance(query, Ragged):
        return query.with_values(apply_linear(linear, heads.values.flatten(1)))
    assert isinstance(heads, Tensor)
    output = apply_linear(linear, heads.transpose(-3, -2).flatten(-2))
    return query.with_values(output.flatten(0, 1)) if isinstance(query, Ragged) else output


def _have_one_length(x: Operand) -> bool:
    """Return whether a packed batch has rows of one length only: R times the longest row is N."""
    return isinstance(x, Ragged) and x.values.shape[0] == len(x) * x.max_length > 0


def _as_padded(x: Operand) -> Tensor:
    """Return (R, H, Q, D), a view of packed rows of one length."""
    assert isinstance(x, Ragged)
    return x.values.unflatten(0, (len(x), x.max_length)).transpose(1, 2)


def _state_of_torch(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    names = ("query", "key", "value")
    if module.in_proj_weight is None:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    else:
        weights = module.in_proj_weight.chunk(3)
    state = {f"{name}.weight": weight for name, weight in zip(names, weights, strict=True)}
    if module.in_proj_bias is not None:
        state |= {f"{name}.bias": bias for name, bias in zip(names, module.in_proj_bias.chunk(3), strict=True)}
    return state | {f"output.{name}": x for name, x in module.out_proj.named_parameters()}


# Query, key and value of the same tokens by one matrix product, while gradients are recorded: it is faster than three, forward and backward,
# although the weights are concatenated for it, if there are enough tokens to pay for that copy. The gradients of the weights are one product too.


def fuses(linears: Sequence[nn.Linear], x: Tensor) -> bool:
    """Return whether `fused_linears` may replace the separate calls: many float32 tokens on the CPU with gradients, no tracer,
    transform or autocast active, and plain nn.Linear modules of one input width without hooks."""
    if not torch.is_grad_enabled() or x.dtype != torch.float32 or not x.is_cpu or not is_plain_tensor(x):
        return False
    if is_intercepted() or is_transformed() or torch.is_autocast_enabled("cpu"):
        return False
    width, has_bias, needs_grad = x.shape[-1], linears[0].bias is not None, x.requires_grad
    if x.numel() < max(_LEAST_TOKENS, width) * width:
        return False
    for linear in linears:
        # Other modules and hooks must be called; weights of another dtype or subclass need their own product.
        if not is_plain_linear(linear):
            return False
        weight, bias = linear.weight, linear.bias
        if weight.dtype != torch.float32 or not is_plain_tensor(weight) or (bias is not None) != has_bias:
            return False
        if weight.shape[1] != width:  # the separate call raises the error
            return False
        needs_grad = needs_grad or weight.requires_grad
    return needs_grad


def fused_linears(linears: Sequence[nn.Linear], x: Tensor) -> tuple[Tensor, ...]:
    """Return the outputs (..., W) of all linears for x (..., M), as views of one tensor; batch-invariant as `uwaga.linear` is."""
    weights = [linear.weight for linear in linears]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    mapped = cast(Tensor, _FusedLinears.apply(x, len(weights), *weights, *biases))
    return mapped.split([weight.shape[0] for weight in weights], -1)


class _FusedLinears(torch.autograd.Function):
    """(..., sum of W) of x (..., M), weights (W, M) each, and as many biases (W,) or none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:count], parameters[count:]
        ctx.weight = torch.cat(weights)
        ctx.save_for_backward(x, *weights)  # detects changes in place, and allows double backward
        bias = torch.cat(biases) if biases else None
        ctx.engine = choose.engine_name(Operands(x, ctx.weight, bias, None), None)
        return linear_map(x, ctx.weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        weight = torch.cat(weights) if torch.is_grad_enabled() else ctx.weight
        widths = [weight.shape[0] for weight in weights]
        grad_NW, x_NM = grad.reshape(-1, sum(widths)), x.reshape(-1, weight.shape[1])
        product = product_of(ctx.engine)
        needs_x, needs_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2 : 2 + len(weights)])
        needs_biases = any(ctx.needs_input_grad[2 + len(weights) :])
        grad_weights = product(grad_NW.t(), x_NM.t()).split(widths) if needs_weights else (None,) * len(weights)
        grad_biases = (
            grad_NW.sum(0).split(widths) if needs_biases else (None,) * (len(ctx.needs_input_grad) - 2 - len(weights))
        )
        return product(grad_NW, weight.t()).view_as(x) if needs_x else None, None, *grad_weights, *grad_biases
