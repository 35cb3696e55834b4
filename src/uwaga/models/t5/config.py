"""The configuration of a T5 model. Letters: M model width, F feed-forward width, H query heads, D head width, V vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uwaga._base.validators import POSITIVE, SWITCH, check, one_of
from uwaga.models.checkpoints.config_json import COUNT, IDS, OPTIONAL_COUNT, PROBABILITY, SIZE

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


@dataclass(frozen=True, kw_only=True)
class T5Config:
    """The configuration of a T5Model; the defaults are those of t5-small.

    Raises:
        ValueError: a setting of a wrong type or range, or settings that contradict each other.
    """

    model_type: str = "t5"
    vocab_size: int = 32128  # V
    d_model: int = 512  # M
    num_layers: int = 6  # of the encoder
    num_decoder_layers: int = 6  # 0: only an encoder
    num_heads: int = 8  # H
    d_kv: int = 64  # D, the width of queries, keys and values; H * D may differ from M
    d_ff: int = 2048  # F
    num_buckets: int = 32  # buckets of distances
    max_distance: int = 128  # distances from here on share the last bucket
    activation: str = "relu"
    gated: bool = False
    norm_eps: float = 1e-6  # of the norms
    dropout: float = 0.1  # of embeddings, attention weights, layer outputs and final hidden states
    tie_word_embeddings: bool = True  # logits by the token embedding; False: by lm_head, which has its own weight
    scale_decoder_outputs: bool = True  # hidden states are divided by sqrt(M) before the head
    eos_token_ids: tuple[int, ...] = (1,)  # ids of the end-of-sequence tokens
    pad_token_id: int | None = 0  # the id of the padding token
    decoder_start_token_id: int = 0  # the id of the decoder's first token
    kept: Mapping[str, object] = field(default_factory=dict, repr=False)  # other keys of config.json, unchanged

    def __post_init__(self) -> None:
        check("T5Config", self, _KINDS)
        if self.decoder_start_token_id >= self.vocab_size:
            raise ValueError(
                f"T5Config: decoder_start_token_id {self.decoder_start_token_id} is not in the vocabulary of {self.vocab_size}"
            )

    @property
    def output_vocab_size(self) -> int:
        """The number of ids that it can output."""
        return self.vocab_size

    @property
    def max_tokens(self) -> None:
        """None: rows of any length, since positions are relative."""
        return
