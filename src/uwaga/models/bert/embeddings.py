"""The embeddings of BERT: words, positions and token types, summed and normed. Letters: B Q N M V as everywhere."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from uwaga.models.bert.config import BertConfig
from uwaga.nn import LearnedPositions
from uwaga.nn.operand import map_values
from uwaga.ops.ragged import Operand, Ragged


class BertEmbeddings(nn.Module):
    """norm(words + token types + positions) (Devlin et al., "BERT", 2019, figure 2).

    Submodules: token_embedding (V, M), positions, token_types (None in DistilBERT), norm.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = LearnedPositions(config.max_position_embeddings, config.d_model)
        self.token_types = nn.Embedding(config.type_vocab_size, config.d_model) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        # RoBERTa counts from here, and gives every padding token this one.
        self.padding_place = config.pad_token_id if config.is_roberta else None

    def forward(self, ids: Operand, token_types: Operand | None) -> Operand:
        """(..., Q, M), or Ragged (N, M), from ids (..., Q), or Ragged (N,). token_types None: all 0."""
        x = map_values(self.token_embedding, ids)
        if self.token_types is not None:
            types = map_values(torch.zeros_like, ids) if token_types is None else token_types
            x = map_values(torch.add, x, map_values(self.token_types, types))
        return map_values(lambda values: self.dropout(self.norm(values)), self._with_positions(x, ids))

    def _with_positions(self, x: Operand, ids: Operand) -> Operand:
        if self.padding_place is None:
            return self.positions(x)
        places = roberta_places(ids, self.padding_place)
        return map_values(torch.add, x, map_values(lambda at: functional.embedding(at, self.positions.weight), places))


def roberta_places(ids: Operand, padding: int) -> Operand:
    """Positions by RoBERTa's count: padding + 1 for the first token of a row that is not padding, padding for padding.

    >>> roberta_places(torch.tensor([[5, 1, 7, 1]]), padding=1)
    tensor([[2, 1, 3, 1]])
    >>> roberta_places(Ragged(torch.tensor([5, 6, 7]), torch.tensor([0, 2, 3])), padding=1).values
    tensor([2, 3, 2])
    """
    is_token = map_values(lambda values: values != padding, ids)
    counted = map_values(lambda values: values.cumsum(-1), is_token)
    if isinstance(counted, Ragged):
        counted = counted.with_values(counted.values - _counted_before(counted))
    return map_values(lambda count, token: count * token + padding, counted, is_token)


def _counted_before(counted: Ragged) -> Tensor:
    """(N,): what the count was before each token's row began."""
    before_N1 = torch.cat((counted.values.new_zeros(1), counted.values))
    row_N = torch.repeat_interleave(counted.lengths, output_size=counted.values.shape[0])
    return before_N1[counted.offsets[:-1]][row_N]
