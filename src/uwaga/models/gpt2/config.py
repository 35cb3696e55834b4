"""The configuration of a GPT-2 model. Letters: M model width, F feed-forward width, H query heads, V vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uwaga._base.validators import POSITIVE, SWITCH, check, one_of
from uwaga.models.checkpoints.config_json import IDS, OPTIONAL_COUNT, OPTIONAL_SIZE, PROBABILITY, SIZE

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
MODEL_TYPES = ("gpt2", "uwaga-gpt3")

_KINDS = {
    "vocab_size": SIZE,
    "d_model": SIZE,
    "num_layers": SIZE,
    "num_heads": SIZE,
    "d_ff": SIZE,
    "max_position_embeddings": SIZE,
    "band": OPTIONAL_SIZE,
    "activation": one_of(*ACTIVATIONS),
    "norm_eps": POSITIVE,
    "dropout": PROBABILITY,
    "embedding_dropout": PROBABILITY,
    "attention_dropout": PROBABILITY,
    "scale_attn_weights": SWITCH,
    "scale_attn_by_inverse_layer_idx": SWITCH,
    "tie_word_embeddings": SWITCH,
    "has_lm_head": SWITCH,
    "eos_token_ids": IDS,
    "pad_token_id": OPTIONAL_COUNT,
}


@dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """The configuration of a GPT2Model; the defaults are those of gpt2, the smallest.

    Raises:
        ValueError: a setting of a wrong type or range, or settings that contradict each other.
    """

    vocab_size: int = 50257  # V
    d_model: int = 768  # M
    num_layers: int = 12
    num_heads: int = 12  # H
    d_ff: int = 3072  # F
    max_position_embeddings: int = 1024  # the greatest number of tokens of a row
    band: int | None = (
        None  # every second layer attends to this many last tokens, the token itself included; None: to all
    )
    activation: str = "gelu_tanh"
    norm_eps: float = 1e-5  # of the layer norms
    dropout: float = 0.1  # of the output of attention and of the feed-forward layer
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.1
    scale_attn_weights: bool = True  # scores are divided by sqrt(head width)
    scale_attn_by_inverse_layer_idx: bool = False  # and by the layer's number, counted from 1
    tie_word_embeddings: bool = True  # logits by the token embedding; False: by lm_head, which has its own weight
    has_lm_head: bool = True  # False: the model has no logits
    eos_token_ids: tuple[int, ...] = (50256,)  # ids of the end-of-sequence tokens
    pad_token_id: int | None = None  # the id of the padding token
    kept: Mapping[str, object] = field(default_factory=dict, repr=False)  # other keys of config.json, unchanged

    def __post_init__(self) -> None:
        check("GPT2Config", self, _KINDS)
        if self.d_model % self.num_heads:
            raise ValueError(f"GPT2Config: d_model {self.d_model} is not a multiple of num_heads {self.num_heads}")
        if self.tie_word_embeddings and not self.has_lm_head:
            raise ValueError(
                "GPT2Config: tie_word_embeddings needs has_lm_head: a model without logits has nothing to tie"
            )

    @property
    def model_type(self) -> str:
        """model_type in config.json. With `band` it is a name that transformers does not know: under the name gpt2,
        transformers would load the model and compute something else."""
        return "gpt2" if self.band is None else "uwaga-gpt3"

    @property
    def output_vocab_size(self) -> int:
        """The number of ids that it can output."""
        return self.vocab_size

    @property
    def max_tokens(self) -> int:
        """The greatest number of tokens of a row."""
        return self.max_position_embeddings
