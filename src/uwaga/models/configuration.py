"""The configuration of a Transformer. Letters: M model width, F feed-forward width, H query heads, G key heads, D head width, V vocabulary."""

from collections.abc import Iterator, Set
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from uwaga._base.options import FractionBelow1, Positive, Real, Switch, Text, options
from uwaga.models.checkpoints.config_json import Activation, Ids, LayerCount, ModelCount, ModelSize, SomeLayers
from uwaga.models.checkpoints.rope_parameters import Rope

# Layers that share weights cost memory in no file, so that no file bounds their number.
_MOST_SHARED = 1024
_Slope = Annotated[Real, Ge(0), Le(1024)]
Output = Literal["pooled", "logits", "sequence", "tokens"]
OUTPUTS: tuple[Output, ...] = ("pooled", "logits", "sequence", "tokens")


@options
class Config:
    """The settings of a `Transformer`. `uwaga.models.config` makes a Config with the defaults of a model type.

    A model type has only some of these settings, and `uwaga.models.config` rejects the others:

    - sizes: `vocab_size`, `d_model`, `num_layers`, `num_heads`, `num_kv_heads`, `d_k`, `d_ff`
    - decoder of a model with both: `num_decoder_layers`, `num_decoder_heads`, `decoder_d_ff`, `decoder_vocab_size`
    - embeddings: `type_vocab_size`, `embedding_size`, `scale_embedding`
    - positions: `position_encoding`, `max_position_embeddings`, `sinusoid_layout`, `alibi_slopes`, `ropes`, `num_buckets`, `max_distance`
    - attention: `is_causal`, `windows`, `band`, `scale`, `scale_by_layer`, `softcap`, `qkv_bias`
    - layers: `activation`, `gated`, `feed_forward_bias`, `norm`, `norm_eps`, `norm_bias`
    - outputs: `outputs`, `labels`, `tie_word_embeddings`, `logit_softcap`, `scale_decoder_outputs`
    - head for logits: `head_activation`, `head_bias`, `lm_head_bias`
    - dropout: `dropout`, `embedding_dropout`, `attention_dropout`, `activation_dropout`, `classifier_dropout`
    - token ids: `pad_token_id`, `eos_token_ids`, `decoder_start_token_id`

    `band=n` in `gpt2` lets every second layer see only the last n tokens, as in GPT-3; the model type is then `uwaga-gpt3`.
    In `uwaga-transformer`, `num_decoder_layers=0` leaves only the encoder and `num_layers=0` only the decoder. `outputs=()` leaves out all
    heads. A file does not show whether a tied head was left out: T5 and the original Transformer with a decoder are loaded with one.

    Raises:
        ValueError: a setting of a wrong type or range, or settings that contradict each other.
    """

    model_type: Text  # as in config.json of transformers
    vocab_size: ModelSize  # V
    # Of a decoder with its own embedding; None: encoder and decoder share one
    decoder_vocab_size: ModelSize | None = None
    d_model: ModelSize  # M
    num_layers: SomeLayers  # of the encoder, or of the only stack
    num_decoder_layers: LayerCount = 0  # of a decoder that reads the encoder's output
    is_causal: Switch = False  # the only stack is a decoder: no token sees those after it
    num_heads: ModelSize  # H
    num_decoder_heads: ModelSize | None = None  # None: as the encoder
    num_kv_heads: ModelSize | None = None  # G; None: H
    d_k: ModelSize | None = None  # D; None: M / H
    d_ff: ModelSize  # F
    decoder_d_ff: ModelSize | None = None  # None: as the encoder

    # Embeddings.
    embedding_size: ModelSize | None = None  # their width, which a linear map brings to M; None: M
    projects_embeddings: Switch = False  # whether there is such a map
    type_vocab_size: ModelCount = 0  # 0: no embedding of token types
    # ALiBi: a bias of the scores of self-attention
    position_encoding: Literal["learned", "sinusoidal", "alibi"] | None = None
    # Rows of learned positions; the greatest number of tokens of a row
    max_position_embeddings: ModelSize | None = None
    positions_after_padding: Switch = False  # RoBERTa: learned positions begin after the row of pad_token_id
    # Sines and cosines alternate; "halves": all sines first
    sinusoid_layout: Literal["interleaved", "halves"] = "interleaved"
    # Of ALiBi, one for each head; a head of slope 0 has no positions (NoPE; Kazemnejad et al. 2023). None: the paper's.
    alibi_slopes: tuple[_Slope, ...] | None = None
    scale_embedding: Switch = False  # token embeddings are multiplied by sqrt(M)
    rounds_scale: Switch = False  # and that factor is rounded to the dtype of the weights first, as in Gemma
    embedding_norm: Switch = False

    # Layers.
    # Buckets of a relative position bias that the layers of a stack share; None: there is no such bias
    num_buckets: ModelSize | None = None
    max_distance: ModelSize = 128  # distances from here on share the last bucket
    ropes: tuple[Rope, ...] = ()  # rotary positions of each layer; (): no rotary positions
    # For each layer: in a decoder, the last tokens that are seen, the token itself included; in an encoder, the tokens on each
    # side; None: all. (): all in all layers.
    windows: tuple[ModelSize | None, ...] = ()
    shares_layers: Switch = False  # all layers have the same weights, as in ALBERT
    norm: Literal["post", "pre"] = "post"
    norm_type: Literal["layer", "rms", "zero_centered_rms"] = "layer"
    norm_eps: Positive = 1e-5
    norm_bias: Switch = True  # of layer norms
    output_norms: Switch = False  # of the outputs of attention and of the feed-forward layer
    first_norm: Switch = True  # False: the first layer's attention has no norm, since its input is normed already
    activation: Activation = "gelu"
    gated: Switch = False  # the feed-forward layers have a gate
    qkv_bias: Switch = True
    output_bias: Switch = True
    feed_forward_bias: Switch = True
    down_bias: Switch | None = None  # of the last map of the feed-forward layer; None: as feed_forward_bias
    qk_norm: Switch = False
    scale: Positive | None = None  # of scores; None: 1 / sqrt(D)
    scale_by_layer: Switch = False  # which is divided by the layer's number, counted from 1
    softcap: Positive | None = None  # of scores, and of logits: c * tanh(x / c)

    # Outputs.
    outputs: tuple[Output, ...] = ()  # the heads that it has
    tie_word_embeddings: Switch = True  # logits by the token embedding; False: by a weight of their own
    # Hidden states go through a linear map, this, and a norm before the logits
    head_activation: Activation | None = None
    head_bias: Switch = True  # of that linear map
    lm_head_bias: Switch = False
    scale_decoder_outputs: Switch = False  # hidden states are divided by sqrt(M) before the logits
    logit_softcap: Positive | None = None
    # Of sequences: over the pooler's output, or a layer of its own
    classifier: Literal["pooled", "tanh", "gelu", "relu"] = "pooled"
    labels: tuple[Text, ...] = ("LABEL_0", "LABEL_1")  # names of the classes

    dropout: FractionBelow1 = 0.0  # of the outputs of attention and of the feed-forward layer
    embedding_dropout: FractionBelow1 = 0.0
    attention_dropout: FractionBelow1 = 0.0
    activation_dropout: FractionBelow1 = 0.0
    final_dropout: FractionBelow1 = 0.0  # of the last hidden states of a stack
    classifier_dropout: FractionBelow1 = 0.0

    eos_token_ids: Ids = ()  # ids of the end-of-sequence tokens
    pad_token_id: ModelCount | None = None  # the id of the padding token
    never_generated: Ids = ()
    decoder_start_token_id: ModelCount = 0  # the id of the decoder's first token
    kept: dict[str, Any] = field(default_factory=dict, repr=False)  # other keys of config.json, unchanged

    def __post_init__(self) -> None:
        for rule in self._broken_rules():
            raise ValueError(f"Config: {rule}")

    def _broken_rules(self) -> Iterator[str]:
        heads = {self.num_heads, self.num_decoder_heads or self.num_heads}
        if self.d_k is None and any(self.d_model % count for count in heads):
            yield f"d_model {self.d_model} is not a multiple of {next(count for count in heads if self.d_model % count)} heads"
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            yield f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
        if self.head_width % 2 and self.ropes:
            yield f"d_k must be even for rotary positions, not {self.head_width}"
        for name in ("windows", "ropes"):
            if len(getattr(self, name)) not in (0, self.num_layers):
                yield f"{name} must have an entry for each of {self.num_layers} layers, not {getattr(self, name)}"
        if len(set(self.outputs)) < len(self.outputs):
            yield f"outputs must all be different, not {self.outputs}"
        if "sequence" in self.outputs and self.classifier == "pooled" and "pooled" not in self.outputs:
            yield "output sequence is computed from pooled, which is not in outputs"
        if not self.labels or len(set(self.labels)) < len(self.labels):
            yield "labels must be at least one name, and all different"
        if not self.has_both and self.decoder_vocab_size is not None:
            yield "decoder_vocab_size needs an encoder and a decoder"
        for name in ("pad_token_id", "decoder_start_token_id"):
            if (getattr(self, name) or 0) >= self.output_vocab_size:
                yield f"{name} {getattr(self, name)} is not in the vocabulary of {self.output_vocab_size}"
        yield from self._broken_rules_of_positions(heads)
        if self.shares_layers and self.num_layers > _MOST_SHARED:
            yield f"num_layers {self.num_layers} is more than {_MOST_SHARED}, whose layers share weights"

    def _broken_rules_of_positions(self, heads: Set[int]) -> Iterator[str]:
        if self.position_encoding == "learned" and self.max_position_embeddings is None:
            yield "learned positions need max_position_embeddings"
        if self.embedding_width % 2 and self.position_encoding == "sinusoidal":
            yield f"d_model {self.embedding_width} must be even for sinusoidal positions"
        if self.alibi_slopes is not None and self.position_encoding != "alibi":
            yield f"alibi_slopes is for position_encoding 'alibi', not {self.position_encoding!r}"
        if self.alibi_slopes is not None and heads != {len(self.alibi_slopes)}:
            yield f"alibi_slopes has {len(self.alibi_slopes)} slopes for {next(iter(heads - {len(self.alibi_slopes)}))} heads"
        most = self.max_tokens
        if (most is not None and most < 1) or (self.positions_after_padding and self.pad_token_id is None):
            values = f"{self.max_position_embeddings} and {self.pad_token_id}"
            yield f"max_position_embeddings must be above pad_token_id + 1, not {values}"

    @cached_property
    def embedding_width(self) -> int:
        """The width of the embeddings."""
        return self.embedding_size or self.d_model

    @cached_property
    def head_width(self) -> int:
        """D."""
        return self.d_k or self.d_model // self.num_heads

    @cached_property
    def has_both(self) -> bool:
        """Whether it has an encoder and a decoder that reads the encoder's output."""
        return self.num_decoder_layers > 0

    @cached_property
    def output_vocab_size(self) -> int:
        """The number of ids that it can output."""
        return self.decoder_vocab_size or self.vocab_size

    @cached_property
    def max_tokens(self) -> int | None:
        """The greatest number of tokens of a row, or None if a row may have any length, since positions are computed."""
        most = self.max_position_embeddings
        if most is None or not self.positions_after_padding:
            return most
        return most - (self.pad_token_id or 0) - 1
