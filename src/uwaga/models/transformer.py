"""The Transformer: an encoder, a decoder, or both, and heads over their hidden states; and the parts that it is made of.

Letters: B batch, Q tokens, K tokens of the encoder, M model width, N packed tokens, R ragged rows, V vocabulary, C classes.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from uwaga._base.shapes import shape_error
from uwaga._base.tracing import is_plain_eager, is_readable
from uwaga.models.configuration import Config
from uwaga.models.model import Decoding, Model
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
from uwaga.nn.operand import INTEGERS, check_ids, map_values, named_shape, one_per_row, tokens_of_rows, values_of
from uwaga.nn.plain_modules import apply_dropout, apply_linear, is_plain
from uwaga.nn.positions import alibi_slopes, roberta_positions, token_positions
from uwaga.ops.biases import AlibiBias, RelativeBias
from uwaga.ops.engine_choice import Choice
from uwaga.ops.linear.api import linear_map
from uwaga.ops.masks import Causal, KeyLengths, Mask, Window
from uwaga.ops.norms import Lookup, embedding_norm
from uwaga.ops.ragged import Operand, Ragged

_NAME = "Transformer"
_OF_FIRST_TOKEN = {"pooled", "sequence"}  # outputs
# Options of a layer that a configuration has under the same names.
_SHARED = [option.name for option in fields(LayerSpec) if option.name in Config.__dataclass_fields__]
_ACTIVATIONS: dict[str | None, Any] = {"tanh": torch.tanh, "gelu": functional.gelu, "relu": torch.relu}


class Output(NamedTuple):
    """The outputs of a Transformer. Outputs of tokens are Ragged if the ids are.

    A field is None if the model does not have it or the call does not ask for it (`outputs=`, `output_hidden_states=`).

    Attributes:
        last_hidden_state: (B, Q, M), after the last layer and the final norm; of the decoder if the model has both, None without decoder_ids.
        logits: (B, Q, V), of the next token; in an encoder, of the token itself.
        pooled: (B, M) or (R, M), of the first token, as BERT's pooler.
        sequence: (B, C), logits of the classes of the text.
        tokens: (B, Q, C), logits of the classes of each token.
        memory: (B, K, M), the encoder's output, which a decoder reads.
        hidden_states: of the embeddings and of every layer, before the final norm.
        encoder_hidden_states: of the encoder, if the model has both.
    """

    last_hidden_state: Operand | None = None
    logits: Operand | None = None
    pooled: Tensor | None = None
    sequence: Tensor | None = None
    tokens: Operand | None = None
    memory: Operand | None = None
    hidden_states: tuple[Operand, ...] | None = None
    encoder_hidden_states: tuple[Operand, ...] | None = None


class Transformer(Model):
    """The Transformer (Vaswani et al., "Attention Is All You Need", 2017) in the shape of its config: an encoder and a decoder, or one of them.

    Submodules: embeddings; decoder_embeddings, None unless config.decoder_vocab_size is given; encoder and decoder, of which one is None
    unless config.num_decoder_layers is given; and pooler, lm_head, sequence, tokens, each None unless its output is in config.outputs (lm_head
    gives logits, pooler pooled). If layers share weights, as in ALBERT, each is a module of its own with the same parameters.

    >>> import torch, uwaga
    >>> config = uwaga.models.config("bert", vocab_size=20, d_model=8, num_layers=2, num_heads=2, d_ff=16, max_position_embeddings=10)
    >>> model = Transformer(config).eval()
    >>> documents = uwaga.Ragged.from_list([torch.tensor([3, 4, 5]), torch.tensor([6])])
    >>> output = model(documents)
    >>> output.last_hidden_state.values.shape, output.pooled.shape
    (torch.Size([4, 8]), torch.Size([2, 8]))

    >>> sizes = {"d_model": 8, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "d_ff": 16}
    >>> model = Transformer(uwaga.models.config("uwaga-transformer", vocab_size=20, **sizes)).eval()
    >>> translations = uwaga.Ragged.from_list([torch.tensor([0, 5]), torch.tensor([0])])
    >>> model(documents, translations).logits.values.shape
    torch.Size([3, 20])
    """

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.label, self.continues = config, config.model_type, config.has_both or config.is_causal
        has = config.outputs.__contains__
        self.embeddings = Embeddings(config, config.vocab_size)
        second = config.decoder_vocab_size
        self.decoder_embeddings = None if second is None else Embeddings(config, second)
        self.encoder = None if config.is_causal else Stack(config, config.num_layers)
        self.decoder: Stack | None = None
        if config.is_causal:
            self.decoder = Stack(config, config.num_layers)
        elif config.has_both:
            self.decoder = Stack(config, config.num_decoder_layers, is_second=True)
        self.pooler = Pooler(config) if has("pooled") else None
        self.lm_head = LanguageModelHead(config) if has("logits") else None
        activation, dropout = config.classifier, config.classifier_dropout
        self.sequence = self.tokens = None
        if has("sequence"):
            self.sequence = ClassHead(config, None if activation == "pooled" else activation, dropout)
        if has("tokens"):  # DistilBERT's seq_classif_dropout is used for sequences only
            self.tokens = ClassHead(config, None, config.dropout if activation == "relu" else dropout)
        if config.scale_embedding:  # with this deviation, initial logits of a tied head are near 1
            nn.init.normal_(self.embeddings.token_embedding.weight, std=config.d_model**-0.5)

    def forward(
        self,
        ids: Operand,
        decoder_ids: Operand | None = None,
        *,
        token_types: Operand | None = None,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        key_lengths: Tensor | None = None,
        cache: KeyValueCache | None = None,
        outputs: Collection[str] | None = None,
        output_hidden_states: bool = False,
        only: str | None = None,
    ) -> Output:
        """Compute the hidden states and the outputs of the heads.

        In a model with both stacks the encoder reads ids. If there are decoder_ids, the decoder reads them and the encoder's output.

        Args:
            ids: token ids (B, Q), or Ragged with values (N,): texts one after another, without padding.
            decoder_ids: for a model with both stacks, config.decoder_start_token_id and the tokens so far: (B, Q), or Ragged with the rows of
                Ragged ids. Padding after them does not change what comes before it.
            token_types: integers of the shape of ids; None: all 0.
            lengths: (B,) the number of tokens of each row of padded ids. Padding comes after them; no token attends to it,
                and its own hidden states are meaningless.
            attention_mask: (B, Q) bool, True is a token; an alternative to lengths. The first token is pooled. Positions
                are counted from the start of the row, as in transformers (RoBERTa: from the first token).
            key_lengths: (R,) of Ragged ids: how many tokens of each row, from its first one, are seen. The tokens after them see these and
                are not seen, as the mask tokens that lengthen a query of ColBERT.
            cache: for a model that is a decoder, keys and values of the tokens before these, made by `new_cache`; those of `ids` are
                appended. Rows may have different lengths, without padding.
            outputs: which of config.outputs to compute; None: all of them, (): only the hidden states.
            output_hidden_states: also return the hidden states of the embeddings and of every layer.
            only: "first" or "last", of Ragged ids: the hidden states and logits are those of this token of each row alone, Ragged with R
                values and the same bits, and the last layer computes no other.

        Raises:
            ShapeError, ValueError: ids of a wrong shape, dtype or range; rows longer than config.max_tokens; decoder_ids of another type or
                number of rows than ids, or of a model with one stack; outputs that are not in config.outputs; an empty row where the first
                token is pooled; padding together with a cache, or a cache of an encoder; `only` with padded ids, with outputs of other
                tokens, with output_hidden_states or in a model with both stacks.
        """
        config, requested = self.config, self._requested(outputs)
        has_both = config.has_both
        if only is not None:
            tokens_of_rows(_NAME, ids, only)
        is_padded = any(x is not None for x in (lengths, attention_mask, key_lengths))
        extras = {name for name, x in (("decoder_ids", decoder_ids), ("token_types", token_types)) if x is not None}
        if extras or only is not None or cache is not None:
            for rule in self._broken_rules(
                extras, requested, cache, only, states=output_hidden_states, is_padded=is_padded
            ):
                raise ValueError(f"{_NAME}: {rule}")
        check_ids(_NAME, "ids", ids, config.vocab_size, config.max_tokens)
        if token_types is not None:
            _check_like(ids, "token_types", token_types)
            check_ids(_NAME, "token_types", token_types, config.type_vocab_size)
        if decoder_ids is not None:
            _check_like(ids, "decoder_ids", decoder_ids, has_same_tokens=False)
        padding = _padding_mask(ids, lengths, attention_mask, key_lengths) if is_padded else None
        start = 0 if cache is None else cache.start
        x = self.embeddings(ids, token_types, start)
        # Not `or`: a stack that torch.compile wraps has a length and no truth value.
        stack = cast(Stack, self.decoder if self.encoder is None else self.encoder)
        states, every = stack(x, padding, cache=cache, states=output_hidden_states, only=only, start=start)
        result = Output(states, hidden_states=every)
        if has_both:
            result = Output(memory=states, encoder_hidden_states=every)
            if decoder_ids is None:
                return result
            states, every = self._decode(decoder_ids, states, padding, None, states=output_hidden_states)
            result = result._replace(last_hidden_state=states, hidden_states=every)
        if not requested:
            return result
        return result._replace(**self._heads(states, requested, attention_mask))

    def decode(
        self, decoder_ids: Operand, memory: Operand | None = None, *, cache: KeyValueCache | None = None
    ) -> Operand:
        """Return the decoder's last hidden states (B, Q, M), without padding. With a cache, decoder_ids are the next tokens.

        Args:
            decoder_ids: (B, Q), or Ragged (N,).
            memory: the encoder's output, (B, K, M), or Ragged (N, M) with the same rows; None if the cache already has its keys and values,
                or the model has no encoder.
            cache: made by `new_cache`.
        """
        return self._decode(decoder_ids, memory, None, cache, states=False)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (..., V) of hidden states (..., M). Raises ValueError if the model has no head."""
        if self.lm_head is None:
            raise ValueError(f"{_NAME}: this model has no head for logits")
        result: Tensor = self.lm_head(hidden, self.output_embeddings.token_embedding.weight)
        return result

    @property
    def predicts(self) -> Literal["next", "masked"] | None:
        return None if self.lm_head is None else "next" if self.continues else "masked"

    @property
    def steps(self) -> list[nn.Module]:
        """See `Model`: its layers."""
        return [layer for stack in (self.encoder, self.decoder) if stack is not None for layer in stack.layers]

    def read_batch(self, texts: Sequence[Sequence[int]]) -> None:
        ids = Ragged.from_list([torch.tensor(text) for text in texts])
        self(ids, ids if self.config.has_both else None, outputs=())

    def continuation(self, ids: Sequence[int], max_new_tokens: int) -> list[int]:
        from uwaga.models.generating import generate

        return cast("list[list[int]]", generate(self, [list(ids)], max_new_tokens=max_new_tokens))[0]

    def explain(self) -> Choice:
        return Choice("uwaga", f"{self.config.model_type} is a family of uwaga's own", {})

    @property
    def output_embeddings(self) -> "Embeddings":
        """The embeddings of the stack that logits are computed from."""
        return self.embeddings if self.decoder_embeddings is None else self.decoder_embeddings

    def new_cache(self, *, capacity: int = 0) -> KeyValueCache:
        """Make an empty cache for the decoder. capacity: tokens per row to allocate in advance. Raises ValueError for an encoder."""
        return KeyValueCache(len(self._required_decoder.layers), capacity=capacity)

    def decoding(self, prompts: Ragged, new_tokens: int) -> Decoding:
        """See `Model`. Raises ValueError for an encoder, or a model without logits."""
        has_both, start = self.config.has_both, self.config.decoder_start_token_id
        cache = self.new_cache(capacity=new_tokens + (0 if has_both else prompts.max_length))
        memory = self(prompts).memory if has_both else None
        start_R = torch.full((len(prompts),), start, dtype=torch.int64, device=prompts.values.device)

        def next_logits(ids: Ragged) -> Tensor:
            hidden = self.decode(ids, None if len(cache.lengths) else memory, cache=cache)
            assert isinstance(hidden, Ragged)
            # Logits of the last token of each row alone: the output layer is the largest of a model.
            logits_RV = self.logits(hidden.values[hidden.offsets[1:] - 1])
            for number in self.config.never_generated:  # Marian uses the padding token as the decoder's start token
                logits_RV[..., number] = -torch.inf
            if bool(logits_RV.isnan().any()):
                raise ValueError("generate: the model's logits contain NaN")
            return logits_RV.float()

        return one_per_row(start_R) if has_both else prompts, cache, next_logits

    @property
    def _required_decoder(self) -> "Stack":
        if self.decoder is None:
            kind = self.config.model_type
            raise ValueError(f"{_NAME}: this {kind} model has only an encoder, and does not continue texts")
        return self.decoder

    def _decode(
        self,
        ids: Operand,
        memory: Operand | None,
        padding: Mask | Tensor | None,
        cache: KeyValueCache | None,
        *,
        states: bool,
    ) -> tuple[Operand, tuple[Operand, ...] | None]:
        decoder = self._required_decoder
        config, name = self.config, "decoder_ids" if self.config.has_both else "ids"
        check_ids(_NAME, name, ids, config.output_vocab_size, config.max_tokens)
        start = 0 if cache is None else cache.start
        x = self.output_embeddings(ids, None, start)
        return decoder(x, padding, memory=memory, cache=cache, states=states, start=start)

    def _heads(self, hidden: Operand, requested: Collection[str], attention_mask: Tensor | None) -> dict[str, Any]:
        results: dict[str, Any] = {}
        if _OF_FIRST_TOKEN & set(requested):
            first_BM = _first_tokens(hidden, attention_mask)
            pooled_BM = None if self.pooler is None else self.pooler(first_BM)
            if "pooled" in requested:
                results["pooled"] = pooled_BM
            if "sequence" in requested and self.sequence is not None:
                results["sequence"] = self.sequence(pooled_BM if self.config.classifier == "pooled" else first_BM)
        if "logits" in requested:
            results["logits"] = map_values(self.logits, hidden)
        if "tokens" in requested and self.tokens is not None:
            results["tokens"] = map_values(self.tokens, hidden)
        return results

    def reads_first_tokens(self, outputs: Collection[str] | None) -> bool:
        """Return whether one of these outputs of `forward` is of the first token of each row. Raises ValueError for unknown ones."""
        return not _OF_FIRST_TOKEN.isdisjoint(self._requested(outputs))

    def _requested(self, outputs: Collection[str] | None) -> Collection[str]:
        if outputs is None:
            return self.config.outputs
        absent = sorted(set(outputs) - set(self.config.outputs))
        if absent:
            has = ", ".join(self.config.outputs) or "none"
            raise ValueError(f"{_NAME}: the model has no output {', '.join(absent)}; its outputs: {has}")
        return outputs

    def _broken_rules(
        self,
        extras: Collection[str],
        requested: Collection[str],
        cache: KeyValueCache | None,
        only: str | None,
        *,
        states: bool,
        is_padded: bool,
    ) -> Iterator[str]:
        """Yield what is wrong with the arguments of `forward`."""
        config = self.config
        if "decoder_ids" in extras and not config.has_both:
            yield "this model has one stack, which reads ids: decoder_ids must be None"
        if "token_types" in extras and self.embeddings.token_types is None:
            yield f"this {config.model_type} model has no token types"
        if cache is not None and not config.is_causal:
            yield "a cache is for a model that is a decoder; give it to `decode` if the model has both stacks"
        if cache is not None and is_padded:
            yield "a cache does not support padding: give Ragged ids instead of lengths or attention_mask"
        if cache is not None and len(cache) != config.num_layers:
            yield f"the cache has {len(cache)} layers, the model {config.num_layers}"
        if only is not None and states:
            yield f"only={only!r} excludes output_hidden_states, which returns the states of all tokens"
        if only is not None and config.has_both:
            yield f"only={only!r} is for a model with one stack"
        others = sorted(set(requested) - {"logits"} - (_OF_FIRST_TOKEN if only == "first" else set()))
        if only is not None and others:
            yield f"only={only!r} excludes the output {', '.join(others)}, which is of other tokens; leave it out of outputs"


def _first_tokens(x: Operand, attention_mask: Tensor | None) -> Tensor:
    """Return the hidden state (..., M) of the first token of each row of (..., Q, M); (R, M) for Ragged (N, M)."""
    if isinstance(x, Ragged):
        return x.values[tokens_of_rows(_NAME, x, "first")]
    if x.shape[-2] == 0:
        raise ValueError(f"{_NAME}: the rows are empty: they have no first token to pool")
    if attention_mask is None:
        return x[..., 0, :]
    first = attention_mask.int().argmax(-1)[..., None, None]
    return x.take_along_dim(first, -2).squeeze(-2)


def _check_like(ids: Operand, name: str, other: Operand, *, has_same_tokens: bool = True) -> None:
    """Raise ShapeError or ValueError unless `other` is Ragged where ids are, and has the same tokens, or at least the same rows."""
    if isinstance(ids, Ragged) != isinstance(other, Ragged):
        raise ValueError(f"{_NAME}: ids and {name} must both be Ragged, or neither")
    if has_same_tokens and values_of(ids).shape != values_of(other).shape:
        tensors = [named_shape("ids", values_of(ids)), named_shape(name, values_of(other))]
        raise shape_error(_NAME, f"{name} must have the shape of ids", tensors, name, "has another")
    rows, others = ((len(x),) if isinstance(x, Ragged) else tuple(x.shape[:-1]) for x in (ids, other))
    if rows != others:
        raise ValueError(f"{_NAME}: ids and {name} must have the same rows, not {rows} and {others}")


def _padding_mask(
    ids: Operand,
    lengths: Tensor | None,
    attention_mask: Tensor | None,
    key_lengths: Tensor | None = None,
) -> Mask | Tensor:
    """Return the attention mask that hides padding, or the last tokens of Ragged rows, from queries.

    Args:
        ids: (..., Q), or Ragged, which has no padding: lengths and attention_mask must then be None.
        lengths: integers that broadcast to the batch: the number of tokens of each row, padding comes after them.
        attention_mask: (..., Q) bool, True is a token; padding may be anywhere.
        key_lengths: (R,), of Ragged ids alone: the first so many tokens of each row are seen, the others see them and are not seen.

    Raises:
        ShapeError, ValueError: two of them are given, either of them for Ragged ids, a mask of another shape or dtype.
    """
    if attention_mask is not None and not isinstance(ids, Ragged) and lengths is None:
        _check_like(ids, "attention_mask", attention_mask)
    for rule in _broken_padding_rules(ids, lengths, attention_mask, key_lengths):
        raise ValueError(f"{_NAME}: {rule}")
    if attention_mask is None:
        counted = lengths if key_lengths is None else key_lengths
        assert counted is not None
        return KeyLengths(counted)
    assert isinstance(ids, Tensor)
    lengths = attention_mask.sum(-1)
    is_before_length = torch.arange(ids.shape[-1], device=ids.device) < lengths[..., None]
    # Engines skip whole blocks after a length, and must read every element of a bool mask.
    if is_readable(attention_mask) and torch.equal(is_before_length, attention_mask):
        return KeyLengths(lengths)
    return attention_mask[..., None, None, :]


def _broken_padding_rules(
    ids: Operand, lengths: Tensor | None, attention_mask: Tensor | None, key_lengths: Tensor | None
) -> Iterator[str]:
    """Yield what is wrong with the arguments of `_padding_mask`."""
    if isinstance(ids, Ragged) and (lengths is not None or attention_mask is not None):
        yield "lengths and attention_mask are for padded ids; Ragged ids have no padding"
    if lengths is not None and attention_mask is not None:
        yield "lengths and attention_mask both describe the padding; give one of them"
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        yield f"attention_mask must be bool (True is a token), not {attention_mask.dtype}"
    if key_lengths is None:
        return
    if not isinstance(ids, Ragged):
        yield "key_lengths is for Ragged ids; padded ids have lengths"
        return
    if key_lengths.dtype not in INTEGERS or key_lengths.shape != (len(ids),):
        found = f"{key_lengths.dtype} {tuple(key_lengths.shape)}"
        yield f"key_lengths must be int64 or int32 ({len(ids)},), one for each row, not {found}"
    if is_readable(key_lengths) and bool((wrong := (key_lengths < 0) | (key_lengths > ids.lengths)).any()):
        row = int(wrong.int().argmax())
        yield f"key_lengths of row {row} is {int(key_lengths[row])}, and the row has {int(ids.lengths[row])} tokens"


def _spec_of(config: Config, n: int = 0, *, is_second: bool = False) -> LayerSpec:
    """Return what layer n consists of; is_second: of the decoder of a model with both stacks."""
    spec = LayerSpec(**{name: getattr(config, name) for name in _SHARED})
    if config.scale_by_layer:
        spec = replace(spec, scale=(config.head_width**-0.5 if spec.scale is None else spec.scale) / (n + 1))
    if is_second:
        heads, width = config.num_decoder_heads or config.num_heads, config.decoder_d_ff or config.d_ff
        spec = replace(spec, num_heads=heads, d_ff=width)
    return spec


def _norm_of(config: Config, width: int) -> nn.Module:
    """Return a norm as the layers have it, of another width."""
    return replace(_spec_of(config), d_model=width).new_norm()


class Embeddings(nn.Module):
    """The sum of the embeddings of tokens, of token types and of positions, with a norm and a linear map where the model has them
    (Devlin et al., "BERT", 2019, figure 2).

    Submodules: token_embedding, positions, token_types, norm and projection, each except the first None if the model does not have it.

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
        """Compute embeddings (..., Q, M), or Ragged (N, M), from ids (..., Q), or Ragged (N,).

        token_types: None: all 0. start: the position of the first token, as in `uwaga.nn.LearnedPositions`.
        """
        x = self._one_operation(ids, token_types, start) if self._is_plain() else self._sum(ids, token_types, start)
        x = apply_dropout(self.dropout, x)
        x = x if self.projection is None else apply_linear(self.projection, x)
        return ids.with_values(x) if isinstance(ids, Ragged) else x

    def words(self, ids: Tensor) -> Tensor:
        """Compute the embeddings of tokens alone, (..., M), from ids (...)."""
        x: Tensor = self.token_embedding(ids)
        if self.rounds_factor:
            return x * torch.tensor(self.factor, dtype=x.dtype)
        return x if self.factor == 1.0 else x * self.factor

    def position_ids(self, ids: Operand, start: int | Tensor = 0) -> Tensor:
        """Return the rows of learned positions: (..., Q), or (N,) of Ragged ids."""
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
            x = x + functional.embedding(self.position_ids(ids, start), self.positions.weight)
        elif self.positions is not None:
            x = values_of(self.positions(ids.with_values(x) if isinstance(ids, Ragged) else x, start))
        return x if self.norm is None else self.norm(x)

    def _is_plain(self) -> bool:
        """Return whether the submodules may be computed by one operation: nobody replaced them, hooked into them or traces them."""
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

    def _one_operation(self, ids: Operand, token_types: Operand | None, start: int | Tensor) -> Tensor:
        """Return the norm of the sum of the embeddings, in one operation: its bits are not those of several."""
        types = None
        if self.token_types is not None:
            types = Lookup(self.token_types.weight, None if token_types is None else values_of(token_types))
        return embedding_norm(
            Lookup(self.token_embedding.weight, values_of(ids)),
            types,
            Lookup(self.positions.weight, self.position_ids(ids, start)),
            weight=self.norm.weight,
            bias=self.norm.bias,
            eps=self.norm.eps,
        )


class Stack(nn.Module):
    """The layers of an encoder or a decoder, with the positions that all of them get.

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
        if config.shares_layers:
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
        heads = (config.num_decoder_heads if is_second else None) or config.num_heads
        self.slopes: Sequence[float] | None = None  # of ALiBi, one for each head
        if config.position_encoding == "alibi":
            self.slopes = config.alibi_slopes or alibi_slopes(heads)
        self.dropout = nn.Dropout(config.final_dropout)
        # What each layer hides; ids and padding may hide more.
        self.masks: list[Mask | None] = [Causal() if self.is_causal else None] * count
        if config.windows:
            window = (lambda n: Window(n - 1, 0)) if self.is_causal else lambda n: Window(n, n)
            self.masks = [self.masks[0] if width is None else window(width) for width in config.windows]
        self.rotary = {
            rope: RotaryPositions(config.head_width, base=rope.base, layout="halves", scaling=rope.scaling)
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
        """Return the last hidden states, after the final norm, and with `states` the input and the output of every layer, before it.

        Args:
            padding: the mask that hides it: of x, in a decoder that reads an encoder's output of that.
            memory, cache: as in `Transformer.decode`.
            only: as in `Transformer.forward`.
            start: the position of the first token.
        """
        every = [x]
        rotations = {rope: rotary(x, start) for rope, rotary in self.rotary.items()}
        bias: AlibiBias | RelativeBias | None = None
        if self.positions is not None:
            bias = self.positions()
        elif self.slopes is not None:  # a buffer that is not saved would be lost on loading
            bias = AlibiBias(torch.tensor(self.slopes, dtype=torch.float32, device=values_of(x).device))
        ropes = self.config.ropes
        for n, layer in enumerate(self.layers):
            mask: Mask | Tensor | None = self.masks[n]
            options: dict[str, Any] = {"bias": bias, "cache": None if cache is None else cache[n]}
            if self.crosses:
                x = layer(x, memory, mask=mask, memory_mask=padding, **options)
            else:
                mask = mask if padding is None else padding if mask is None else mask & padding
                last = {"only": only} if only and n == len(self.layers) - 1 else {}
                x = layer(x, mask=mask, rotary=rotations[ropes[n]] if ropes else None, **options, **last)
            if states:
                every.append(x)
        x = x if self.norm is None else map_values(self.norm, x)
        return map_values(partial(apply_dropout, self.dropout), x), tuple(every) if states else None


def _share_weights(stack: Stack, _: object = None) -> None:
    """Give all layers the same parameters; after loading too, which may replace them."""
    for layer in stack.layers:
        for path, parameter in stack.layers[0].named_parameters():
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

    def forward(self, x: Tensor, words_VM: Tensor) -> Tensor:
        """Compute logits; words_VM: the token embedding."""
        if self.dense is not None and self.norm is not None:
            x = self.norm(apply_linear(self.dense, x, activation=self.activation))
        x = x if self.factor == 1.0 else x * self.factor
        weight_VM = words_VM if self.decoder is None else self.decoder.weight
        return self.cap(linear_map(x, weight_VM, self.bias))

    def cap(self, logits: Tensor) -> Tensor:
        """Return c * tanh(logits / c) if the model has a softcap c, else the logits."""
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
        activation: "tanh", "gelu" or "relu" of a linear map before that of the classes; None: no such map.
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
        options = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else options["tensor"]
        return func(*args, **options)
