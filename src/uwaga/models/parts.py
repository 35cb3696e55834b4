"""What a Transformer is made of: embeddings, stacks of layers, and heads over their hidden states.

Letters: B batch, Q tokens, M model width, N packed tokens, V vocabulary, C classes.
"""

from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from uwaga._base.tracing import is_plain_eager
from uwaga.models.configuration import Config
from uwaga.nn import (
    DecoderLayer,
    EncoderLayer,
    KeyValueCache,
    LayerSpec,
    LearnedPositions,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
)
from uwaga.nn.operand import map_values, values_of
from uwaga.nn.plain_modules import apply_dropout, apply_linear, is_plain
from uwaga.nn.positions import alibi_slopes, roberta_positions, token_positions
from uwaga.ops.biases import AlibiBias, RelativeBias
from uwaga.ops.linear.api import linear_map
from uwaga.ops.masks import Causal, Mask, Window
from uwaga.ops.norms import Lookup, embedding_norm
from uwaga.ops.ragged import Operand, Ragged

# Options of a layer that a configuration has under the same names.
_SHARED = [each.name for each in fields(LayerSpec) if each.name in Config.__dataclass_fields__]
_ACTIVATIONS: dict[str | None, Any] = {"tanh": torch.tanh, "gelu": functional.gelu, "relu": torch.relu}


def _spec_of(config: Config, n: int = 0, *, is_second: bool = False) -> LayerSpec:
    """What layer n consists of; is_second: of the decoder of a model with both stacks."""
    spec = LayerSpec(**{name: getattr(config, name) for name in _SHARED})
    if config.scale_by_layer:
        spec = replace(spec, scale=(config.head_width**-0.5 if spec.scale is None else spec.scale) / (n + 1))
    if is_second:
        heads, width = config.num_decoder_heads or config.num_heads, config.decoder_d_ff or config.d_ff
        spec = replace(spec, num_heads=heads, d_ff=width)
    return spec


def _norm_of(config: Config, width: int) -> nn.Module:
    """A norm as the layers have it, of another width."""
    return replace(_spec_of(config), d_model=width).new_norm()


class Embeddings(nn.Module):
    """The sum of the embeddings of tokens, of token types and of positions, with a norm and a linear map where the model has them
    (Devlin et al., "BERT", 2019, figure 2).

    Submodules: token_embedding, positions, token_types, norm and projection, each but the first None where the model has none.

    Args:
        vocab_size: V.
    """

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        width, kind = config.embedding_width, config.position_encoding
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.positions: Any = None
        if kind == "learned":
            assert config.max_position_embeddings is not None
            self.positions = LearnedPositions(config.max_position_embeddings, width)
        elif kind == "sinusoidal":
            self.positions = SinusoidalPositions(width, layout=config.sinusoid_layout)
        self.token_types = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.norm: Any = _norm_of(config, width) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.projection = nn.Linear(width, config.d_model) if config.projects_embeddings else None
        self.factor = config.d_model**0.5 if config.scale_embedding else 1.0
        self.rounds_factor = config.rounds_scale
        # RoBERTa's first position is one after this; padding tokens have this position.
        self.padding_position = config.pad_token_id if config.positions_after_padding else None

    def forward(self, ids: Operand, token_types: Operand | None = None, start: int | Tensor = 0) -> Operand:
        """(..., Q, M), or Ragged (N, M), from ids (..., Q), or Ragged (N,). token_types None: all 0. start: the position of the first
        token, as in `uwaga.nn.LearnedPositions`."""
        x = self._one_operation(ids, token_types) if self._is_plain() else self._sum(ids, token_types, start)
        x = apply_dropout(self.dropout, x)
        x = x if self.projection is None else apply_linear(self.projection, x)
        return ids.with_values(x) if isinstance(ids, Ragged) else x

    def words(self, ids: Tensor) -> Tensor:
        """(..., M): the embeddings of tokens alone, from ids (...)."""
        x: Tensor = self.token_embedding(ids)
        if self.rounds_factor:
            return x * torch.tensor(self.factor, dtype=x.dtype)
        return x if self.factor == 1.0 else x * self.factor

    def position_ids(self, ids: Operand, start: int | Tensor = 0) -> Tensor:
        """The rows of learned positions: (..., Q), or (N,) of Ragged ids."""
        if self.padding_position is not None:
            return values_of(roberta_positions(ids, self.padding_position))
        values = values_of(ids)
        wide = ids.with_values(values[..., None]) if isinstance(ids, Ragged) else values[..., None]
        return token_positions("Embeddings", wide, start).expand(values.shape)

    def _sum(self, ids: Operand, token_types: Operand | None, start: int | Tensor) -> Tensor:
        values = values_of(ids)
        x = self.words(values)
        if self.token_types is not None:
            x = x + self.token_types(torch.zeros_like(values) if token_types is None else values_of(token_types))
        if self.padding_position is not None and self.positions is not None:
            x = x + functional.embedding(self.position_ids(ids), self.positions.weight)
        elif self.positions is not None:
            x = values_of(self.positions(ids.with_values(x) if isinstance(ids, Ragged) else x, start))
        return x if self.norm is None else self.norm(x)

    def _is_plain(self) -> bool:
        """Whether the submodules may be computed by one operation: nobody replaced them, hooked into them or traces them."""
        tables = [self.token_embedding] if self.token_types is None else [self.token_embedding, self.token_types]
        return (
            self.norm is not None
            and self.positions is not None
            and is_plain_eager()
            and is_plain(self.positions, LearnedPositions)
            and is_plain(self.norm, nn.LayerNorm)
            and all(is_plain(x, nn.Embedding) and x.padding_idx is None for x in tables)
            and not any(x.max_norm or x.sparse or x.scale_grad_by_freq for x in tables)
        )

    def _one_operation(self, ids: Operand, token_types: Operand | None) -> Tensor:
        """The norm of the sum of the embeddings, in one operation: its bits are not those of several."""
        types = None
        if self.token_types is not None:
            types = Lookup(self.token_types.weight, None if token_types is None else values_of(token_types))
        return embedding_norm(
            Lookup(self.token_embedding.weight, values_of(ids)),
            types,
            Lookup(self.positions.weight, self.position_ids(ids)),
            weight=self.norm.weight,
            bias=self.norm.bias,
            eps=self.norm.eps,
        )


class Stack(nn.Module):
    """The layers of an encoder or a decoder, with what all of them are told of positions.

    Submodules: layers (a ModuleList), norm, the final norm of a pre-norm stack, else None, and positions, the relative position bias of all
    layers, else None.

    Args:
        count: the number of layers.
        is_second: of a decoder that reads an encoder's output.
    """

    def __init__(self, config: Config, count: int, *, is_second: bool = False) -> None:
        super().__init__()
        self.config, self.crosses, self.is_causal = config, is_second, is_second or config.is_causal
        made = DecoderLayer if is_second else EncoderLayer
        self.layers = nn.ModuleList(made(_spec_of(config, n, is_second=is_second)) for n in range(count))
        if not config.first_norm:
            self.layers[0].attention_norm = nn.Identity()
        if config.num_hidden_groups is not None:
            _share_weights(self)
            self.register_load_state_dict_post_hook(_share_weights)
        self.norm = _norm_of(config, config.d_model) if config.norm == "pre" else None
        self.positions: RelativePositions | None = None
        if config.num_buckets is not None:
            self.positions = RelativePositions(
                config.num_heads,
                num_buckets=config.num_buckets,
                max_distance=config.max_distance,
                bidirectional=not self.is_causal,
            )
        self.dropout = nn.Dropout(config.final_dropout)
        width = config.head_width
        # Of each layer; ids and padding may hide more.
        self.masks: list[Mask | None] = [Causal() if self.is_causal else None] * count
        if config.windows:
            window = (lambda n: Window(n - 1, 0)) if self.is_causal else lambda n: Window(n, n)
            self.masks = [self.masks[0] if each is None else window(each) for each in config.windows]
        self.rotary = {
            rope: RotaryPositions(width, base=rope.base, layout="halves", scaling=rope.scaling)
            for rope in dict.fromkeys(config.ropes)
        }

    def forward(
        self,
        x: Operand,
        padding: Mask | Tensor | None,
        *,
        memory: Operand | None = None,
        cache: KeyValueCache | None = None,
        states: bool = False,
        only: str | None = None,
        start: int | Tensor = 0,
    ) -> tuple[Operand, tuple[Operand, ...] | None]:
        """The last hidden states, after the final norm, and with `states` the input and the output of every layer, before it.

        Args:
            padding: the mask that hides it: of x, in a decoder that reads an encoder's output of that.
            memory, cache: as in `Transformer.decode`.
            only: as in `Transformer.forward`.
            start: the position of the first token.
        """
        every = [x]
        rotations = {rope: rotary(x, start) for rope, rotary in self.rotary.items()}
        bias, ropes = self._bias(), self.config.ropes
        for n, layer in enumerate(self.layers):
            mask: Mask | Tensor | None = self.masks[n]
            told: dict[str, Any] = {"bias": bias, "cache": None if cache is None else cache[n]}
            if self.crosses:
                x = layer(x, memory, mask=mask, memory_mask=padding, **told)
            else:
                mask = mask if padding is None else padding if mask is None else mask & padding
                last = {"only": only} if only and n == len(self.layers) - 1 else {}
                x = layer(x, mask=mask, rotary=rotations[ropes[n]] if ropes else None, **told, **last)
            if states:
                every.append(x)
        x = x if self.norm is None else map_values(self.norm, x)
        return map_values(partial(apply_dropout, self.dropout), x), tuple(every) if states else None

    def _bias(self) -> AlibiBias | RelativeBias | None:
        """The bias of self-attention. ALiBi's is made here: a buffer that is not saved would be lost on loading."""
        if self.positions is not None:
            bias: RelativeBias = self.positions()
            return bias
        if self.config.position_encoding != "alibi":
            return None
        attention: Any = self.layers[0].attention
        slopes = self.config.alibi_slopes or alibi_slopes(attention.num_heads)
        return AlibiBias(torch.tensor(slopes, dtype=torch.float32, device=attention.query.weight.device))


def _share_weights(stack: Stack, _: object = None) -> None:
    """Give layers with one number in config.layer_weights the same parameters; after loading too, which may replace them."""
    first: dict[int, nn.Module] = {}
    for layer, number in zip(stack.layers, stack.config.layer_weights, strict=True):
        for path, parameter in first.setdefault(number, layer).named_parameters():
            module, _, name = path.rpartition(".")
            setattr(layer.get_submodule(module), name, parameter)


class LanguageModelHead(nn.Module):
    """Logits of the vocabulary, (..., V), from hidden states (..., M).

    Submodules: dense, which gives the width of the embeddings, and norm, as in BERT (Devlin et al. 2019, section 3.1) and ModernBERT, else
    None; decoder, None where it is tied to the token embedding; the parameter bias (V) or None.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, activation = config.embedding_width, config.head_activation
        self.dense = nn.Linear(config.d_model, width, bias=config.head_bias) if activation else None
        self.norm = _norm_of(config, width) if activation else None
        self.activation = activation
        vocabulary, is_tied = config.output_vocab_size, config.tie_word_embeddings
        self.decoder = None if is_tied else nn.Linear(width, vocabulary, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if config.lm_head_bias else None
        self.factor = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0
        self.softcap = config.logit_softcap

    def forward(self, x: Tensor, words_VM: Tensor, *, batch_invariant: bool = True) -> Tensor:
        """words_VM: the token embedding."""
        if self.dense is not None and self.norm is not None:
            x = self.norm(apply_linear(self.dense, x, activation=self.activation))
        x = x if self.factor == 1.0 else x * self.factor
        weight_VM = words_VM if self.decoder is None else self.decoder.weight
        return self.cap(linear_map(x, weight_VM, self.bias, batch_invariant=batch_invariant))

    def cap(self, logits: Tensor) -> Tensor:
        """c * tanh(logits / c), where the model has a softcap c."""
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


class Pooler(nn.Module):
    """tanh(dense(hidden state of the first token)), (B, M). Submodule: dense."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)

    def forward(self, first_BM: Tensor) -> Tensor:
        return torch.tanh(apply_linear(self.dense, first_BM))


class ClassHead(nn.Module):
    """Logits of the classes of a sequence or of each token, (..., C), from hidden states or the pooler's output (..., M). Submodules: dense (None
    without an activation), output.

    Args:
        activation: "tanh", "gelu" or "relu" of a linear map before that of the classes; None: there is none.
    """

    def __init__(self, config: Config, activation: str | None, dropout: float) -> None:
        super().__init__()
        self.dense = None if activation is None else nn.Linear(config.d_model, config.d_model)
        self.output = nn.Linear(config.d_model, len(config.labels))
        self.activation: Any = _ACTIVATIONS.get(activation)
        self.dropout = nn.Dropout(dropout)
        self.input_dropout = nn.Dropout(0.0 if activation == "relu" else dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.dense is not None:
            x = self.activation(apply_linear(self.dense, self.input_dropout(x)))
        return apply_linear(self.output, apply_dropout(self.dropout, x))


class NoInitialisation(TorchFunctionMode):
    """Leaves parameters as they are made. On the meta device random numbers would be nothing, and import torch._dynamo: 2 s."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)
