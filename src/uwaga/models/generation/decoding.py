"""The interface between generation and models. Letters: R rows, N packed tokens, M model width, V vocabulary."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from uwaga.nn import KeyValueCache
from uwaga.ops.ragged import Operand, Ragged


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """A model with the key-value cache of the rows that are being generated."""

    first: Ragged  # (N,) ids of the prompts; of an encoder-decoder, the start token of each
    cache: KeyValueCache
    states: Callable[
        [Ragged], Operand
    ]  # (N, M) hidden states of the next ids (N,), whose keys and values go to the cache
    logits: Callable[[Tensor], Tensor]  # (R, V) of hidden states (R, M)

    def first_logits(self) -> Tensor:
        """(R, V) float32: logits of the first new token of each row."""
        return self._next(self.first)

    def next_logits(self, token_R: Tensor) -> Tensor:
        """(R, V) float32: logits of the token after one more token in each row."""
        return self._next(Ragged(token_R, torch.arange(len(token_R) + 1, device=token_R.device), max_length=1))

    def reorder(self, rows: Tensor) -> None:
        """Row r becomes the former row rows[r]; rows may be left out and repeated."""
        self.cache.reorder(rows)

    def _next(self, ids: Ragged) -> Tensor:
        hidden = self.states(ids)
        assert isinstance(hidden, Ragged)
        # Logits of the last token of each row alone: the output layer is the largest of a model.
        logits_RV = self.logits(hidden.values[hidden.offsets[1:] - 1]).float()
        if bool(logits_RV.isnan().any()):
            raise ValueError("generate: the model's logits contain NaN")
        return logits_RV


class GeneratorConfig(Protocol):
    """The configuration of a model that generates text."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]  # ids of tokens that end a text
    pad_token_id: int | None  # the id of the padding token

    @property
    def output_vocab_size(self) -> int:
        """How many ids there are to write, which need not be those to read."""

    @property
    def max_tokens(self) -> int | None:
        """The longest row that there are positions for; None: any."""


class Generator(Protocol):
    """A model that generates text."""

    config: GeneratorConfig
    training: bool
    prompt_counts: bool  # whether prompt and new tokens stand in one row, and share its positions

    def decoding(self, prompts: Ragged, new_tokens: int) -> Decoding:
        """The state before the first new token of prompts, (N,) ids; the cache has room for `new_tokens`."""
