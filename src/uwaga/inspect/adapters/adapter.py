"""What is needed of a model that reads texts.

Letters: T tokens, M model width, V vocabulary.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple, Protocol

from torch import Tensor, nn


class Head(NamedTuple):
    """What predicts tokens from states.

    kind: "next": the token after each; "masked": the token at its place.
    logits: (n, V) from (n, M).
    """

    kind: Literal["next", "masked"]
    logits: Callable[[Tensor], Tensor]


class Adapter(Protocol):
    """A model that reads token ids."""

    @property
    def has_both(self) -> bool:
        """Whether it has an encoder and a decoder of its own."""

    @property
    def max_tokens(self) -> int | None:
        """Of a text, special tokens included; None: any number."""

    @property
    def decoder_start_token_id(self) -> int:
        """What the decoder of a model with both reads first."""

    @property
    def eos_token_ids(self) -> Collection[int]:
        """What ends a text that is generated."""

    @property
    def continues(self) -> bool:
        """Whether its last stack is a decoder."""

    def attentions(self) -> list[nn.Module]:
        """Its attention layers."""

    def layers(self) -> list[nn.Module]:
        """Modules that are called once in a pass, by which progress is counted, in the order in which they are computed."""

    def read(self, ids: Tensor, decoder_ids: Tensor | None) -> Tensor:
        """Run it once over ids (1, T): states (T, M) of the last stack after its last layer.

        decoder_ids: (1, T) of a model with both; None for others.
        """

    def read_each(self, texts: Sequence[Sequence[int]]) -> None:
        """Run it once over a batch, for its maps; a decoder of a model with both reads the same texts."""

    def generate(self, ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """What the decoder of a model with both generates, without the start token. Raises ValueError: it generates nothing."""

    def head(self) -> Head | None:
        """None for a model that predicts no tokens."""
