"""Multi-head attention: four linear maps around `uwaga.attention`.

    MultiHead = Concat(head_1 ... head_H) W_O,  head_h = attention(x W_Q[h], y W_K[h], y W_V[h])

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, M model width,
N packed tokens.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from uwaga.nn.carry import carry, need_width
from uwaga.ops.attention.api import attention
from uwaga.ops.attention.lower import Operand
from uwaga.ops.biases import DistanceBias
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Ragged

# What a watcher is called with: query, key and value as they enter `uwaga.attention`, and its options by name.
Watcher = Callable[[Operand, Operand, Operand, dict[str, object]], None]


class Heads(NamedTuple):
    """Operands of `uwaga.attention`, of one kind: padded, or Ragged with heads inside tokens."""

    query: Operand  # (..., H, Q, D); Ragged (N, H, D)
    key: Operand  # (..., G, K, D); Ragged (N, G, D)
    value: Operand  # (..., G, K, E); Ragged (N, G, E)


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2); fewer key heads than query
    heads after Ainslie et al., "GQA" (2023). H D and H E need not equal M.

    Weights: query.weight (H D, query_input), key.weight (G D, key_input), value.weight (G E, value_input) and
    output.weight (output_width, H E), with biases of the first size where asked; drawn as torch.nn.Linear draws them.

    Args:
        width: M, the width of the inputs and of the output where nothing else is said.
        heads: H, query heads.
        key_heads: G; H by default. H must be a multiple of it.
        key_width: D, of queries and keys; width // heads by default, which must then divide evenly.
        value_width: E; D by default.
        query_input, key_input, value_input: widths of the three inputs; `width` by default.
        output_width: `width` by default.
        bias: whether the query, key and value maps add a bias.
        output_bias: whether the output map does; as `bias` by default.
        dropout: probability of dropping an attention weight, in training.
        scale: of the scores; None for 1/sqrt(D), 1.0 for none.
        softcap: c > 0 bounds the scores to c * tanh(s / c).

    Raises:
        ValueError: head counts or widths that do not fit together.

    >>> import torch
    >>> layer = MultiHeadAttention(12, heads=4, key_heads=2)
    >>> layer(torch.randn(2, 5, 12)).shape
    torch.Size([2, 5, 12])
    >>> layer(Ragged(torch.randn(5, 12), torch.tensor([0, 2, 5]))).values.shape
    torch.Size([5, 12])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_heads: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        query_input: int | None = None,
        key_input: int | None = None,
        value_input: int | None = None,
        output_width: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        softcap: float | None = None,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        self.heads, self.key_heads = heads, heads if key_heads is None else key_heads
        _check(width, heads, self.key_heads, key_width)
        self.key_width = width // heads if key_width is None else key_width
        self.value_width = self.key_width if value_width is None else value_width
        self.dropout, self.scale, self.softcap = dropout, scale, softcap
        self.watcher: Watcher | None = None

        made = {"device": device, "dtype": dtype}
        keys, values = self.key_heads * self.key_width, self.key_heads * self.value_width
        self.query = nn.Linear(query_input or width, heads * self.key_width, bias, **made)
        self.key = nn.Linear(key_input or width, keys, bias, **made)
        self.value = nn.Linear(value_input or width, values, bias, **made)
        output_bias = bias if output_bias is None else output_bias
        self.output = nn.Linear(heads * self.value_width, output_width or width, output_bias, **made)

    def forward(
        self,
        query: Operand,
        key: Operand | None = None,
        value: Operand | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: DistanceBias | Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Operand:
        """The mixed values, (..., Q, output_width) or Ragged as the query is.

        Args:
            query: (..., Q, query_input), or Ragged with values (N, query_input).
            key: (..., K, key_input) of the same kind and leading dimensions; None for the query itself.
            value: (..., K, value_input); None for the key.
            mask, bias, sinks: as in `uwaga.attention`.

        Raises:
            ShapeError: an input of another width than the layer was made for, or operands that do not fit together.
            ValueError: as `uwaga.attention`; a value without a key.
        """
        if key is None and value is not None:
            raise ValueError("MultiHeadAttention: a value without a key; pass key=query for the query's own tokens")
        key = query if key is None else key
        heads = self.project(query, key, key if value is None else value)
        options = {
            "mask": mask,
            "bias": bias,
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": sinks,
            "dropout": self.dropout if self.training else 0.0,
        }
        if self.watcher is not None:
            self.watcher(*heads, options)
        return self._merge(attention(*heads, **options))

    def project(self, query: Operand, key: Operand, value: Operand) -> Heads:
        """The three inputs mapped and cut into heads: views that `uwaga.attention` reads in place."""
        return Heads(
            _split(self.query, "query", query, self.heads),
            _split(self.key, "key", key, self.key_heads),
            _split(self.value, "value", value, self.key_heads),
        )

    def _merge(self, mixed: Operand) -> Operand:
        """(..., Q, output_width) from (..., H, Q, E); heads lie inside tokens already, so that joining them is a view."""
        if isinstance(mixed, Ragged):
            return mixed.with_values(self.output(mixed.values.flatten(1)))
        return self.output(mixed.transpose(-3, -2).flatten(-2))

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """A layer with copies of the weights of torch's: the same numbers for inputs (..., Q, M), whatever its batch_first.

        Raises:
            ValueError: the module was made with add_bias_kv or add_zero_attn.
        """
        from uwaga.nn.from_torch import attention_from_torch

        return attention_from_torch(cls, module)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, key_heads={self.key_heads}, key_width={self.key_width}, value_width={self.value_width}"


def _split(linear: nn.Linear, name: str, x: Operand, heads: int) -> Operand:
    """(..., heads, Q, width of one), or (N, heads, width of one) of a Ragged batch."""
    need_width("MultiHeadAttention", name, x, linear.in_features)
    mapped = carry(lambda values: linear(values).unflatten(-1, (heads, -1)), x)
    return mapped if isinstance(mapped, Ragged) else mapped.transpose(-3, -2)


def _check(width: int, heads: int, key_heads: int, key_width: int | None) -> None:
    if heads < 1 or key_heads < 1 or heads % key_heads:
        raise ValueError(f"MultiHeadAttention: heads must be a multiple of key_heads, not {heads} and {key_heads}")
    if key_width is None and width % heads:
        raise ValueError(f"MultiHeadAttention: width {width} is no multiple of {heads} heads; say key_width")
