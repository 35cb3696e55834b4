"""The configuration of a T5 model. Letters: M model width, F feed-forward width, H query heads, D head width, V vocabulary."""

from dataclasses import field
from typing import Any, Literal

from uwaga._base.options import FractionBelow1, Positive, Switch, options
from uwaga.models.checkpoints.config_json import Activation, Ids, ModelCount, ModelSize


@options
class T5Config:
    """The configuration of a T5Model; the defaults are those of t5-small.

    Raises:
        ValueError: a setting of a wrong type or range, or settings that contradict each other.
    """

    model_type: Literal["t5", "mt5"] = "t5"
    vocab_size: ModelSize = 32128  # V
    d_model: ModelSize = 512  # M
    num_layers: ModelSize = 6  # of the encoder
    num_decoder_layers: ModelCount = 6  # 0: only an encoder
    num_heads: ModelSize = 8  # H
    d_kv: ModelSize = 64  # D, the width of queries, keys and values; H * D may differ from M
    d_ff: ModelSize = 2048  # F
    num_buckets: ModelSize = 32  # buckets of distances
    max_distance: ModelSize = 128  # distances from here on share the last bucket
    activation: Activation = "relu"
    gated: Switch = False
    norm_eps: Positive = 1e-6  # of the norms
    dropout: FractionBelow1 = 0.1  # of embeddings, attention weights, layer outputs and final hidden states
    tie_word_embeddings: Switch = True  # logits by the token embedding; False: by lm_head, which has its own weight
    scale_decoder_outputs: Switch = True  # hidden states are divided by sqrt(M) before the head
    eos_token_ids: Ids = (1,)  # ids of the end-of-sequence tokens
    pad_token_id: ModelCount | None = 0  # the id of the padding token
    decoder_start_token_id: ModelCount = 0  # the id of the decoder's first token
    kept: dict[str, Any] = field(default_factory=dict, repr=False)  # other keys of config.json, unchanged

    def __post_init__(self) -> None:
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
