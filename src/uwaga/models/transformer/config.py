"""The configuration of an original Transformer. Letters: M model width, F feed-forward width, H query heads, V vocabulary."""

from dataclasses import field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from uwaga._base.options import FractionBelow1, Positive, Real, Switch, options
from uwaga.models.checkpoints.config_json import Activation, Ids, ModelCount, ModelSize

_Slope = Annotated[Real, Ge(0), Le(1024)]


@options
class TransformerConfig:
    """The configuration of a Transformer; the defaults are those of the paper's base model (Vaswani et al. 2017, table 3).

    Raises:
        ValueError: a setting of a wrong type or range, or settings that contradict each other.
    """

    vocab_size: ModelSize = 37000  # V
    decoder_vocab_size: ModelSize | None = (
        None  # of the decoder, which then has its own embedding; None: encoder and decoder share one
    )
    d_model: ModelSize = 512  # M
    num_layers: ModelCount = 6  # of the encoder; 0: only a decoder, a language model
    num_decoder_layers: ModelCount = 6  # 0: only an encoder
    num_heads: ModelSize = 8  # H
    num_decoder_heads: ModelSize | None = None  # None: as the encoder
    d_ff: ModelSize = 2048  # F
    decoder_d_ff: ModelSize | None = None  # None: as the encoder
    activation: Activation = "relu"
    norm: Literal["post", "pre"] = "post"  # "pre": before attention and feed-forward layers, with a final norm
    norm_eps: Positive = 1e-5  # of the norms
    position_encoding: Literal["sinusoidal", "alibi"] = (
        "sinusoidal"  # added to the embeddings; "alibi": a bias of the scores of self-attention
    )
    # Of ALiBi, one for each head; a head of slope 0 has no positions (NoPE; Kazemnejad et al. 2023). None: the paper's.
    alibi_slopes: tuple[_Slope, ...] | None = None
    sinusoid_layout: Literal["interleaved", "halves"] = (
        "interleaved"  # sines and cosines alternate; "halves": all sines first
    )
    scale_embedding: Switch = True  # the embedding is multiplied by sqrt(M)
    tie_word_embeddings: Switch = (
        True  # logits by the decoder's token embedding; False: by lm_head, which has its own weight
    )
    lm_head_bias: Switch = False
    dropout: FractionBelow1 = 0.1  # of embeddings and of the output of attention and feed-forward layers
    attention_dropout: FractionBelow1 = 0.0
    activation_dropout: FractionBelow1 = 0.0
    eos_token_ids: Ids = (0,)  # ids of the end-of-sequence tokens
    pad_token_id: ModelCount | None = None  # the id of the padding token, which is never generated
    decoder_start_token_id: ModelCount = 0  # the id of the decoder's first token
    kept: dict[str, Any] = field(default_factory=dict, repr=False)  # other keys of config.json, unchanged

    def __post_init__(self) -> None:
        if not self.num_layers and not self.num_decoder_layers:
            raise ValueError("TransformerConfig: num_layers and num_decoder_layers are both 0: the model has no layers")
        for heads in (self.num_heads, self.num_decoder_heads or self.num_heads):
            if self.d_model % heads:
                raise ValueError(f"TransformerConfig: d_model {self.d_model} is not a multiple of {heads} heads")
            if self.alibi_slopes is not None and len(self.alibi_slopes) != heads:
                raise ValueError(
                    f"TransformerConfig: alibi_slopes has {len(self.alibi_slopes)} slopes for {heads} heads"
                )
        if self.alibi_slopes is not None and self.position_encoding != "alibi":
            raise ValueError(
                f"TransformerConfig: alibi_slopes is for position_encoding 'alibi', not {self.position_encoding!r}"
            )
        if self.d_model % 2 and self.position_encoding == "sinusoidal":
            raise ValueError(f"TransformerConfig: d_model {self.d_model} must be even for sinusoidal positions")
        if self.decoder_vocab_size is not None and not (self.num_layers and self.num_decoder_layers):
            raise ValueError("TransformerConfig: decoder_vocab_size needs an encoder and a decoder")
        if self.decoder_start_token_id >= self.output_vocab_size:
            raise ValueError(
                f"TransformerConfig: decoder_start_token_id {self.decoder_start_token_id} is not in the vocabulary of {self.output_vocab_size}"
            )
        if self.pad_token_id is not None and self.pad_token_id >= self.output_vocab_size:
            raise ValueError(
                f"TransformerConfig: pad_token_id {self.pad_token_id} is not in the vocabulary of {self.output_vocab_size}"
            )

    @property
    def model_type(self) -> str:
        """model_type in config.json: marian where Marian of transformers computes the same; else a name that transformers does
        not know, since it would compute something else."""
        marian = ("post", 1e-5, "sinusoidal", "halves", True, True)
        is_marian = (
            self.norm,
            self.norm_eps,
            self.position_encoding,
            self.sinusoid_layout,
            self.tie_word_embeddings,
            self.lm_head_bias,
        ) == marian
        return "marian" if is_marian and self.num_layers and self.num_decoder_layers else "uwaga-transformer"

    @property
    def output_vocab_size(self) -> int:
        """The number of ids that the decoder reads and can output."""
        return self.vocab_size if self.decoder_vocab_size is None else self.decoder_vocab_size

    @property
    def max_tokens(self) -> None:
        """None: rows of any length, since positions are computed."""
        return
