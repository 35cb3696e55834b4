"""Multi-head attention: four linear maps around `uwaga.attention`.

    MultiHead = Concat(head_1 ... head_H) W_O,  head_h = attention(x W_Q[h], y W_K[h], y W_V[h])

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, M model width,
N packed tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

from uwaga._base import renamed
from uwaga.nn import joint
from uwaga.nn.carry import contents
from uwaga.nn.heads import Asked, Heads, extended, merge, split, split_jointly
from uwaga.nn.held import Held
from uwaga.nn.rotary import Rotation
from uwaga.nn.slots import CrossSlot, SelfSlot
from uwaga.ops.attention.api import attention
from uwaga.ops.biases import DistanceBias
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand

# What a watcher is called with: query, key and value as they enter `uwaga.attention`, and its options by name.
Watcher = Callable[[Operand, Operand, Operand, dict[str, Any]], None]


@renamed.parameters(
    width="d_model",
    heads="num_heads",
    key_heads="num_kv_heads",
    key_width="d_k",
    value_width="d_v",
    query_input="query_dim",
    key_input="key_dim",
    value_input="value_dim",
    output_width="output_dim",
)
class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2); fewer key heads than query
    heads after Ainslie et al., "GQA" (2023). H D and H E need not equal M.

    Weights: query.weight (H D, query_dim), key.weight (G D, key_dim), value.weight (G E, value_dim) and
    output.weight (output_dim, H E), with biases of the first size where asked; drawn as torch.nn.Linear draws them.

    Args:
        d_model: M, the width of the inputs and of the output where nothing else is said.
        num_heads: H, query heads.
        num_kv_heads: G; H by default. H must be a multiple of it.
        d_k: D, of queries and keys; d_model // num_heads by default, which must then divide evenly.
        d_v: E; D by default.
        query_dim, key_dim, value_dim: widths of the three inputs; `d_model` by default.
        output_dim: `d_model` by default.
        bias: whether the query, key and value maps add a bias.
        output_bias: whether the output map does; as `bias` by default.
        dropout: probability of dropping an attention weight, in training.
        scale: of the scores; None for 1/sqrt(D), 1.0 for none.
        softcap: c > 0 bounds the scores to c * tanh(s / c).

    Raises:
        ValueError: head counts or widths that do not fit together.

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
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_heads if num_kv_heads is None else num_kv_heads
        _check(d_model, num_heads, self.num_kv_heads, d_k)
        self.d_k = d_model // num_heads if d_k is None else d_k
        self.d_v = self.d_k if d_v is None else d_v
        self.dropout, self.scale, self.softcap = dropout, scale, softcap
        self.watcher: Watcher | None = None

        made: dict[str, Any] = {"device": device, "dtype": dtype}
        keys, values = self.num_kv_heads * self.d_k, self.num_kv_heads * self.d_v
        self.query = nn.Linear(query_dim or d_model, num_heads * self.d_k, bias, **made)
        self.key = nn.Linear(key_dim or d_model, keys, bias, **made)
        self.value = nn.Linear(value_dim or d_model, values, bias, **made)
        output_bias = bias if output_bias is None else output_bias
        self.output = nn.Linear(num_heads * self.d_v, output_dim or d_model, output_bias, **made)

    def forward(
        self,
        query: Operand,
        key: Operand | None = None,
        value: Operand | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: DistanceBias | Tensor | None = None,
        rotary: Rotation | None = None,
        cache: SelfSlot | CrossSlot | None = None,
        sinks: Tensor | None = None,
    ) -> Operand:
        """The mixed values, (..., Q, output_dim) or Ragged as the query is.

        Args:
            query: (..., Q, query_dim), or Ragged with values (N, query_dim).
            key: (..., K, key_dim) of the same kind and leading dimensions; None for the query itself.
            value: (..., K, value_dim); None for the key.
            mask, bias, sinks: as in `uwaga.attention`.
            rotary: turns query and key by their positions; of the query's tokens, which must be the key's.
            cache: keys and values of earlier tokens, one slot of a KeyValueCache; then the rows are one dimension, (B, Q,
                ...). A SelfSlot takes the new ones and attention reads them all; a CrossSlot takes them where it is empty,
                and else stands for key and value, which are not read. With one, the last bits may depend on how many
                tokens there are; without, a token gives the same ones among any others (see `uwaga.nn.steady`).

        Raises:
            ShapeError: an input of another width than the layer was made for, or operands that do not fit together.
            ValueError: as `uwaga.attention`; a value without a key; rotary with a key of other tokens; a cache whose rows
                do not fit, or while gradients are recorded.
        """
        asked, held = self._asked(query, key, value, rotary, cache)
        options: dict[str, Any] = {
            "mask": held.mask(mask),
            "bias": held.bias(bias),
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": sinks,
            "dropout": self.dropout if self.training else 0.0,
        }
        if self.watcher is not None:
            self.watcher(asked, held.key, held.value, options)
        mixed = attention(asked, held.key, held.value, **options)
        return merge(self.output, mixed, query, steadily=cache is None)

    def project(
        self, query: Operand, key: Operand, value: Operand, rotary: Rotation | None = None, *, steadily: bool = True
    ) -> Heads:
        """The three inputs mapped and cut into heads: views that `uwaga.attention` reads in place."""
        if key is query and value is query:
            linears = self.query, self.key, self.value
            if joint.is_worthwhile(linears, contents(query)):
                return split_jointly(linears, query, (self.num_heads, self.num_kv_heads, self.num_kv_heads), rotary)
        return Heads(
            split(self.query, "query", query, self.num_heads, rotary, steadily=steadily),
            split(self.key, "key", key, self.num_kv_heads, rotary, steadily=steadily),
            split(self.value, "value", value, self.num_kv_heads, steadily=steadily),
        )

    def _asked(
        self,
        query: Operand,
        key: Operand | None,
        value: Operand | None,
        rotary: Rotation | None,
        cache: SelfSlot | CrossSlot | None,
    ) -> Asked:
        """What attention reads."""
        is_cross = isinstance(cache, CrossSlot)
        if rotary is not None and (is_cross or not (key is None or key is query)):
            same = "rotary turns a query and a key of the same tokens, and the key is another"
            raise ValueError(f"MultiHeadAttention: {same}")
        if isinstance(cache, CrossSlot) and cache.held is not None:
            return Asked(split(self.query, "query", query, self.num_heads, steadily=False), cache.held)
        if key is None and is_cross:
            raise ValueError("MultiHeadAttention: an empty CrossSlot needs a key to look at")
        if key is None and value is not None:
            raise ValueError("MultiHeadAttention: a value without a key; pass key=query for the query's own tokens")
        key = query if key is None else key
        heads = self.project(query, key, key if value is None else value, rotary, steadily=cache is None)
        if isinstance(cache, SelfSlot):
            return extended(heads, cache)
        held = Held(heads.key, heads.value) if cache is None else cache.fill(heads.key, heads.value)
        return Asked(heads.query, held)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """A layer with copies of the weights of torch's: the same numbers for inputs (..., Q, M), whatever its batch_first.

        Raises:
            ValueError: the module was made with add_bias_kv or add_zero_attn.
        """
        from uwaga.nn.from_torch import attention_from_torch

        return attention_from_torch(cls, module)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, d_k={self.d_k}, d_v={self.d_v}"


def _check(d_model: int, num_heads: int, num_kv_heads: int, d_k: int | None) -> None:
    if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
        given = f"{num_heads} and {num_kv_heads}"
        raise ValueError(f"MultiHeadAttention: num_heads must be a multiple of num_kv_heads, not {given}")
    if d_k is None and d_model % num_heads:
        raise ValueError(f"MultiHeadAttention: d_model {d_model} is not a multiple of num_heads {num_heads}; pass d_k")
