"""The keys and values of a model's tokens so far, so that the next token costs one row and not all of them again."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from uwaga._base import renamed
from uwaga.nn.slots import CrossSlot, SelfSlot


class LayerCache(NamedTuple):
    """The slots of one layer."""

    attention: SelfSlot
    cross_attention: CrossSlot


@renamed.parameters(layers="num_layers")
class KeyValueCache:
    """The keys and values of every layer (after Shazeer, "Fast Transformer Decoding", 2019, section 2.4).

        cache = KeyValueCache(num_layers=12)
        decoder(prompts, mask=Causal(), cache=cache)            # Ragged prompts: each row is as long as it is
        decoder(next_tokens, mask=Causal(), cache=cache)        # padded (R, 1, M), or Ragged with any number a row

    Masks and biases are those of the new tokens over all keys: Causal() means what it says, also where rows differ in
    length. A dense mask or bias is over as many keys as the longest row has.

    Args:
        num_layers: how many.
        capacity: tokens per row to make room for at once; else room starts with the first tokens and doubles.
    """

    def __init__(self, num_layers: int, *, capacity: int = 0) -> None:
        self._layers = tuple(LayerCache(SelfSlot(capacity), CrossSlot()) for _ in range(num_layers))

    def __getitem__(self, layer: int) -> LayerCache:
        return self._layers[layer]

    def __iter__(self) -> Iterator[LayerCache]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def start(self) -> int | Tensor:
        """Where the next token stands, for positions: a number where all rows agree, else (R,) int64. Between two passes
        through the model; during one, the first layers are ahead of the last."""
        return self._layers[0].attention.start

    @property
    def lengths(self) -> Tensor:
        """(R,) int64: the tokens of each row; (0,) while the cache is empty."""
        return self._layers[0].attention.lengths

    def rewind(self, length: int | Tensor) -> None:
        """Forget the tokens from `length` on, of every row or with one number per row, (R,), in every layer.

        Raises:
            ValueError: a length below 0 or beyond what a row holds.
        """
        for layer in self._layers:
            layer.attention.rewind(length)

    def reorder(self, rows: Tensor) -> None:
        """Row r becomes what row rows[r] is, in every layer, cross-attention's too.

        Args:
            rows: (any,) int64; rows may be left out and repeated, as beams are.

        Raises:
            ValueError: a row that there is not.
        """
        for layer in self._layers:
            layer.attention.reorder(rows)
            layer.cross_attention.reorder(rows)
