"""The settings of an original Transformer. Letters: M model width, F hidden width, H query heads, V vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uwaga._base import renamed
from uwaga._base.options import POSITIVE, SWITCH, check, one_of
from uwaga.models.config_json import COUNT, IDS, OPTIONAL_COUNT, OPTIONAL_SIZE, PROBABILITY, SIZE

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
MODEL_TYPES = ("marian", "uwaga-transformer")

KINDS = {
    "vocab_size": SIZE,
    "decoder_vocab_size": OPTIONAL_SIZE,
    "d_model": SIZE,
    "num_layers": COUNT,
    "num_decoder_layers": COUNT,
    "num_heads": SIZE,
    "num_decoder_heads": OPTIONAL_SIZE,
    "d_ff": SIZE,
    "decoder_d_ff": OPTIONAL_SIZE,
    "activation": one_of(*ACTIVATIONS),
    "norm": one_of("post", "pre"),
    "norm_eps": POSITIVE,
    "position_encoding": one_of("sinusoidal", "alibi"),
    "sinusoid_layout": one_of("interleaved", "halves"),
    "scale_embedding": SWITCH,
    "tie_word_embeddings": SWITCH,
    "lm_head_bias": SWITCH,
    "dropout": PROBABILITY,
    "attention_dropout": PROBABILITY,
    "activation_dropout": PROBABILITY,
    "eos_token_ids": IDS,
    "pad_token_id": OPTIONAL_COUNT,
    "decoder_start_token_id": COUNT,
}


# Former names of the fields, which were the keys of config.json as well.
RENAMED = {
    "vocabulary": "vocab_size",
    "width": "d_model",
    "hidden": "d_ff",
    "layers": "num_layers",
    "heads": "num_heads",
    "eps": "norm_eps",
    "padding": "pad_token_id",
    "ends": "eos_token_ids",
    "head": "tie_word_embeddings",
    "target_vocabulary": "decoder_vocab_size",
    "decoder_hidden": "decoder_d_ff",
    "decoder_layers": "num_decoder_layers",
    "decoder_heads": "num_decoder_heads",
    "positions": "position_encoding",
    "layout": "sinusoid_layout",
    "start": "decoder_start_token_id",
    "head_bias": "lm_head_bias",
    "scaled_words": "scale_embedding",
    "hidden_dropout": "activation_dropout",
}


@renamed.parameters(**RENAMED)
@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """What a Transformer is made of; the defaults are those of the paper's base model (Vaswani et al. 2017, table 3).

    Raises:
        ValueError: a setting that is not of its kind, or settings that do not go together.
    """

    vocab_size: int = 37000  # V
    decoder_vocab_size: int | None = None  # of the decoder, with an embedding of its own; None: one embedding for both
    d_model: int = 512  # M
    num_layers: int = 6  # of the encoder; 0: the decoder alone, a language model
    num_decoder_layers: int = 6  # 0: the encoder alone
    num_heads: int = 8  # H
    num_decoder_heads: int | None = None  # as the encoder's
    d_ff: int = 2048  # F
    decoder_d_ff: int | None = None  # as the encoder's
    activation: str = "relu"
    norm: str = "post"  # "pre": before attention and feed-forward layers, and once more at the end
    norm_eps: float = 1e-5  # of the norms
    position_encoding: str = "sinusoidal"  # added to the words; "alibi": a bias of self-attention's scores by distance
    sinusoid_layout: str = "interleaved"  # of sines and cosines: in turn, or "halves", all sines first
    scale_embedding: bool = True  # the embedding is multiplied by the root of the width
    tie_word_embeddings: bool = (
        True  # the decoder's token embedding gives logits; False: lm_head, a linear map of its own
    )
    lm_head_bias: bool = False
    dropout: float = 0.1  # of embeddings and of what a residual connection adds
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    eos_token_ids: tuple[int, ...] = (0,)  # ids of tokens that end a text
    pad_token_id: int | None = None  # the id of the padding token, which is read and never output_vocab_size
    decoder_start_token_id: int = 0  # the id of the token that the decoder begins with
    kept: Mapping[str, object] = field(default_factory=dict, repr=False)  # more of config.json, as it was

    def __post_init__(self) -> None:
        check("TransformerConfig", self, KINDS)
        if not self.num_layers and not self.num_decoder_layers:
            raise ValueError("TransformerConfig: num_layers and num_decoder_layers are both 0: the model has no layers")
        for heads in (self.num_heads, self.num_decoder_heads or self.num_heads):
            if self.d_model % heads:
                raise ValueError(f"TransformerConfig: d_model {self.d_model} is not a multiple of {heads} heads")
        if self.d_model % 2 and self.position_encoding == "sinusoidal":
            raise ValueError(f"TransformerConfig: d_model {self.d_model} is odd, and sines and cosines come in pairs")
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
        """What config.json calls it: Marian's where transformers' Marian computes the same, else a name that it does not
        know, rather than one under which it would compute something else."""
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
        """How many ids the decoder reads and writes."""
        return self.vocab_size if self.decoder_vocab_size is None else self.decoder_vocab_size

    @property
    def max_tokens(self) -> None:
        """Sines, cosines and distances go on for ever: rows may be of any length."""
        return
