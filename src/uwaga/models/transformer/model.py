"""The original Transformer: an encoder and a decoder, or one of them.

Letters: B batch, Q tokens of the decoder, K tokens of the encoder, M model width, N packed tokens, V vocabulary.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uwaga.models.generation.decoding import Decoding
from uwaga.models.layer_stack import StackOutput, require_decoder, run_layers
from uwaga.models.tokenizers import token_ids
from uwaga.models.transformer.config import TransformerConfig
from uwaga.nn import Decoder, Encoder, KeyValueCache, LayerSpec, SinusoidalPositions
from uwaga.nn.operand import map_values
from uwaga.nn.plain_modules import apply_dropout
from uwaga.nn.positions import alibi_slopes
from uwaga.ops.biases import AlibiBias
from uwaga.ops.linear.api import linear_map
from uwaga.ops.masks import Causal, Mask
from uwaga.ops.ragged import Operand, Ragged

_NAME = "Transformer"


class TransformerOutput(NamedTuple):
    """The outputs of a Transformer: Ragged where the ids are; None for a stack that the model lacks, or that had no input."""

    memory: Operand | None = None  # (B, K, M), of the encoder, after its final norm
    last_hidden_state: Operand | None = None  # (B, Q, M), of the decoder
    logits: Operand | None = None  # (B, Q, V), of the next token
    encoder_hidden_states: tuple[Operand, ...] | None = None  # of the embedding and of every layer, before a final norm
    hidden_states: tuple[Operand, ...] | None = None


class Transformer(nn.Module):
    """The Transformer (Vaswani et al., "Attention Is All You Need", 2017): encoder and decoder, or only one of them, by config.

    Without an encoder it is a language model (Liu et al., "Generating Wikipedia by Summarizing Long Sequences", 2018).

    Submodules: token_embedding (V, M), which the encoder, the decoder and the head share (section 3.4); decoder_token_embedding, None unless
    config.decoder_vocab_size is given; positions, None with ALiBi; encoder and decoder, each None without layers;
    lm_head, None where config.tie_word_embeddings; and lm_head_bias (V), None unless config.lm_head_bias.

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
        self.is_decoder_only = not has_both
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
        # With this deviation, initial logits of a tied head are near 1.
        nn.init.normal_(self.token_embedding.weight, std=config.d_model**-0.5)

    def forward(
        self,
        ids: Operand,
        decoder_ids: Operand | None = None,
        *,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> TransformerOutput:
        """Run the encoder on ids and, where decoder_ids are given, the decoder on decoder_ids and the encoder's output. A model
        without an encoder runs its decoder on ids.

        Args:
            ids: token ids (B, K), or Ragged with values (N,): texts one after another, without padding.
            decoder_ids: (B, Q), or Ragged with as many rows where ids are: config.decoder_start_token_id and the tokens so
                far. Padding after them does not change what comes before it.
            lengths: (B,) the number of tokens of each row of padded ids.
            attention_mask: (B, K) bool, True is a token; an alternative to lengths. Positions are counted from the start of
                the row, as in transformers.
            output_hidden_states: also return the hidden states of the embeddings and of every layer.

        Raises:
            ShapeError, ValueError: ids of a wrong shape, dtype or range; decoder_ids of another type or number of rows than ids, or
                for a model without an encoder or a decoder.
        """
        padding = token_ids.padding_mask(_NAME, ids, lengths, attention_mask)
        if self.encoder is None:
            if decoder_ids is not None:
                raise ValueError(f"{_NAME}: this model has only a decoder, which reads ids: decoder_ids must be None")
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
        """The decoder's last hidden states (B, Q, M), without padding; with a cache decoder_ids are the next tokens.

        Args:
            decoder_ids: (B, Q), or Ragged (N,).
            memory: (B, K, M), or Ragged (N, M) of as many rows; None where the cache already holds its keys and
                values, or without an encoder.
            cache: made by `new_cache`.
        """
        return self._decode(decoder_ids, memory, None, cache, False).last

    def logits(self, hidden: Tensor, *, batch_invariant: bool = True) -> Tensor:
        """(..., V) from the decoder's hidden states (..., M); batch_invariant as in `uwaga.nn.FeedForward`."""
        words = self.token_embedding if self.decoder_token_embedding is None else self.decoder_token_embedding
        weight_VM = words.weight if self.lm_head is None else self.lm_head.weight
        return linear_map(hidden, weight_VM, self.lm_head_bias, batch_invariant=batch_invariant)

    def new_cache(self, *, capacity: int = 0) -> KeyValueCache:
        """An empty cache for the decoder; capacity: tokens per row to allocate in advance."""
        return KeyValueCache(self.config.num_decoder_layers, capacity=capacity)

    def decoding(self, prompts: Ragged, new_tokens: int) -> Decoding:
        """For `uwaga.models.generate`: the state before the first new token of each prompt; prompts: ids (N,)."""
        require_decoder(_NAME, self.decoder)
        has_both = self.encoder is not None
        memory = self(prompts).memory if has_both else None
        cache = self.new_cache(capacity=new_tokens + (0 if has_both else prompts.max_length))
        return Decoding(
            first=token_ids.decoder_start(prompts, self.config.decoder_start_token_id) if has_both else prompts,
            cache=cache,
            states=lambda ids: self.decode(ids, None if len(cache.lengths) else memory, cache=cache),
            logits=self._logits_without_padding,
        )

    def _logits_without_padding(self, hidden: Tensor) -> Tensor:
        """The logits, -inf for the padding token: Marian uses it as the decoder's start token, and it must not be generated."""
        logits = self.logits(hidden, batch_invariant=False)
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
        return map_values(
            partial(apply_dropout, self.dropout), x if self.positions is None else self.positions(x, start)
        )

    def _bias(self, heads: int) -> AlibiBias | None:
        """The ALiBi bias of self-attention, None with other positions. Not a buffer: one that is not saved would be lost on loading."""
        if self.positions is not None:
            return None
        slopes = self.config.alibi_slopes or alibi_slopes(heads)
        return AlibiBias(torch.tensor(slopes, dtype=torch.float32, device=self.token_embedding.weight.device))

    def _output(self, encoded: StackOutput | None, decoded: StackOutput | None) -> TransformerOutput:
        result = TransformerOutput()
        if encoded is not None:
            result = result._replace(memory=encoded.last, encoder_hidden_states=encoded.states)
        if decoded is None:
            return result
        logits = map_values(self.logits, decoded.last)
        return result._replace(last_hidden_state=decoded.last, logits=logits, hidden_states=decoded.states)


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
