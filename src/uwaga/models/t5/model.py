"""T5: an encoder and a decoder with a relative position bias.

Letters: B batch, Q tokens of the decoder, K tokens of the encoder, M model width, N packed tokens, V vocabulary.
"""

from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from uwaga.models.generation.decoding import Decoding
from uwaga.models.layer_stack import LayerCall, StackOutput, require_decoder, run_layers
from uwaga.models.t5.config import T5Config
from uwaga.models.tokenizers import token_ids
from uwaga.nn import Decoder, Encoder, KeyValueCache, LayerSpec, RelativePositions
from uwaga.nn.operand import map_values
from uwaga.nn.plain_modules import apply_dropout
from uwaga.ops.linear.api import linear_map
from uwaga.ops.masks import Causal, Mask
from uwaga.ops.ragged import Operand, Ragged

_NAME = "T5Model"


class T5Output(NamedTuple):
    """The outputs of a T5Model: Ragged where the ids are; those of the decoder are None without decoder_ids."""

    memory: Operand  # (B, K, M), of the encoder, after its final norm
    last_hidden_state: Operand | None = None  # (B, Q, M), of the decoder
    logits: Operand | None = None  # (B, Q, V), of the next token
    encoder_hidden_states: tuple[Operand, ...] | None = (
        None  # of the embedding and of every layer, before the final norm
    )
    hidden_states: tuple[Operand, ...] | None = None


class T5Model(nn.Module):
    """T5 (Raffel et al., "Exploring the Limits of Transfer Learning", 2020), version 1.1 (gated; Shazeer 2020) and mT5.

    Scores are not scaled; all layers of a stack share one relative position bias; norms are RMSNorm; cross-attention has no
    position bias.

    Submodules: token_embedding (V, M), encoder, encoder_positions, decoder, decoder_positions (None where config.num_decoder_layers is 0),
    and lm_head, None where config.tie_word_embeddings.

    >>> import torch, uwaga
    >>> config = T5Config(vocab_size=20, d_model=8, num_layers=1, num_decoder_layers=1, num_heads=2, d_kv=4, d_ff=16)
    >>> model = T5Model(config).eval()
    >>> texts = uwaga.Ragged.from_list([torch.tensor([3, 4, 1]), torch.tensor([6, 1])])
    >>> answers = uwaga.Ragged.from_list([torch.tensor([0, 5]), torch.tensor([0])])
    >>> model(texts, answers).logits.values.shape
    torch.Size([3, 20])
    """

    is_decoder_only = False

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        layer, has_decoder = _layer(config), config.num_decoder_layers > 0
        self.encoder = Encoder(layer, config.num_layers)
        self.encoder_positions = _positions(config, bidirectional=True)
        self.decoder = Decoder(layer, config.num_decoder_layers) if has_decoder else None
        self.decoder_positions = _positions(config, bidirectional=False) if has_decoder else None
        has_head = has_decoder and not config.tie_word_embeddings
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False) if has_head else None

    def forward(
        self,
        ids: Operand,
        decoder_ids: Operand | None = None,
        *,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> T5Output:
        """Run the encoder on ids and, where decoder_ids are given, the decoder on decoder_ids and the encoder's output.

        Args:
            ids: token ids (B, K), or Ragged with values (N,): texts one after another, without padding.
            decoder_ids: (B, Q), or Ragged with as many rows where ids are: config.decoder_start_token_id and the tokens so
                far. Padding after them does not change what comes before it.
            lengths: (B,) the number of tokens of each row of padded ids.
            attention_mask: (B, K) bool, True is a token; an alternative to lengths.
            output_hidden_states: also return the hidden states of the embeddings and of every layer.

        Raises:
            ShapeError, ValueError: ids of a wrong shape, dtype or range; decoder_ids of another type or number of rows than ids, or
                for a model without a decoder.
        """
        token_ids.check_ids(_NAME, "ids", ids, self.config.vocab_size)
        padding = token_ids.padding_mask(_NAME, ids, lengths, attention_mask)
        encoded = self._encode(ids, padding, output_hidden_states)
        if decoder_ids is None:
            return T5Output(memory=encoded.last, encoder_hidden_states=encoded.states)
        token_ids.check_same_rows(_NAME, ids, decoder_ids)
        decoded = self._decode(decoder_ids, encoded.last, padding, None, output_hidden_states)
        return T5Output(
            memory=encoded.last,
            last_hidden_state=decoded.last,
            logits=map_values(self.logits, decoded.last),
            encoder_hidden_states=encoded.states,
            hidden_states=decoded.states,
        )

    def decode(
        self, decoder_ids: Operand, memory: Operand | None = None, *, cache: KeyValueCache | None = None
    ) -> Operand:
        """The decoder's last hidden states (B, Q, M), without padding; with a cache decoder_ids are the next tokens.

        Args:
            decoder_ids: (B, Q), or Ragged (N,).
            memory: (B, K, M), or Ragged (N, M) of as many rows; None where the cache already holds its keys and values.
            cache: made by `new_cache`.
        """
        return self._decode(decoder_ids, memory, None, cache, False).last

    def logits(self, hidden: Tensor, *, batch_invariant: bool = True) -> Tensor:
        """(..., V) from the decoder's hidden states (..., M); batch_invariant as in `uwaga.nn.FeedForward`."""
        scaled = hidden * self.config.d_model**-0.5 if self.config.scale_decoder_outputs else hidden
        weight_VM = self.token_embedding.weight if self.lm_head is None else self.lm_head.weight
        return linear_map(scaled, weight_VM, batch_invariant=batch_invariant)

    def new_cache(self, *, capacity: int = 0) -> KeyValueCache:
        """An empty cache for the decoder; capacity: tokens per row to allocate in advance."""
        return KeyValueCache(self.config.num_decoder_layers, capacity=capacity)

    def decoding(self, prompts: Ragged, new_tokens: int) -> Decoding:
        """For `uwaga.models.generate`: the state before the first output token of each prompt; prompts: ids (N,)."""
        require_decoder(_NAME, self.decoder)
        memory, cache = self(prompts).memory, self.new_cache(capacity=new_tokens)
        return Decoding(
            first=token_ids.decoder_start(prompts, self.config.decoder_start_token_id),
            cache=cache,
            states=lambda ids: self.decode(ids, None if len(cache.lengths) else memory, cache=cache),
            logits=partial(self.logits, batch_invariant=False),
        )

    def _encode(self, ids: Operand, padding: Mask | Tensor | None, states: bool) -> StackOutput:
        bias = self.encoder_positions()
        return self._run(self.encoder, ids, lambda layer, _, x: layer(x, mask=padding, bias=bias), states)

    def _decode(
        self,
        ids: Operand,
        memory: Operand | None,
        padding: Mask | Tensor | None,
        cache: KeyValueCache | None,
        states: bool,
    ) -> StackOutput:
        decoder = require_decoder(_NAME, self.decoder)
        assert self.decoder_positions is not None
        token_ids.check_ids(_NAME, "decoder_ids", ids, self.config.vocab_size)
        options = {"mask": Causal(), "bias": self.decoder_positions(), "memory_mask": padding}

        def call(layer: nn.Module, n: int, x: Operand) -> Operand:
            return layer(x, memory, **options, cache=None if cache is None else cache[n])

        return self._run(decoder, ids, call, states)

    def _run(self, stack: Encoder | Decoder, ids: Operand, call: LayerCall, states: bool) -> StackOutput:
        x = map_values(lambda values: apply_dropout(self.dropout, self.token_embedding(values)), ids)
        output = run_layers(stack.layers, stack.norm, x, call, states=states)
        return output._replace(last=map_values(partial(apply_dropout, self.dropout), output.last))


def _positions(config: T5Config, *, bidirectional: bool) -> RelativePositions:
    return RelativePositions(
        config.num_heads, num_buckets=config.num_buckets, max_distance=config.max_distance, bidirectional=bidirectional
    )


def _layer(config: T5Config) -> LayerSpec:
    return LayerSpec(
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_ff=config.d_ff,
        d_k=config.d_kv,
        norm="pre",
        norm_type="rms",
        norm_eps=config.norm_eps,
        activation=config.activation,
        gated=config.gated,
        bias=False,
        scale=1.0,
        dropout=config.dropout,
        attention_dropout=config.dropout,
        activation_dropout=config.dropout,
    )
