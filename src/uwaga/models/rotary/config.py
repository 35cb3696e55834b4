"""The configuration of a RotaryModel. Letters: M model width, F feed-forward width, H query heads, G key heads, D head width, V vocabulary."""

from dataclasses import field
from typing import Annotated, Any, Literal

from annotated_types import Gt

from uwaga._base.options import FractionBelow1, Positive, Real, Switch, options
from uwaga.models.checkpoints.config_json import Activation, Ids, ModelCount, ModelSize
from uwaga.models.checkpoints.rope_parameters import Rope
from uwaga.nn import LayerSpec
from uwaga.nn.rotary_scaling import RotaryScaling

GEMMA = ("gemma2", "gemma3_text")
DECODERS = (*GEMMA, "llama", "mistral", "qwen2", "qwen3")


@options
class RotaryConfig:
    """The configuration of a RotaryModel; the defaults are of a small Llama.

    Raises:
        ValueError: a setting of a wrong type or range, or settings that contradict each other.
    """

    model_type: Literal["gemma2", "gemma3_text", "llama", "mistral", "qwen2", "qwen3", "eurobert", "modernbert"] = (
        "llama"  # modernbert is an encoder, with layer norms; the others have RMS norms, and all but eurobert are decoders
    )
    vocab_size: ModelSize = 32000  # V
    d_model: ModelSize = 256  # M
    num_layers: ModelSize = 2
    num_heads: ModelSize = 4  # H
    num_kv_heads: ModelSize = 4  # G
    d_k: ModelSize = 64  # D
    d_ff: ModelSize = 1024  # F
    max_position_embeddings: ModelSize = 2048  # the greatest number of tokens of a row
    bidirectional: Switch = False  # of a Gemma 3: an encoder, whose tokens see all others
    query_pre_attn_scalar: Positive | None = None  # scores are divided by its square root; None: d_k
    softcap: Positive | None = None  # of scores, and of logits: c * tanh(x / c)
    logit_softcap: Positive | None = None
    activation: Activation = "silu"  # of the gate of the feed-forward layers
    norm_eps: Positive = 1e-6
    norm_bias: Switch = False  # of layer norms
    qkv_bias: Switch = False
    output_bias: Switch = False
    feed_forward_bias: Switch = False
    # For each layer: in a decoder, the last tokens that are seen, the token itself included; in an encoder, the tokens on each side; None: all.
    windows: tuple[ModelSize | None, ...] = (None, None)
    rotary_bases: tuple[Annotated[Real, Gt(1)], ...] = (10000.0, 10000.0)  # for each layer
    rotary_scaling: tuple[RotaryScaling | None, ...] = ()  # for each layer; (): none
    embedding_dropout: FractionBelow1 = 0.0
    attention_dropout: FractionBelow1 = 0.0
    activation_dropout: FractionBelow1 = 0.0
    tie_word_embeddings: Switch = False  # logits by the token embedding; False: by lm_head, which has its own weight
    has_lm_head: Switch = True  # False: the model has no logits
    lm_head_bias: Switch = False
    head_activation: Activation | None = (
        None  # of ModernBERT: hidden states go through a linear map, this, and a norm before the logits
    )
    head_bias: Switch = False  # of that linear map
    eos_token_ids: Ids = ()  # ids of the end-of-sequence tokens
    pad_token_id: ModelCount | None = None  # the id of the padding token
    kept: dict[str, Any] = field(default_factory=dict, repr=False)  # other keys of config.json, unchanged

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"RotaryConfig: num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.d_k % 2:
            raise ValueError(f"RotaryConfig: d_k must be even, not {self.d_k}")
        for name in ("windows", "rotary_bases"):
            if len(getattr(self, name)) != self.num_layers:
                raise ValueError(
                    f"RotaryConfig: {name} must have one for each of {self.num_layers} layers, not {getattr(self, name)}"
                )
        if self.rotary_scaling and len(self.rotary_scaling) != self.num_layers:
            raise ValueError(
                f"RotaryConfig: rotary_scaling must have one for each of {self.num_layers} layers or none, not {self.rotary_scaling}"
            )
        if self.bidirectional and self.model_type != "gemma3_text":
            raise ValueError(f"RotaryConfig: bidirectional needs the model_type gemma3_text, not {self.model_type}")
        has_head = self.has_lm_head and self.model_type == "modernbert"
        if (self.head_activation is not None) != has_head:
            raise ValueError("RotaryConfig: head_activation is of a modernbert model with has_lm_head, which needs it")
        if self.tie_word_embeddings and self.is_causal and not self.has_lm_head:
            raise ValueError(
                "RotaryConfig: tie_word_embeddings needs has_lm_head: a model without logits has nothing to tie"
            )

    @property
    def is_causal(self) -> bool:
        """Whether it is a decoder, whose tokens see those before them."""
        return self.model_type in DECODERS and not self.bidirectional

    @property
    def norm_type(self) -> str:
        """As in `uwaga.nn.LayerSpec`."""
        return {"modernbert": "layer"}.get(self.model_type, "zero_centered_rms" if self.is_gemma else "rms")

    @property
    def is_gemma(self) -> bool:
        """Whether embeddings are multiplied by sqrt(M), norms are zero-centered, and outputs of sublayers have norms."""
        return self.model_type in GEMMA

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The rotary positions of each layer."""
        return tuple(map(Rope, self.rotary_bases, self.rotary_scaling or (None,) * self.num_layers))

    @property
    def outputs(self) -> tuple[str, ...]:
        """What it computes besides its hidden states."""
        return ("logits",) if self.has_lm_head else ()

    @property
    def output_vocab_size(self) -> int:
        """The number of ids that it can output."""
        return self.vocab_size

    @property
    def max_tokens(self) -> int:
        """The greatest number of tokens of a row."""
        return self.max_position_embeddings

    @property
    def layer(self) -> LayerSpec:
        """What every layer consists of."""
        scalar = self.query_pre_attn_scalar
        return LayerSpec(
            d_model=self.d_model,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            d_k=self.d_k,
            d_ff=self.d_ff,
            norm="pre",
            norm_type=self.norm_type,
            output_norms=self.is_gemma,
            norm_eps=self.norm_eps,
            norm_bias=self.norm_bias,
            activation=self.activation,
            gated=True,
            qkv_bias=self.qkv_bias,
            output_bias=self.output_bias,
            feed_forward_bias=self.feed_forward_bias,
            qk_norm=self.model_type in ("qwen3", "gemma3_text"),
            scale=None if scalar is None else scalar**-0.5,
            softcap=self.softcap,
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
        )
