"""The settings of an original Transformer. Letters: M model width, F hidden width, H query heads, V vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uwaga.models import settings
from uwaga.models.settings import CHANCE, COUNT, OPTIONAL_COUNT, POSITIVE, SIZE, SWITCH, one_of
from uwaga.models.token_ids import IDS, OPTIONAL_SIZE

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
MODEL_TYPES = ("marian", "uwaga-transformer")

KINDS = {
    "vocabulary": SIZE,
    "target_vocabulary": OPTIONAL_SIZE,
    "width": SIZE,
    "layers": COUNT,
    "decoder_layers": COUNT,
    "heads": SIZE,
    "decoder_heads": OPTIONAL_SIZE,
    "hidden": SIZE,
    "decoder_hidden": OPTIONAL_SIZE,
    "activation": one_of(*ACTIVATIONS),
    "norm": one_of("post", "pre"),
    "eps": POSITIVE,
    "positions": one_of("sinusoidal", "alibi"),
    "layout": one_of("interleaved", "halves"),
    "scaled_words": SWITCH,
    "head": one_of("tied", "own"),
    "head_bias": SWITCH,
    "dropout": CHANCE,
    "attention_dropout": CHANCE,
    "hidden_dropout": CHANCE,
    "ends": IDS,
    "padding": OPTIONAL_COUNT,
    "start": COUNT,
}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """What a Transformer is made of; the defaults are those of the paper's base model (Vaswani et al. 2017, table 3).

    Raises:
        ValueError: a setting that is not of its kind, or settings that do not go together.
    """

    vocabulary: int = 37000  # V
    target_vocabulary: int | None = None  # of the decoder, with an embedding of its own; None: one embedding for both
    width: int = 512  # M
    layers: int = 6  # of the encoder; 0: the decoder alone, a language model
    decoder_layers: int = 6  # 0: the encoder alone
    heads: int = 8  # H
    decoder_heads: int | None = None  # as the encoder's
    hidden: int = 2048  # F
    decoder_hidden: int | None = None  # as the encoder's
    activation: str = "relu"
    norm: str = "post"  # "pre": before attention and feed-forward layers, and once more at the end
    eps: float = 1e-5  # of the norms
    positions: str = "sinusoidal"  # added to the words; "alibi": a bias of self-attention's scores by distance
    layout: str = "interleaved"  # of sines and cosines: in turn, or "halves", all sines first
    scaled_words: bool = True  # the embedding is multiplied by the root of the width
    head: str = "tied"  # what gives logits: "tied", the decoder's embedding of words; "own", a map of its own
    head_bias: bool = False
    dropout: float = 0.1  # of embeddings and of what a residual connection adds
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    ends: tuple[int, ...] = (0,)  # ids of tokens that end a text
    padding: int | None = None  # the id of the padding token, which is read and never written
    start: int = 0  # the id of the token that the decoder begins with
    kept: Mapping[str, object] = field(default_factory=dict, repr=False)  # more of config.json, as it was

    def __post_init__(self) -> None:
        settings.check("TransformerConfig", self, KINDS)
        if not self.layers and not self.decoder_layers:
            raise ValueError("TransformerConfig: layers and decoder_layers are both 0, and nothing is left")
        for heads in (self.heads, self.decoder_heads or self.heads):
            if self.width % heads:
                raise ValueError(f"TransformerConfig: width {self.width} is no multiple of {heads} heads")
        if self.width % 2 and self.positions == "sinusoidal":
            raise ValueError(f"TransformerConfig: width {self.width} is odd, and sines and cosines come in pairs")
        if self.target_vocabulary is not None and not (self.layers and self.decoder_layers):
            raise ValueError("TransformerConfig: a target_vocabulary is for an encoder and a decoder")
        if self.start >= self.written:
            raise ValueError(f"TransformerConfig: start {self.start} is not in the vocabulary of {self.written}")
        if self.padding is not None and self.padding >= self.written:
            raise ValueError(f"TransformerConfig: padding {self.padding} is not in the vocabulary of {self.written}")

    @property
    def model_type(self) -> str:
        """What config.json calls it: Marian's where transformers' Marian computes the same, else a name that it does not
        know, rather than one under which it would compute something else."""
        marian = ("post", 1e-5, "sinusoidal", "halves", "tied", True)
        is_marian = (self.norm, self.eps, self.positions, self.layout, self.head, self.head_bias) == marian
        return "marian" if is_marian and self.layers and self.decoder_layers else "uwaga-transformer"

    @property
    def written(self) -> int:
        """How many ids the decoder reads and writes."""
        return self.vocabulary if self.target_vocabulary is None else self.target_vocabulary

    @property
    def max_tokens(self) -> None:
        """Sines, cosines and distances go on for ever: rows may be of any length."""
        return
