"""Pre-norm stacks with rotary positions and gated feed-forward layers: ModernBERT, EuroBERT, Llama, Mistral, Qwen2, Qwen3, Gemma 2 and 3.

Letters: B batch, Q tokens, M model width, N packed tokens, V vocabulary.
"""

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uwaga.models.generation.decoding import Decoding
from uwaga.models.layer_stack import StackOutput, check_only, run_layers
from uwaga.models.rotary.config import RotaryConfig
from uwaga.models.tokenizers import token_ids
from uwaga.nn import EncoderLayer, KeyValueCache, RotaryPositions
from uwaga.nn.batch_invariant import apply_linear
from uwaga.nn.operand import map_values
from uwaga.nn.plain_modules import apply_dropout
from uwaga.ops.linear.api import linear_map
from uwaga.ops.masks import Causal, Mask, Window
from uwaga.ops.ragged import Operand, Ragged

_NAME = "RotaryModel"


class RotaryOutput(NamedTuple):
    """The outputs of a RotaryModel: Ragged where the ids are."""

    last_hidden_state: Operand  # (B, Q, M), after the final norm
    logits: Operand | None = (
        None  # (B, Q, V), of the next token, in an encoder of the token itself; None: no head, or not requested
    )
    hidden_states: tuple[Operand, ...] | None = None  # of the embeddings and of every layer, before the final norm


class RotaryModel(nn.Module):
    """A pre-norm stack with rotary positions (Su et al., "RoFormer", 2021) and gated feed-forward layers, by config: the encoder ModernBERT
    (Warner et al., "Smarter, Better, Faster, Longer", 2024), whose layers see all tokens or a window on both sides; the decoders Llama
    (Touvron et al. 2023), Mistral (Jiang et al. 2023), Qwen2 and Qwen3 (Yang et al. 2024, 2025), with fewer key heads than query heads;
    Gemma 2 and 3 (Gemma Team 2024, 2025), whose sublayers' outputs are normed too; the encoders EuroBERT (Boizard et al. 2025), of
    Llama's shape, and EmbeddingGemma (Vera et al. 2025), of Gemma 3's.

    Submodules: token_embedding (V, M), embedding_norm (of ModernBERT, else None), layers, norm, head (of ModernBERT with logits, else
    None), lm_head, None where config.tie_word_embeddings or not config.has_lm_head, and the parameter lm_head_bias (V) or None.

    >>> import torch, uwaga
    >>> config = RotaryConfig(vocab_size=20, d_model=8, num_heads=2, num_kv_heads=1, d_k=4, d_ff=16, max_position_embeddings=10)
    >>> model = RotaryModel(config).eval()
    >>> texts = uwaga.Ragged.from_list([torch.tensor([3, 4, 5]), torch.tensor([6])])
    >>> model(texts).logits.values.shape
    torch.Size([4, 20])
    """

    def __init__(self, config: RotaryConfig) -> None:
        super().__init__()
        self.config, self.is_decoder_only = config, config.is_causal
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        spec = config.layer
        self.embedding_norm = spec.new_norm() if config.model_type == "modernbert" else None
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(EncoderLayer(spec) for _ in range(config.num_layers))
        if self.embedding_norm is not None:
            self.layers[0].attention_norm = nn.Identity()  # its input is normed already
        self.norm = spec.new_norm()
        self.head = PredictionHead(config, spec.new_norm()) if config.head_activation else None
        has_own_head = config.has_lm_head and not config.tie_word_embeddings
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False) if has_own_head else None
        has_bias = config.has_lm_head and config.lm_head_bias
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size)) if has_bias else None
        self._rotary = {
            rope: RotaryPositions(config.d_k, base=rope.base, layout="halves", scaling=rope.scaling)
            for rope in set(config.ropes)
        }

    def forward(
        self,
        ids: Operand,
        *,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        key_lengths: Tensor | None = None,
        cache: KeyValueCache | None = None,
        outputs: Collection[str] | None = None,
        output_hidden_states: bool = False,
        only: str | None = None,
    ) -> RotaryOutput:
        """The hidden states, and the logits of the next token, or in an encoder of the token itself.

        Args:
            ids: token ids (B, Q), or Ragged with values (N,): texts one after another, without padding.
            lengths: (B,) the number of tokens of each row of padded ids. Padding comes after them; no token attends to it.
            attention_mask: (B, Q) bool, True is a token; an alternative to lengths. Positions are counted from the start of
                the row, as in transformers.
            key_lengths: (R,) of Ragged ids: the first so many tokens of each row are seen; those after them see these and are seen by
                none, as the mask tokens that lengthen a query of ColBERT.
            cache: of a decoder, keys and values of the tokens before these, made by `new_cache`; those of `ids` are appended. Rows
                may have different lengths, without padding.
            outputs: which of config.outputs to compute; None: all of them, (): only the hidden states.
            output_hidden_states: also return the hidden states of the embeddings and of every layer.
            only: "first" or "last", of Ragged ids: last_hidden_state and logits have this token of each row alone, Ragged with R
                values and the same bits, and the last layer computes no other.

        Raises:
            ShapeError, ValueError: ids of a wrong shape, dtype or range; more tokens than config.max_tokens; padding together
                with a cache; a cache of an encoder; outputs that are not in config.outputs; `only` with padded ids or with
                output_hidden_states.
        """
        wanted = self.config.outputs if outputs is None else outputs
        check_only(_NAME, only, ids, output_hidden_states)
        if absent := sorted(set(wanted) - set(self.config.outputs)):
            raise ValueError(f"{_NAME}: the model has no output {', '.join(absent)}")
        token_ids.check_ids(_NAME, "ids", ids, self.config.vocab_size)
        token_ids.check_length(_NAME, ids, self.config.max_tokens)
        if cache is not None:
            self._check_cache(cache, is_padded=any(x is not None for x in (lengths, attention_mask, key_lengths)))
        padding = token_ids.padding_mask(_NAME, ids, lengths, attention_mask, key_lengths)
        encoded = self._encode(ids, padding, cache, output_hidden_states, only)
        logits = partial(self.logits, batch_invariant=cache is None)
        return RotaryOutput(
            last_hidden_state=encoded.last,
            logits=map_values(logits, encoded.last) if "logits" in wanted else None,
            hidden_states=encoded.states,
        )

    def _check_cache(self, cache: KeyValueCache, *, is_padded: bool) -> None:
        if not self.config.is_causal:
            raise ValueError(f"{_NAME}: a {self.config.model_type} model is an encoder, and has no cache")
        if is_padded:
            raise ValueError(
                f"{_NAME}: a cache does not support padding: give Ragged ids instead of lengths or attention_mask"
            )
        if len(cache) != len(self.layers):
            raise ValueError(f"{_NAME}: the cache has {len(cache)} layers, the model {len(self.layers)}")

    def _encode(
        self,
        ids: Operand,
        padding: Mask | Tensor | None,
        cache: KeyValueCache | None,
        states: bool,
        only: str | None,
    ) -> StackOutput:
        x = map_values(self.token_embedding, ids)
        if self.config.is_gemma:  # in half precision by a rounded factor, as in transformers
            factor = torch.tensor(self.config.d_model**0.5, dtype=self.token_embedding.weight.dtype)
            x = map_values(lambda values: values * factor, x)
        x = x if self.embedding_norm is None else map_values(self.embedding_norm, x)
        x = map_values(partial(apply_dropout, self.dropout), x)
        start = 0 if cache is None else cache.start
        rotations, ropes = {rope: rotary(x, start) for rope, rotary in self._rotary.items()}, self.config.ropes

        def call(layer: nn.Module, n: int, x: Operand, **last: str) -> Operand:
            own = self._mask(n)
            mask = own if padding is None else padding if own is None else own & padding
            return layer(x, mask=mask, rotary=rotations[ropes[n]], cache=None if cache is None else cache[n], **last)

        return run_layers(self.layers, self.norm, x, call, states=states, only=only)

    def _mask(self, layer: int) -> Mask | None:
        window = self.config.windows[layer]
        if not self.config.is_causal:
            return None if window is None else Window(window, window)
        return Causal() if window is None else Window(window - 1, 0)

    def logits(self, hidden: Tensor, *, batch_invariant: bool = True) -> Tensor:
        """(..., V) from hidden states (..., M); batch_invariant as in `uwaga.nn.FeedForward`. Raises ValueError: the model has no
        head."""
        if not self.config.has_lm_head:
            raise ValueError(f"{_NAME}: this model has no head for logits")
        weight_VM = self.token_embedding.weight if self.lm_head is None else self.lm_head.weight
        hidden = hidden if self.head is None else self.head(hidden)
        logits = linear_map(hidden, weight_VM, self.lm_head_bias, batch_invariant=batch_invariant)
        softcap = self.config.logit_softcap
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap

    def new_cache(self, *, capacity: int = 0) -> KeyValueCache:
        """An empty cache for this model; capacity: tokens per row to allocate in advance."""
        return KeyValueCache(len(self.layers), capacity=capacity)

    def decoding(self, prompts: Ragged, new_tokens: int) -> Decoding:
        """For `uwaga.models.generate`: the state before the first new token of each prompt; prompts: ids (N,). Raises ValueError: an
        encoder."""
        if not self.config.is_causal:
            raise ValueError(f"{_NAME}: a {self.config.model_type} model is an encoder, and does not continue texts")
        cache = self.new_cache(capacity=prompts.max_length + new_tokens)
        return Decoding(
            first=prompts,
            cache=cache,
            states=lambda ids: self(ids, cache=cache, outputs=()).last_hidden_state,
            logits=partial(self.logits, batch_invariant=False),
        )


class PredictionHead(nn.Module):
    """norm(f(dense(x))), (..., M), before the logits of ModernBERT. Submodules: dense, norm."""

    def __init__(self, config: RotaryConfig, norm: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model, config.head_bias)
        self.norm, self.activation = norm, config.head_activation

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(apply_linear(self.dense, x, activation=self.activation))
        return result
