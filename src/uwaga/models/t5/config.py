"""The settings of a T5. Letters: M model width, F hidden width, H query heads, D head width, V vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uwaga._base import renamed
from uwaga._base.options import POSITIVE, SWITCH, check, one_of
from uwaga.models.config_json import COUNT, IDS, OPTIONAL_COUNT, PROBABILITY, SIZE

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
MODEL_TYPES = ("t5", "mt5")

_KINDS = {
    "model_type": one_of(*MODEL_TYPES),
    "vocab_size": SIZE,
    "d_model": SIZE,
    "num_layers": SIZE,
    "num_decoder_layers": COUNT,
    "num_heads": SIZE,
    "d_kv": SIZE,
    "d_ff": SIZE,
    "num_buckets": SIZE,
    "max_distance": SIZE,
    "activation": one_of(*ACTIVATIONS),
    "gated": SWITCH,
    "norm_eps": POSITIVE,
    "dropout": PROBABILITY,
    "tie_word_embeddings": SWITCH,
    "scale_decoder_outputs": SWITCH,
    "eos_token_ids": IDS,
    "pad_token_id": OPTIONAL_COUNT,
    "decoder_start_token_id": COUNT,
}


@renamed.parameters(
    vocabulary="vocab_size",
    width="d_model",
    hidden="d_ff",
    layers="num_layers",
    heads="num_heads",
    eps="norm_eps",
    padding="pad_token_id",
    ends="eos_token_ids",
    head="tie_word_embeddings",
    decoder_layers="num_decoder_layers",
    key_width="d_kv",
    start="decoder_start_token_id",
    scaled="scale_decoder_outputs",
    buckets="num_buckets",
)
@dataclass(frozen=True, kw_only=True)
class T5Config:
    """What a T5Model is made of; the defaults are those of t5-small.

    Raises:
        ValueError: a setting that is not of its kind, or settings that do not go together.
    """

    model_type: str = "t5"
    vocab_size: int = 32128  # V
    d_model: int = 512  # M
    num_layers: int = 6  # of the encoder
    num_decoder_layers: int = 6  # 0: the encoder alone
    num_heads: int = 8  # H
    d_kv: int = 64  # D, of queries, keys and values; H * D need not be M
    d_ff: int = 2048  # F
    num_buckets: int = 32  # of distances
    max_distance: int = 128  # from here on all distances share the last bucket
    activation: str = "relu"
    gated: bool = False
    norm_eps: float = 1e-6  # of the norms
    dropout: float = 0.1  # everywhere
    tie_word_embeddings: bool = True  # the token embedding gives logits; False: lm_head, a linear map of its own
    scale_decoder_outputs: bool = True  # states are divided by the root of the width before the head
    eos_token_ids: tuple[int, ...] = (1,)  # ids of tokens that end a text
    pad_token_id: int | None = 0  # the id of the padding token
    decoder_start_token_id: int = 0  # the id of the token that the decoder begins with
    kept: Mapping[str, object] = field(default_factory=dict, repr=False)  # more of config.json, as it was

    def __post_init__(self) -> None:
        check("T5Config", self, _KINDS)
        if self.decoder_start_token_id >= self.vocab_size:
            raise ValueError(
                f"T5Config: decoder_start_token_id {self.decoder_start_token_id} is not in the vocabulary of {self.vocab_size}"
            )

    @property
    def output_vocab_size(self) -> int:
        """How many ids it may write: those that it reads."""
        return self.vocab_size

    @property
    def max_tokens(self) -> None:
        """Positions are distances: rows may be of any length."""
        return
