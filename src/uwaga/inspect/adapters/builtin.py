"""Models of this package as they read texts."""

from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from uwaga.inspect.adapters.adapter import Head
from uwaga.models.generation.generate import generate
from uwaga.nn import DecoderLayer, EncoderLayer, MultiHeadAttention
from uwaga.ops.ragged import Ragged


class BuiltinAdapter:
    """See `Adapter`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = cast("Any", model)

    @property
    def has_both(self) -> bool:
        """See `Adapter`."""
        return not getattr(self._model, "is_decoder_only", True) and getattr(self._model, "decoder", None) is not None

    @property
    def max_tokens(self) -> int | None:
        """See `Adapter`."""
        return cast("int | None", self._model.config.max_tokens)

    @property
    def decoder_start_token_id(self) -> int:
        """See `Adapter`."""
        return cast("int", self._model.config.decoder_start_token_id)

    @property
    def eos_token_ids(self) -> Collection[int]:
        """See `Adapter`."""
        return cast("Collection[int]", self._model.config.eos_token_ids)

    @property
    def continues(self) -> bool:
        """See `Adapter`."""
        return self.has_both or getattr(self._model, "is_decoder_only", False) is True

    def attentions(self) -> list[nn.Module]:
        """See `Adapter`."""
        return [module for module in self._model.modules() if isinstance(module, MultiHeadAttention)]

    def layers(self) -> list[nn.Module]:
        """See `Adapter`."""
        return [module for module in self._model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]

    def read(self, ids: Tensor, decoder_ids: Tensor | None) -> Tensor:
        """See `Adapter`."""
        output = self._model(ids) if decoder_ids is None else self._model(ids, decoder_ids)
        states = output.memory if output.last_hidden_state is None else output.last_hidden_state
        return cast("Tensor", states[0])

    def read_each(self, texts: Sequence[Sequence[int]]) -> None:
        """See `Adapter`."""
        ids = Ragged.from_list([torch.tensor(text) for text in texts])
        self._model(*([ids, ids] if self.has_both else [ids]))

    def generate(self, ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """See `Adapter`."""
        return cast("list[list[int]]", generate(self._model, [list(ids)], max_new_tokens=max_new_tokens))[0]

    def head(self) -> Head | None:
        """See `Adapter`."""
        model = self._model
        if model.lm_head is None:
            return None
        return Head("next" if self.continues else "masked", model.logits)
