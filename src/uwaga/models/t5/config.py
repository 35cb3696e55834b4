"""The settings of a T5. Letters: M model width, F hidden width, H query heads, D head width, V vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uwaga.models import settings
from uwaga.models.settings import CHANCE, COUNT, OPTIONAL_COUNT, POSITIVE, SIZE, SWITCH, one_of
from uwaga.models.token_ids import IDS

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
MODEL_TYPES = ("t5", "mt5")

_KINDS = {
    "model_type": one_of(*MODEL_TYPES),
    "vocabulary": SIZE,
    "width": SIZE,
    "layers": SIZE,
    "decoder_layers": COUNT,
    "heads": SIZE,
    "key_width": SIZE,
    "hidden": SIZE,
    "buckets": SIZE,
    "max_distance": SIZE,
    "activation": one_of(*ACTIVATIONS),
    "gated": SWITCH,
    "eps": POSITIVE,
    "dropout": CHANCE,
    "head": one_of("tied", "own"),
    "scaled": SWITCH,
    "ends": IDS,
    "padding": OPTIONAL_COUNT,
    "start": COUNT,
}


@dataclass(frozen=True, kw_only=True)
class T5Config:
    """What a T5Model is made of; the defaults are those of t5-small.

    Raises:
        ValueError: a setting that is not of its kind, or settings that do not go together.
    """

    model_type: str = "t5"
    vocabulary: int = 32128  # V
    width: int = 512  # M
    layers: int = 6  # of the encoder
    decoder_layers: int = 6  # 0: the encoder alone
    heads: int = 8  # H
    key_width: int = 64  # D, of queries, keys and values; H * D need not be M
    hidden: int = 2048  # F
    buckets: int = 32  # of distances
    max_distance: int = 128  # from here on all distances share the last bucket
    activation: str = "relu"
    gated: bool = False
    eps: float = 1e-6  # of the norms
    dropout: float = 0.1  # everywhere
    head: str = "tied"  # what gives logits: "tied", the embedding of words; "own", a map of its own
    scaled: bool = True  # states are divided by the root of the width before the head
    ends: tuple[int, ...] = (1,)  # ids of tokens that end a text
    padding: int | None = 0  # the id of the padding token
    start: int = 0  # the id of the token that the decoder begins with
    kept: Mapping[str, object] = field(default_factory=dict, repr=False)  # more of config.json, as it was

    def __post_init__(self) -> None:
        settings.check("T5Config", self, _KINDS)
        if self.start >= self.vocabulary:
            raise ValueError(f"T5Config: start {self.start} is not in the vocabulary of {self.vocabulary}")

    @property
    def written(self) -> int:
        """How many ids it may write: those that it reads."""
        return self.vocabulary

    @property
    def max_tokens(self) -> None:
        """Positions are distances: rows may be of any length."""
        return
