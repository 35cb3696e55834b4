"""The Transformer as it was first described.

Letters: B batch, Q tokens of the decoder, K tokens of the encoder, M model width, N packed tokens, V vocabulary.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from uwaga._base import renamed
from uwaga.models import token_ids
from uwaga.models.generation.decoding import Decoding
from uwaga.models.layer_stack import StackOutput, require_decoder, run_layers
from uwaga.models.transformer.config import TransformerConfig
from uwaga.nn import Decoder, Encoder, KeyValueCache, LayerSpec, SinusoidalPositions
from uwaga.nn.batch_invariant import apply_linear
from uwaga.nn.operand import map_values
from uwaga.nn.positions import alibi_slopes
from uwaga.ops.biases import AlibiBias
from uwaga.ops.masks import Causal, Mask
from uwaga.ops.ragged import Operand, Ragged

_NAME = "Transformer"


@renamed.attributes(hidden="last_hidden_state", states="hidden_states", memory_states="encoder_hidden_states")
class TransformerOutput(NamedTuple):
    """What a Transformer gives. Ragged where the ids are; None what it has no stack for, or nothing to read."""

    memory: Operand | None = None  # (B, K, M), the encoder's states after its last layer
    last_hidden_state: Operand | None = None  # (B, Q, M), the decoder's
    logits: Operand | None = None  # (B, Q, V), of the token that comes next
    encoder_hidden_states: tuple[Operand, ...] | None = (
        None  # after the embedding and after every layer, before a last norm
    )
    hidden_states: tuple[Operand, ...] | None = None


class Transformer(nn.Module):
    """The Transformer (Vaswani et al., "Attention Is All You Need", 2017): encoder and decoder, either alone, by config.

    The decoder alone is a language model (Liu et al., "Generating Wikipedia by Summarizing Long Sequences", 2018).

    Submodules: token_embedding (V, M), which the encoder, the decoder and the head share (section 3.4); decoder_token_embedding, None unless
    config.decoder_vocab_size is given; positions, None where they are a bias; encoder and decoder, each None without layers;
    lm_head, None where config.tie_word_embeddings; and lm_head_bias (V), None unless asked for.

    >>> import torch, uwaga
    >>> sizes = {"d_model": 8, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "d_ff": 16}
    >>> model = Transformer(TransformerConfig(vocab_size=20, **sizes)).eval()
    >>> texts = uwaga.Ragged.from_list([torch.tensor([3, 4, 0]), torch.tensor([6, 0])])
    >>> translations = uwaga.Ragged.from_list([torch.tensor([0, 5]), torch.tensor([0])])
    >>> model(texts, translations).logits.values.shape
    torch.Size([3, 20])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        has_decoder, has_both = config.num_decoder_layers > 0, config.num_decoder_layers > 0 and config.num_layers > 0
        self.prompt_counts = not has_both
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        own_words = config.decoder_vocab_size is not None
        self.decoder_token_embedding = nn.Embedding(config.output_vocab_size, config.d_model) if own_words else None
        is_added = config.position_encoding == "sinusoidal"
        self.positions = SinusoidalPositions(config.d_model, layout=config.sinusoid_layout) if is_added else None
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(_layer(config), config.num_layers) if config.num_layers else None
        self.decoder: Decoder | Encoder | None = None
        if has_decoder:
            self.decoder = (Decoder if has_both else Encoder)(_decoder_layer(config), config.num_decoder_layers)
        has_head = has_decoder and not config.tie_word_embeddings
        self.lm_head = nn.Linear(config.d_model, config.output_vocab_size, bias=False) if has_head else None
        has_bias = has_decoder and config.lm_head_bias
        self.lm_head_bias = nn.Parameter(torch.zeros(config.output_vocab_size)) if has_bias else None
        # With the embedding's own scale, logits of a tied head begin near 1.
        nn.init.normal_(self.token_embedding.weight, std=config.d_model**-0.5)

    @renamed.parameters(states="output_hidden_states")
    def forward(
        self,
        ids: Operand,
        decoder_ids: Operand | None = None,
        *,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> TransformerOutput:
        """What the encoder makes of ids and, where decoder_ids are given, what the decoder makes of both. A decoder alone
        reads ids.

        Args:
            ids: token ids (B, K), or Ragged with values (N,): texts one after the other, no padding anywhere.
            decoder_ids: of the same kind and rows, (B, Q): config.decoder_start_token_id and the tokens so far. Padding behind them changes
                nothing before it.
            lengths: (B,) tokens in each row of padded ids.
            attention_mask: (B, K) bool instead, True is a token. Positions count from the start of the row, as in
                transformers.
            output_hidden_states: whether to give the states after every layer too.

        Raises:
            ShapeError, ValueError: ids of another shape, dtype or range; decoder_ids of another kind or number of rows; or
                for a model that is not both.
        """
        padding = token_ids.padding_mask(_NAME, ids, lengths, attention_mask)
        if self.encoder is None:
            if decoder_ids is not None:
                raise ValueError(f"{_NAME}: this model is a decoder alone: its tokens are ids, and there are no others")
            return self._output(None, self._decode(ids, None, padding, None, output_hidden_states))
        token_ids.check_ids(_NAME, "ids", ids, self.config.vocab_size)
        x, bias = self._embed(self.token_embedding, ids, 0), self._bias(self.config.num_heads)
        encoded = run_layers(
            self.encoder.layers,
            self.encoder.norm,
            x,
            lambda layer, _, x: layer(x, mask=padding, bias=bias),
            states=output_hidden_states,
        )
        if decoder_ids is None:
            return self._output(encoded, None)
        token_ids.check_same_rows(_NAME, ids, decoder_ids)
        return self._output(encoded, self._decode(decoder_ids, encoded.last, padding, None, output_hidden_states))

    def decode(
        self, decoder_ids: Operand, memory: Operand | None = None, *, cache: KeyValueCache | None = None
    ) -> Operand:
        """The decoder's states (B, Q, M) over an encoder's, without padding; of the next tokens, where there is a cache.

        Args:
            decoder_ids: (B, Q), or Ragged (N,).
            memory: (B, K, M), or Ragged (N, M) of as many rows; None where the cache has been given it, or for a decoder
                alone.
            cache: made by `new_cache`.
        """
        return self._decode(decoder_ids, memory, None, cache, False).last

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., V) from the decoder's states (..., M)."""
        words = self.token_embedding if self.decoder_token_embedding is None else self.decoder_token_embedding
        return functional.linear(
            hidden, words.weight if self.lm_head is None else self.lm_head.weight, self.lm_head_bias
        )

    def new_cache(self, *, capacity: int = 0) -> KeyValueCache:
        """An empty cache of the decoder's layers, with room for so many tokens a row at once."""
        return KeyValueCache(self.config.num_decoder_layers, capacity=capacity)

    def decoding(self, prompts: Ragged, new_tokens: int) -> Decoding:
        """For `uwaga.models.generate`: ready for the first new token of each prompt, (N,) ids."""
        require_decoder(_NAME, self.decoder)
        has_both = self.encoder is not None
        memory = self(prompts).memory if has_both else None
        cache = self.new_cache(capacity=new_tokens + (0 if has_both else prompts.max_length))
        return Decoding(
            first=token_ids.decoder_start(prompts, self.config.decoder_start_token_id) if has_both else prompts,
            cache=cache,
            states=lambda ids: self.decode(ids, None if len(cache.lengths) else memory, cache=cache),
            logits=self._logits_of_words,
        )

    def _logits_of_words(self, hidden: Tensor) -> Tensor:
        """The logits with -inf for padding, which Marian's decoder begins with, and which is no word."""
        logits = self.logits(hidden)
        if self.config.pad_token_id is not None:
            logits[..., self.config.pad_token_id] = -torch.inf
        return logits

    def _decode(
        self,
        ids: Operand,
        memory: Operand | None,
        padding: Mask | Tensor | None,
        cache: KeyValueCache | None,
        states: bool,
    ) -> StackOutput:
        require_decoder(_NAME, self.decoder)
        assert self.decoder is not None
        token_ids.check_ids(_NAME, "ids" if self.encoder is None else "decoder_ids", ids, self.config.output_vocab_size)
        x = self._embed(self.decoder_token_embedding or self.token_embedding, ids, 0 if cache is None else cache.start)
        bias = self._bias(self.config.num_decoder_heads or self.config.num_heads)

        def call(layer: nn.Module, n: int, x: Operand) -> Operand:
            own = None if cache is None else cache[n]
            if self.encoder is None:
                return layer(x, mask=Causal() if padding is None else Causal() & padding, bias=bias, cache=own)
            return layer(x, memory, mask=Causal(), bias=bias, memory_mask=padding, cache=own)

        return run_layers(self.decoder.layers, self.decoder.norm, x, call, states=states)

    def _embed(self, words: nn.Embedding, ids: Operand, start: int | Tensor) -> Operand:
        scale = self.config.d_model**0.5 if self.config.scale_embedding else 1.0
        x = map_values(lambda values: words(values) * scale, ids)
        return map_values(self.dropout, x if self.positions is None else self.positions(x, start))

    def _bias(self, heads: int) -> AlibiBias | None:
        """Of self-attention, where positions are one. Made anew: a buffer that is not saved would be lost on loading."""
        if self.positions is not None:
            return None
        return AlibiBias(torch.tensor(alibi_slopes(heads), device=self.token_embedding.weight.device))

    def _output(self, encoded: StackOutput | None, decoded: StackOutput | None) -> TransformerOutput:
        found = TransformerOutput()
        if encoded is not None:
            found = found._replace(memory=encoded.last, encoder_hidden_states=encoded.states)
        if decoded is None:
            return found
        logits = map_values(partial(apply_linear, self.logits), decoded.last)
        return found._replace(last_hidden_state=decoded.last, logits=logits, hidden_states=decoded.states)


def _layer(config: TransformerConfig) -> LayerSpec:
    return LayerSpec(
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_ff=config.d_ff,
        norm=config.norm,
        norm_eps=config.norm_eps,
        activation=config.activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
    )


def _decoder_layer(config: TransformerConfig) -> LayerSpec:
    heads, d_ff = config.num_decoder_heads or config.num_heads, config.decoder_d_ff or config.d_ff
    return replace(_layer(config), num_heads=heads, d_ff=d_ff)
