"""BERT: a post-norm encoder over embeddings of words, positions and token types, and what stands on top of it.

Letters: B batch, Q tokens, M model width, N packed tokens, R ragged rows, V vocabulary, C classes.
"""

from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from uwaga._base import renamed
from uwaga.models import inputs
from uwaga.models.bert.config import BertConfig
from uwaga.models.bert.embeddings import BertEmbeddings
from uwaga.models.bert.heads import MaskedLMHead, Pooler, SequenceHead, TokenHead
from uwaga.nn import Encoder, LayerSpec
from uwaga.nn.batch_invariant import apply_linear
from uwaga.nn.operand import map_values
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand

_NAME = "BertModel"


@renamed.attributes(hidden="last_hidden_state", states="hidden_states")
class BertOutput(NamedTuple):
    """What a BertModel gives; None what it has no head for, or was not asked for. Ragged where the ids are."""

    last_hidden_state: Operand  # (B, Q, M), after the last layer
    pooled: Tensor | None = None  # (B, M), or (R, M)
    masked_lm: Operand | None = None  # (B, Q, V), scores before softmax, as all below
    next_sentence: Tensor | None = None  # (B, 2)
    sequence: Tensor | None = None  # (B, C)
    tokens: Operand | None = None  # (B, Q, C)
    hidden_states: tuple[Operand, ...] | None = None  # after the embeddings and after every layer


class BertModel(nn.Module):
    """BERT (Devlin et al., "BERT", 2019), RoBERTa (Liu et al. 2019) and DistilBERT (Sanh et al. 2019), by config.

    Submodules: embeddings, encoder, and pooler, masked_lm, next_sentence, sequence, tokens, each None unless
    config.outputs has it.

    >>> import torch, uwaga
    >>> config = BertConfig(vocab_size=20, d_model=8, num_layers=2, num_heads=2, d_ff=16, max_position_embeddings=10)
    >>> model = BertModel(config).eval()
    >>> documents = uwaga.Ragged.from_list([torch.tensor([3, 4, 5]), torch.tensor([6])])
    >>> output = model(documents)
    >>> output.last_hidden_state.values.shape, output.pooled.shape
    (torch.Size([4, 8]), torch.Size([2, 8]))
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        has = config.outputs.__contains__
        self.embeddings = BertEmbeddings(config)
        self.encoder = Encoder(_layer(config), config.num_layers)
        self.pooler = Pooler(config) if has("pooled") else None
        self.masked_lm = MaskedLMHead(config) if has("masked_lm") else None
        self.next_sentence = nn.Linear(config.d_model, 2) if has("next_sentence") else None
        self.sequence = SequenceHead(config) if has("sequence") else None
        self.tokens = TokenHead(config) if has("tokens") else None

    @renamed.parameters(states="output_hidden_states")
    def forward(
        self,
        ids: Operand,
        *,
        token_types: Operand | None = None,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        outputs: Collection[str] | None = None,
        output_hidden_states: bool = False,
    ) -> BertOutput:
        """Hidden states, and what the heads make of them.

        Args:
            ids: token ids (B, Q), or Ragged with values (N,): documents one after the other, no padding anywhere.
            token_types: as ids; None for all 0.
            lengths: (B,) tokens in each row of padded ids; what stands behind them is seen by nobody, and its own
                states mean nothing.
            attention_mask: (B, Q) bool instead, True is a token; the first of them is the one that is pooled. Positions
                count from the start of the row, as in transformers (RoBERTa: from the first token).
            outputs: which of config.outputs to compute; None for all of them, () for the hidden states alone.
            output_hidden_states: whether to give the states after every layer too.

        Raises:
            ShapeError, ValueError: ids of another shape, dtype or range, rows longer than config.max_tokens, outputs
                that the model has no head for, an empty row where a first token is pooled.
        """
        wanted = self._wanted(outputs)
        self._check(ids, token_types)
        mask = inputs.key_mask(_NAME, ids, lengths, attention_mask)
        seen = self._encode(self.embeddings(ids, token_types), mask, output_hidden_states)
        found = self._heads(seen[-1], wanted, attention_mask)
        return BertOutput(
            last_hidden_state=seen[-1],
            hidden_states=seen if output_hidden_states else None,
            **{name: found[name] for name in wanted},
        )

    def _encode(self, x: Operand, mask: Mask | Tensor | None, states: bool) -> tuple[Operand, ...]:
        """The states after the last layer; where asked, those before any layer and after each."""
        seen: tuple[Operand, ...] = (x,)
        for layer in self.encoder.layers:
            x = layer(x, mask=mask)
            seen = (*seen, x) if states else (x,)
        return seen

    def _heads(self, hidden: Operand, wanted: Collection[str], attention_mask: Tensor | None) -> dict[str, Any]:
        """The wanted outputs by name, and what they are made from."""
        found: dict[str, Any] = {}
        if {"pooled", "next_sentence", "sequence"} & set(wanted):
            first_BM = inputs.first_tokens(_NAME, hidden, attention_mask)
            pooled_BM = None if self.pooler is None else self.pooler(first_BM)
            found["pooled"] = pooled_BM
        if "masked_lm" in wanted and self.masked_lm is not None:
            found["masked_lm"] = map_values(
                partial(self.masked_lm, embedding_VM=self.embeddings.token_embedding.weight), hidden
            )
        if "next_sentence" in wanted and self.next_sentence is not None and pooled_BM is not None:
            found["next_sentence"] = apply_linear(self.next_sentence, pooled_BM)
        if "sequence" in wanted and self.sequence is not None:
            found["sequence"] = self.sequence(first_BM, pooled_BM)
        if "tokens" in wanted and self.tokens is not None:
            found["tokens"] = map_values(self.tokens, hidden)
        return found

    def _wanted(self, outputs: Collection[str] | None) -> Collection[str]:
        if outputs is None:
            return self.config.outputs
        absent = sorted(set(outputs) - set(self.config.outputs))
        if absent:
            has = ", ".join(self.config.outputs) or "none"
            raise ValueError(f"{_NAME}: there is no output {', '.join(absent)}; this model's are: {has}")
        return outputs

    def _check(self, ids: Operand, token_types: Operand | None) -> None:
        inputs.check_ids(_NAME, "ids", ids, self.config.vocab_size)
        inputs.check_tokens(_NAME, ids, self.config.max_tokens)
        if token_types is None:
            return
        if self.embeddings.token_types is None:
            raise ValueError(f"{_NAME}: a {self.config.model_type} model has no token types")
        inputs.check_alike(_NAME, ids, "token_types", token_types)
        inputs.check_ids(_NAME, "token_types", token_types, self.config.type_vocab_size)


def _layer(config: BertConfig) -> LayerSpec:
    return LayerSpec(
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_ff=config.d_ff,
        norm="post",
        norm_eps=config.norm_eps,
        activation=config.activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )
