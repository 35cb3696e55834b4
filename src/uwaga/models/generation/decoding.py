"""What generation needs of a model, and a model in the middle of generating. Letters: R rows, N packed tokens, M width,
V vocabulary."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from uwaga.nn import KeyValueCache
from uwaga.ops.ragged import Operand, Ragged


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """A model that has read the prompts' rows up to some token, and can be asked for the next."""

    first: Ragged  # (N,) ids to begin with: the prompts, or of an encoder-decoder the start token of each
    cache: KeyValueCache
    states: Callable[[Ragged], Operand]  # Ragged hidden states (N, M) of the next ids (N,), which the cache keeps
    logits: Callable[[Tensor], Tensor]  # (R, V) of hidden states (R, M)

    def begin(self) -> Tensor:
        """(R, V) float32: logits of each row's first new token."""
        return self._next(self.first)

    def go_on(self, token_R: Tensor) -> Tensor:
        """(R, V) float32: logits of what comes after one more token in each row."""
        return self._next(Ragged(token_R, torch.arange(len(token_R) + 1, device=token_R.device), max_length=1))

    def reorder(self, rows: Tensor) -> None:
        """Row r becomes what row rows[r] is; rows may be left out and repeated."""
        self.cache.reorder(rows)

    def _next(self, ids: Ragged) -> Tensor:
        hidden = self.states(ids)
        assert isinstance(hidden, Ragged)
        # Only the last token of a row is asked for: a vocabulary is much wider than a model.
        logits_RV = self.logits(hidden.values[hidden.offsets[1:] - 1]).float()
        if bool(logits_RV.isnan().any()):
            raise ValueError("generate: the model's logits hold nan")
        return logits_RV


class GeneratorConfig(Protocol):
    """The settings of a model that writes text."""

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
    """A model that writes text."""

    config: GeneratorConfig
    training: bool
    prompt_counts: bool  # whether prompt and new tokens stand in one row, and share its positions

    def decoding(self, prompts: Ragged, new_tokens: int) -> Decoding:
        """Ready for the first new token of each prompt, (N,) ids; there will be at most so many."""
