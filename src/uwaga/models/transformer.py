"""The Transformer: an encoder, a decoder, or both, and heads over their hidden states.

Letters: B batch, Q tokens, K tokens of the encoder, M model width, N packed tokens, R ragged rows, V vocabulary, C classes.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from uwaga.models.configuration import Config
from uwaga.models.model import Decoding, Model
from uwaga.models.parts import ClassHead, Embeddings, LanguageModelHead, Pooler, Stack
from uwaga.models.tokenizers import token_ids
from uwaga.nn import KeyValueCache
from uwaga.nn.operand import map_values, tokens_of_rows
from uwaga.ops.engine_choice import Choice
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand, Ragged

_NAME = "Transformer"
_OF_FIRST_TOKEN = {"pooled", "sequence"}  # outputs


class Output(NamedTuple):
    """The outputs of a Transformer: Ragged where the ids are, None where the model has no such head or it was not requested."""

    # (B, Q, M), after the last layer and the final norm; of a decoder without decoder_ids None
    last_hidden_state: Operand | None = None
    logits: Operand | None = None  # (B, Q, V), of the next token; in an encoder of the token itself
    pooled: Tensor | None = None  # (B, M), or (R, M)
    sequence: Tensor | None = None  # (B, C), logits
    tokens: Operand | None = None  # (B, Q, C), logits
    memory: Operand | None = None  # (B, K, M), the encoder's output, which a decoder reads
    hidden_states: tuple[Operand, ...] | None = None  # of the embeddings and of every layer, before the final norm
    encoder_hidden_states: tuple[Operand, ...] | None = None


class Transformer(Model):
    """The Transformer (Vaswani et al., "Attention Is All You Need", 2017) in the shape of its config: an encoder and a decoder, or one of them.

    Submodules: embeddings; decoder_embeddings, None unless config.decoder_vocab_size is given; encoder and decoder, of which one is None
    unless config.num_decoder_layers is given; and pooler, lm_head, sequence, tokens, each None unless its output is in config.outputs (lm_head
    gives logits, pooler pooled). Where ALBERT's layers share weights, each is a module, and their parameters are the same.

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
        self.config = config
        has = config.outputs.__contains__
        self.embeddings = Embeddings(config, config.vocab_size)
        second = config.decoder_vocab_size
        self.decoder_embeddings = None if second is None else Embeddings(config, second)
        self.encoder = None if config.is_causal else Stack(config, len(config.layer_weights))
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
        """The hidden states, and the outputs of the heads. In a model with both stacks the encoder reads ids, and where decoder_ids are given
        the decoder reads them and the encoder's output.

        Args:
            ids: token ids (B, Q), or Ragged with values (N,): texts one after another, without padding.
            decoder_ids: of a model with both stacks, (B, Q), or Ragged with as many rows where ids are: config.decoder_start_token_id and the
                tokens so far. Padding after them does not change what comes before it.
            token_types: integers of the shape of ids; None: all 0.
            lengths: (B,) the number of tokens of each row of padded ids. Padding comes after them; no token attends to it,
                and its own hidden states are meaningless.
            attention_mask: (B, Q) bool, True is a token; an alternative to lengths. The first token is pooled. Positions
                are counted from the start of the row, as in transformers (RoBERTa: from the first token).
            key_lengths: (R,) of Ragged ids: the first so many tokens of each row are seen; those after them see these and are seen by
                none, as the mask tokens that lengthen a query of ColBERT.
            cache: of a model with a decoder alone, keys and values of the tokens before these, made by `new_cache`; those of `ids` are
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
        config, wanted = self.config, self._wanted(outputs)
        has_both = config.has_both
        if only is not None:
            tokens_of_rows(_NAME, ids, only)
        is_padded = any(x is not None for x in (lengths, attention_mask, key_lengths))
        given = {name for name, x in (("decoder_ids", decoder_ids), ("token_types", token_types)) if x is not None}
        if given or only is not None or cache is not None:
            for rule in self._broken_rules(
                given, wanted, cache, only, states=output_hidden_states, is_padded=is_padded
            ):
                raise ValueError(f"{_NAME}: {rule}")
        token_ids.check_ids(_NAME, "ids", ids, config.vocab_size, config.max_tokens)
        if token_types is not None:
            token_ids.check_same_shape(_NAME, ids, "token_types", token_types)
            token_ids.check_ids(_NAME, "token_types", token_types, config.type_vocab_size)
        if decoder_ids is not None:
            token_ids.check_same_rows(_NAME, ids, decoder_ids)
        padding = token_ids.padding_mask(_NAME, ids, lengths, attention_mask, key_lengths)
        start = 0 if cache is None else cache.start
        x = self.embeddings(ids, token_types, start)
        states, every = self._only_stack(x, padding, cache=cache, states=output_hidden_states, only=only, start=start)
        result = Output(states, hidden_states=every)
        if has_both:
            result = Output(memory=states, encoder_hidden_states=every)
            if decoder_ids is None:
                return result
            states, every = self._decode(decoder_ids, states, padding, None, states=output_hidden_states)
            result = result._replace(last_hidden_state=states, hidden_states=every)
        return result._replace(**self._heads(states, wanted, attention_mask, batch_invariant=cache is None))

    @property
    def _only_stack(self) -> Stack:
        """The encoder, or the decoder of a model that has no encoder."""
        stack = self.decoder if self.encoder is None else self.encoder
        assert stack is not None
        return stack

    def decode(
        self, decoder_ids: Operand, memory: Operand | None = None, *, cache: KeyValueCache | None = None
    ) -> Operand:
        """The decoder's last hidden states (B, Q, M), without padding; with a cache decoder_ids are the next tokens.

        Args:
            decoder_ids: (B, Q), or Ragged (N,).
            memory: (B, K, M), or Ragged (N, M) of as many rows; None where the cache already holds its keys and
                values, or without an encoder.
            cache: made by `new_cache`.
        """
        return self._decode(decoder_ids, memory, None, cache, states=False)[0]

    def logits(self, hidden: Tensor, *, batch_invariant: bool = True) -> Tensor:
        """(..., V) from hidden states (..., M); batch_invariant as in `uwaga.nn.FeedForward`. Raises ValueError: the model has no
        head."""
        if self.lm_head is None:
            raise ValueError(f"{_NAME}: this model has no head for logits")
        result: Tensor = self.lm_head(
            hidden, self.output_embeddings.token_embedding.weight, batch_invariant=batch_invariant
        )
        return result

    @property
    def label(self) -> str:
        """See `Model`: its model type."""
        return self.config.model_type

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
        from uwaga.models.generation.generate import generate

        return cast("list[list[int]]", generate(self, [list(ids)], max_new_tokens=max_new_tokens))[0]

    def explain(self) -> Choice:
        return Choice("uwaga", f"{self.config.model_type} is a family of uwaga's own", {})

    @property
    def output_embeddings(self) -> Embeddings:
        """Of the stack that logits are computed from."""
        return self.embeddings if self.decoder_embeddings is None else self.decoder_embeddings

    def new_cache(self, *, capacity: int = 0) -> KeyValueCache:
        """An empty cache for the decoder; capacity: tokens per row to allocate in advance. Raises ValueError: an encoder."""
        return KeyValueCache(len(self._required_decoder.layers), capacity=capacity)

    def decoding(self, prompts: Ragged, new_tokens: int) -> Decoding:
        """For `uwaga.models.generate`: the state before the first new token of each prompt; prompts: ids (N,). Raises ValueError: an
        encoder, or a model without logits."""
        has_both, start = self.config.has_both, self.config.decoder_start_token_id
        cache = self.new_cache(capacity=new_tokens + (0 if has_both else prompts.max_length))
        memory = self(prompts).memory if has_both else None
        start_R = torch.full((len(prompts),), start, dtype=torch.int64, device=prompts.values.device)

        def next_logits(ids: Ragged) -> Tensor:
            hidden = self.decode(ids, None if len(cache.lengths) else memory, cache=cache)
            assert isinstance(hidden, Ragged)
            # Logits of the last token of each row alone: the output layer is the largest of a model.
            logits_RV = self.logits(hidden.values[hidden.offsets[1:] - 1], batch_invariant=False)
            for number in self.config.never_generated:  # Marian uses the padding token as the decoder's start token
                logits_RV[..., number] = -torch.inf
            if bool(logits_RV.isnan().any()):
                raise ValueError("generate: the model's logits contain NaN")
            return logits_RV.float()

        return token_ids.one_per_row(start_R) if has_both else prompts, cache, next_logits

    @property
    def _required_decoder(self) -> Stack:
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
        token_ids.check_ids(_NAME, name, ids, config.output_vocab_size, config.max_tokens)
        start = 0 if cache is None else cache.start
        x = self.output_embeddings(ids, None, start)
        return decoder(x, padding, memory=memory, cache=cache, states=states, start=start)

    def _heads(
        self, hidden: Operand, wanted: Collection[str], attention_mask: Tensor | None, *, batch_invariant: bool
    ) -> dict[str, Any]:
        results: dict[str, Any] = {}
        if _OF_FIRST_TOKEN & set(wanted):
            first_BM = _first_tokens(hidden, attention_mask)
            pooled_BM = None if self.pooler is None else self.pooler(first_BM)
            if "pooled" in wanted:
                results["pooled"] = pooled_BM
            if "sequence" in wanted and self.sequence is not None:
                results["sequence"] = self.sequence(pooled_BM if self.config.classifier == "pooled" else first_BM)
        if "logits" in wanted:
            results["logits"] = map_values(partial(self.logits, batch_invariant=batch_invariant), hidden)
        if "tokens" in wanted and self.tokens is not None:
            results["tokens"] = map_values(self.tokens, hidden)
        return results

    def reads_first_tokens(self, outputs: Collection[str] | None) -> bool:
        """Whether one of these outputs of `forward` is of the first token of each row. Raises ValueError for unknown ones."""
        return not _OF_FIRST_TOKEN.isdisjoint(self._wanted(outputs))

    def _wanted(self, outputs: Collection[str] | None) -> Collection[str]:
        if outputs is None:
            return self.config.outputs
        absent = sorted(set(outputs) - set(self.config.outputs))
        if absent:
            has = ", ".join(self.config.outputs) or "none"
            raise ValueError(f"{_NAME}: the model has no output {', '.join(absent)}; its outputs: {has}")
        return outputs

    def _broken_rules(
        self,
        given: Collection[str],
        wanted: Collection[str],
        cache: KeyValueCache | None,
        only: str | None,
        *,
        states: bool,
        is_padded: bool,
    ) -> Iterator[str]:
        """Of the arguments of `forward`."""
        config = self.config
        if "decoder_ids" in given and not config.has_both:
            yield "this model has one stack, which reads ids: decoder_ids must be None"
        if "token_types" in given and self.embeddings.token_types is None:
            yield f"this {config.model_type} model has no token types"
        if cache is not None and not config.is_causal:
            yield "a cache is for a model with a decoder alone; `decode` takes that of both"
        if cache is not None and is_padded:
            yield "a cache does not support padding: give Ragged ids instead of lengths or attention_mask"
        if cache is not None and len(cache) != config.num_layers:
            yield f"the cache has {len(cache)} layers, the model {config.num_layers}"
        if only is not None and states:
            yield f"only={only!r} leaves out states that output_hidden_states asks for"
        if only is not None and config.has_both:
            yield f"only={only!r} is for a model with one stack"
        others = sorted(set(wanted) - {"logits"} - (_OF_FIRST_TOKEN if only == "first" else set()))
        if only is not None and others:
            yield f"with only={only!r} there is no output {', '.join(others)}, of other tokens"


def _first_tokens(x: Operand, attention_mask: Tensor | None) -> Tensor:
    """(..., M): the hidden state of the first token of each row of (..., Q, M); (R, M) for Ragged (N, M)."""
    if isinstance(x, Ragged):
        return x.values[tokens_of_rows(_NAME, x, "first")]
    if x.shape[-2] == 0:
        raise ValueError(f"{_NAME}: the rows are empty: they have no first token to pool")
    if attention_mask is None:
        return x[..., 0, :]
    first = attention_mask.int().argmax(-1)[..., None, None]
    return x.take_along_dim(first, -2).squeeze(-2)
