"""The embeddings of a Transformer. Letters: B batch, Q tokens, M model width, N packed tokens, V vocabulary."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from uwaga._base.tracing import is_plain_eager
from uwaga.models.configuration import Config
from uwaga.nn import LearnedPositions, SinusoidalPositions
from uwaga.nn.operand import map_values, values_of
from uwaga.nn.plain_modules import apply_dropout, apply_linear, is_plain
from uwaga.nn.positions import roberta_positions, token_positions
from uwaga.ops.norms import Lookup, embedding_norm
from uwaga.ops.ragged import Operand, Ragged


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
        self.norm: Any = config.norm_of(width) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.projection = nn.Linear(width, config.d_model) if config.projects_embeddings else None
        self.factor = config.d_model**0.5 if config.scale_embedding else 1.0
        self.rounds_factor = config.rounds_scale
        # RoBERTa's first position is one after this; padding tokens have this position.
        self.padding_position = config.pad_token_id if config.positions_after_padding else None

    def forward(self, ids: Operand, token_types: Operand | None = None, start: int | torch.Tensor = 0) -> Operand:
        """(..., Q, M), or Ragged (N, M), from ids (..., Q), or Ragged (N,). token_types None: all 0. start: the position of the first
        token, as in `uwaga.nn.LearnedPositions`."""
        x = self._one_operation(ids, token_types) if self._is_plain() else self._sum(ids, token_types, start)
        x = apply_dropout(self.dropout, x)
        x = x if self.projection is None else apply_linear(self.projection, x)
        return ids.with_values(x) if isinstance(ids, Ragged) else x

    def words(self, ids: torch.Tensor) -> torch.Tensor:
        """(..., M): the embeddings of tokens alone, from ids (...)."""
        x: torch.Tensor = self.token_embedding(ids)
        if self.rounds_factor:
            return x * torch.tensor(self.factor, dtype=x.dtype)
        return x if self.factor == 1.0 else x * self.factor

    def position_ids(self, ids: Operand, start: int | torch.Tensor = 0) -> torch.Tensor:
        """The rows of learned positions: (..., Q), or (N,) of Ragged ids."""
        if self.padding_position is not None:
            return values_of(roberta_positions(ids, self.padding_position))
        at = token_positions("Embeddings", map_values(lambda values: values[..., None], ids), start)
        return at.expand(values_of(ids).shape)

    def _sum(self, ids: Operand, token_types: Operand | None, start: int | torch.Tensor) -> torch.Tensor:
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
            and all(is_plain(x, nn.Embedding) and not (x.max_norm or x.sparse or x.scale_grad_by_freq) for x in tables)
            and all(x.padding_idx is None for x in tables)
            and is_plain(self.positions, LearnedPositions)
            and is_plain(self.norm, nn.LayerNorm)
        )

    def _one_operation(self, ids: Operand, token_types: Operand | None) -> torch.Tensor:
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
