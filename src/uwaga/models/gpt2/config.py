"""The configuration of a GPT-2 model. Letters: M model width, F feed-forward width, H query heads, V vocabulary."""

from dataclasses import field
from typing import Any

from uwaga._base.options import FractionBelow1, Positive, Switch, options
from uwaga.models.checkpoints.config_json import Activation, Ids, ModelCount, ModelSize


@options
class GPT2Config:
    """The configuration of a GPT2Model; the defaults are those of gpt2, the smallest.

    Raises:
        ValueError: a setting of a wrong type or range, or settings that contradict each other.
    """

    vocab_size: ModelSize = 50257  # V
    d_model: ModelSize = 768  # M
    num_layers: ModelSize = 12
    num_heads: ModelSize = 12  # H
    d_ff: ModelSize = 3072  # F
    max_position_embeddings: ModelSize = 1024  # the greatest number of tokens of a row
    band: ModelSize | None = (
        None  # every second layer attends to this many last tokens, the token itself included; None: to all
    )
    activation: Activation = "gelu_tanh"
    norm_eps: Positive = 1e-5  # of the layer norms
    dropout: FractionBelow1 = 0.1  # of the output of attention and of the feed-forward layer
    embedding_dropout: FractionBelow1 = 0.1
    attention_dropout: FractionBelow1 = 0.1
    scale_attn_weights: Switch = True  # scores are divided by sqrt(head width)
    scale_attn_by_inverse_layer_idx: Switch = False  # and by the layer's number, counted from 1
    tie_word_embeddings: Switch = True  # logits by the token embedding; False: by lm_head, which has its own weight
    has_lm_head: Switch = True  # False: the model has no logits
    eos_token_ids: Ids = (50256,)  # ids of the end-of-sequence tokens
    pad_token_id: ModelCount | None = None  # the id of the padding token
    kept: dict[str, Any] = field(default_factory=dict, repr=False)  # other keys of config.json, unchanged

    def __post_init__(self) -> None:
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
