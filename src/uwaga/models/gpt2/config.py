"""The settings of a GPT-2. Letters: M model width, F hidden width, H query heads, V vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uwaga.models import settings
from uwaga.models.settings import CHANCE, OPTIONAL_COUNT, POSITIVE, SIZE, SWITCH, one_of
from uwaga.models.token_ids import IDS, OPTIONAL_SIZE

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
HEADS = ("tied", "own", "none")
MODEL_TYPES = ("gpt2", "uwaga-gpt3")

_KINDS = {
    "vocabulary": SIZE,
    "width": SIZE,
    "layers": SIZE,
    "heads": SIZE,
    "hidden": SIZE,
    "positions": SIZE,
    "band": OPTIONAL_SIZE,
    "activation": one_of(*ACTIVATIONS),
    "eps": POSITIVE,
    "dropout": CHANCE,
    "embedding_dropout": CHANCE,
    "attention_dropout": CHANCE,
    "scaled": SWITCH,
    "scaled_by_layer": SWITCH,
    "head": one_of(*HEADS),
    "ends": IDS,
    "padding": OPTIONAL_COUNT,
}


@dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """What a GPT2Model is made of; the defaults are those of gpt2, the small one.

    Raises:
        ValueError: a setting that is not of its kind, or settings that do not go together.
    """

    vocabulary: int = 50257  # V
    width: int = 768  # M
    layers: int = 12
    heads: int = 12  # H
    hidden: int = 3072  # F
    positions: int = 1024  # the longest row
    band: int | None = None  # tokens that every second layer sees, a token itself included; None: every layer sees all
    activation: str = "gelu_tanh"
    eps: float = 1e-5  # of the layer norms
    dropout: float = 0.1  # of what a residual connection adds
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.1
    scaled: bool = True  # scores are divided by the root of a head's width
    scaled_by_layer: bool = False  # and by the number of the layer, counted from 1
    head: str = "tied"  # what gives logits: "tied", the embedding of words; "own", a map of its own; "none", nothing
    ends: tuple[int, ...] = (50256,)  # ids of tokens that end a text
    padding: int | None = None  # the id of the padding token
    kept: Mapping[str, object] = field(default_factory=dict, repr=False)  # more of config.json, as it was

    def __post_init__(self) -> None:
        settings.check("GPT2Config", self, _KINDS)
        if self.width % self.heads:
            raise ValueError(f"GPT2Config: width {self.width} is no multiple of {self.heads} heads")

    @property
    def model_type(self) -> str:
        """What config.json calls it. No model of transformers has bands, so that one with them has a name of its own: under
        the name gpt2, transformers would load it and compute something else."""
        return "gpt2" if self.band is None else "uwaga-gpt3"

    @property
    def written(self) -> int:
        """How many ids it may write: those that it reads."""
        return self.vocabulary

    @property
    def max_tokens(self) -> int:
        """The longest row that there are positions for."""
        return self.positions
