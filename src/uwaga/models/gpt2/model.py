"""GPT-2: a pre-norm decoder over embeddings of tokens and positions.

Letters: B batch, Q tokens, M model width, N packed tokens, V vocabulary.
"""

from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from uwaga.models.generation.decoding import Decoding
from uwaga.models.gpt2.config import GPT2Config
from uwaga.models.layer_stack import StackOutput, run_layers
from uwaga.models.tokenizers import token_ids
from uwaga.nn import EncoderLayer, KeyValueCache, LayerSpec, LearnedPositions
from uwaga.nn.operand import map_values
from uwaga.nn.plain_modules import apply_dropout
from uwaga.ops.linear.api import linear_map
from uwaga.ops.masks import Causal, Mask, Window
from uwaga.ops.ragged import Operand, Ragged

_NAME = "GPT2Model"


class GPT2Output(NamedTuple):
    """The outputs of a GPT2Model: Ragged where the ids are."""

    last_hidden_state: Operand  # (B, Q, M), after the final norm
    logits: Operand | None = None  # (B, Q, V), of the next token; None: no head, or not requested
    hidden_states: tuple[Operand, ...] | None = None  # of the embeddings and of every layer, before the final norm


class GPT2Model(nn.Module):
    """GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), by config.

    With config.band, every second layer attends to a band of the last tokens only: "alternating dense and locally
    banded sparse attention patterns in the layers" (Brown et al., "Language Models are Few-Shot Learners", 2020, section
    2.1; Child et al., "Generating Long Sequences with Sparse Transformers", 2019). The first layer is dense.

    Submodules: token_embedding (V, M), positions, layers, norm, and lm_head, None where config.tie_word_embeddings or not config.has_lm_head.

    >>> import torch, uwaga
    >>> model = GPT2Model(GPT2Config(vocab_size=20, d_model=8, num_layers=2, num_heads=2, d_ff=16, max_position_embeddings=10)).eval()
    >>> texts = uwaga.Ragged.from_list([torch.tensor([3, 4, 5]), torch.tensor([6])])
    >>> model(texts).logits.values.shape
    torch.Size([4, 20])
    """

    is_decoder_only = True

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = LearnedPositions(config.max_position_embeddings, config.d_model)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(EncoderLayer(_layer(config, n)) for n in range(config.num_layers))
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        has_own_head = config.has_lm_head and not config.tie_word_embeddings
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False) if has_own_head else None

    def forward(
        self,
        ids: Operand,
        *,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        logits: bool | None = None,
        output_hidden_states: bool = False,
    ) -> GPT2Output:
        """The hidden states, and the logits of the next token.

        Args:
            ids: token ids (B, Q), or Ragged with values (N,): texts one after another, without padding.
            lengths: (B,) the number of tokens of each row of padded ids. Padding comes after them; no token attends to it.
            attention_mask: (B, Q) bool, True is a token; an alternative to lengths. Positions are counted from the start of
                the row, as in transformers.
            cache: keys and values of the tokens before these, made by `new_cache`; those of `ids` are appended. Rows may have
                different lengths, without padding.
            logits: whether to compute logits; None: where the model has a head.
            output_hidden_states: also return the hidden states of the embeddings and of every layer.

        Raises:
            ShapeError, ValueError: ids of a wrong shape, dtype or range; more tokens than config.max_tokens; padding together
                with a cache; logits of a model without a head.
        """
        wants_logits = self.config.has_lm_head if logits is None else logits
        token_ids.check_ids(_NAME, "ids", ids, self.config.vocab_size)
        token_ids.check_length(_NAME, ids, self.config.max_tokens)
        if cache is not None and not (lengths is None and attention_mask is None):
            raise ValueError(
                f"{_NAME}: a cache does not support padding: give Ragged ids instead of lengths or attention_mask"
            )
        if cache is not None and len(cache) != len(self.layers):
            raise ValueError(f"{_NAME}: the cache has {len(cache)} layers, the model {len(self.layers)}")
        padding = token_ids.padding_mask(_NAME, ids, lengths, attention_mask)
        decoded = self._decode(ids, padding, cache, output_hidden_states)
        return GPT2Output(
            last_hidden_state=decoded.last,
            logits=map_values(partial(self.logits, batch_invariant=cache is None), decoded.last)
            if wants_logits
            else None,
            hidden_states=decoded.states,
        )

    def _decode(
        self, ids: Operand, padding: Mask | Tensor | None, cache: KeyValueCache | None, states: bool
    ) -> StackOutput:
        x = self.positions(map_values(self.token_embedding, ids), 0 if cache is None else cache.start)

        def call(layer: nn.Module, n: int, x: Operand) -> Operand:
            mask = self._mask(n) if padding is None else self._mask(n) & padding
            return layer(x, mask=mask, cache=None if cache is None else cache[n])

        return run_layers(
            self.layers, self.norm, map_values(partial(apply_dropout, self.dropout), x), call, states=states
        )

    def _mask(self, layer: int) -> Mask:
        if self.config.band is None or layer % 2 == 0:
            return Causal()
        return Window(self.config.band - 1, 0)

    def logits(self, hidden: Tensor, *, batch_invariant: bool = True) -> Tensor:
        """(..., V) from hidden states (..., M); batch_invariant as in `uwaga.nn.FeedForward`. Raises ValueError: the model has no
        head."""
        if not self.config.has_lm_head:
            raise ValueError(f"{_NAME}: this model has no head for logits")
        weight_VM = self.token_embedding.weight if self.lm_head is None else self.lm_head.weight
        return linear_map(hidden, weight_VM, batch_invariant=batch_invariant)

    def new_cache(self, *, capacity: int = 0) -> KeyValueCache:
        """An empty cache for this model; capacity: tokens per row to allocate in advance."""
        return KeyValueCache(len(self.layers), capacity=capacity)

    def decoding(self, prompts: Ragged, new_tokens: int) -> Decoding:
        """For `uwaga.models.generate`: the state before the first new token of each prompt; prompts: ids (N,)."""
        cache = self.new_cache(capacity=prompts.max_length + new_tokens)
        return Decoding(
            first=prompts,
            cache=cache,
            states=lambda ids: self(ids, cache=cache, logits=False).last_hidden_state,
            logits=partial(self.logits, batch_invariant=False),
        )


def _layer(config: GPT2Config, layer: int) -> LayerSpec:
    width = config.d_model // config.num_heads
    scale = width**-0.5 if config.scale_attn_weights else 1.0
    return LayerSpec(
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_ff=config.d_ff,
        norm="pre",
        norm_eps=config.norm_eps,
        activation=config.activation,
        scale=scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )
