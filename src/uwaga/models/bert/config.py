"""The settings of a BERT. Letters: M model width, F hidden width, H query heads, V vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uwaga._base import renamed
from uwaga._base.options import POSITIVE, SWITCH, check, one_of
from uwaga.models.config_json import COUNT, OPTIONAL_COUNT, PROBABILITY, SIZE

# What a model can give besides its hidden states; the names are those of the fields of BertOutput.
OUTPUTS = ("pooled", "masked_lm", "next_sentence", "sequence", "tokens")

# Kinds of models by what transformers calls them. They differ in these settings' defaults, in positions and in heads.
ROBERTA = ("roberta", "xlm-roberta", "camembert")
MODEL_TYPES = ("bert", "distilbert", *ROBERTA)
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")

_KINDS = {
    "model_type": one_of(*MODEL_TYPES),
    "vocab_size": SIZE,
    "d_model": SIZE,
    "num_layers": COUNT,
    "num_heads": SIZE,
    "d_ff": SIZE,
    "max_position_embeddings": SIZE,
    "type_vocab_size": COUNT,
    "activation": one_of(*ACTIVATIONS),
    "norm_eps": POSITIVE,
    "dropout": PROBABILITY,
    "attention_dropout": PROBABILITY,
    "classifier_dropout": PROBABILITY,
    "pad_token_id": OPTIONAL_COUNT,
    "tie_word_embeddings": SWITCH,
}


@renamed.parameters(
    vocabulary="vocab_size",
    width="d_model",
    hidden="d_ff",
    layers="num_layers",
    heads="num_heads",
    eps="norm_eps",
    padding="pad_token_id",
    positions="max_position_embeddings",
    token_types="type_vocab_size",
    tied="tie_word_embeddings",
)
@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """What a BertModel is made of; the defaults are those of bert-base-uncased.

    Raises:
        ValueError: a setting that is not of its kind, or settings that do not go together.
    """

    model_type: str = "bert"
    vocab_size: int = 30522  # V
    d_model: int = 768  # M
    num_layers: int = 12
    num_heads: int = 12  # H
    d_ff: int = 3072  # F
    max_position_embeddings: int = (
        512  # rows of the table of positions; RoBERTa's use starts behind the row of the padding token
    )
    type_vocab_size: int = 2  # 0: no embedding of token types, as in DistilBERT
    activation: str = "gelu"
    norm_eps: float = 1e-12  # of the layer norms
    dropout: float = 0.1
    attention_dropout: float = 0.1
    classifier_dropout: float = 0.1  # before a classifier of sequences or tokens
    pad_token_id: int | None = 0  # the id of the padding token
    outputs: tuple[str, ...] = ("pooled",)  # of OUTPUTS
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")  # of the classifiers
    tie_word_embeddings: bool = True  # the masked-LM head reads the embedding of words
    kept: Mapping[str, object] = field(default_factory=dict, repr=False)  # more of config.json, as it was

    def __post_init__(self) -> None:
        check("BertConfig", self, _KINDS)
        if self.d_model % self.num_heads:
            raise ValueError(f"BertConfig: d_model {self.d_model} is not a multiple of num_heads {self.num_heads}")
        if set(self.outputs) - set(OUTPUTS) or len(set(self.outputs)) < len(self.outputs):
            raise ValueError(f"BertConfig: outputs must be some of {', '.join(OUTPUTS)}, not {self.outputs}")
        self._check_outputs()
        if (self.type_vocab_size == 0) != (self.model_type == "distilbert"):
            raise ValueError(
                f"BertConfig: a {self.model_type} model cannot have type_vocab_size {self.type_vocab_size}"
            )
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise ValueError("BertConfig: labels must name at least one class, and each by another name")
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError(
                f"BertConfig: pad_token_id {self.pad_token_id} is not in the vocabulary of {self.vocab_size}"
            )
        if self.is_roberta and (self.pad_token_id is None or self.max_tokens < 1):
            rule = f"counts positions from behind that of its padding token, {self.pad_token_id}, and has {self.max_position_embeddings}"
            raise ValueError(f"BertConfig: a {self.model_type} model {rule}")

    def _check_outputs(self) -> None:
        made_from_pooled = {"next_sentence"} | ({"sequence"} if self.model_type == "bert" else set())
        for name in self.outputs:
            if name in made_from_pooled and "pooled" not in self.outputs:
                raise ValueError(f"BertConfig: {name} is made from pooled, which is not among the outputs")
            if name in ("pooled", "next_sentence") and self.model_type == "distilbert":
                raise ValueError(f"BertConfig: a distilbert model has no output {name}")

    @property
    def is_roberta(self) -> bool:
        return self.model_type in ROBERTA

    @property
    def max_tokens(self) -> int:
        """The longest row that there are positions for."""
        first = 0 if self.pad_token_id is None or not self.is_roberta else self.pad_token_id + 1
        return self.max_position_embeddings - first
