"""The interface between generation and models. Letters: R rows, N packed tokens, M model width, V vocabulary."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from uwaga.nn import KeyValueCache
from uwaga.ops.ragged import Operand, Ragged


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """A model with the key-value cache of the rows that are being generated."""

    first: Ragged  # (N,) ids of the prompts; of an encoder-decoder, the start token of each
    cache: KeyValueCache
    # (N, M) hidden states of the next ids (N,); appends their keys and values to the cache
    states: Callable[[Ragged], Operand]
    logits: Callable[[Tensor], Tensor]  # (R, V) of hidden states (R, M)

    def first_logits(self) -> Tensor:
        """(R, V) float32: logits of the first new token of each row. Raises ValueError: they contain NaN."""
        return self._next(self.first)

    def next_logits(self, token_R: Tensor) -> Tensor:
        """(R, V) float32: logits of the token after token_R, (R,) ids, one per row. Raises ValueError: they contain NaN."""
        return self._next(Ragged(token_R, torch.arange(len(token_R) + 1, device=token_R.device), max_length=1))

    def reorder(self, rows: Tensor) -> None:
        """Row r becomes the previous row rows[r]; rows, 1-d int64, may be left out or repeated."""
        self.cache.reorder(rows)

    def _next(self, ids: Ragged) -> Tensor:
        hidden = self.states(ids)
        assert isinstance(hidden, Ragged)
        # Logits of the last token of each row alone: the output layer is the largest of a model.
        logits_RV = self.logits(hidden.values[hidden.offsets[1:] - 1]).float()
        if bool(logits_RV.isnan().any()):
            raise ValueError("generate: the model's logits contain NaN")
        return logits_RV
