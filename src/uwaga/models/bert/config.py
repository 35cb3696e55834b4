"""The settings of a BERT. Letters: M model width, F hidden width, H query heads, V vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uwaga.models import settings
from uwaga.models.settings import CHANCE, COUNT, OPTIONAL_COUNT, POSITIVE, SIZE, SWITCH, one_of

# What a model can give besides its hidden states; the names are those of the fields of BertOutput.
OUTPUTS = ("pooled", "masked_lm", "next_sentence", "sequence", "tokens")

# Kinds of models by what transformers calls them. They differ in these settings' defaults, in positions and in heads.
ROBERTA = ("roberta", "xlm-roberta", "camembert")
MODEL_TYPES = ("bert", "distilbert", *ROBERTA)
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")

_KINDS = {
    "model_type": one_of(*MODEL_TYPES),
    "vocabulary": SIZE,
    "width": SIZE,
    "layers": COUNT,
    "heads": SIZE,
    "hidden": SIZE,
    "positions": SIZE,
    "token_types": COUNT,
    "activation": one_of(*ACTIVATIONS),
    "eps": POSITIVE,
    "dropout": CHANCE,
    "attention_dropout": CHANCE,
    "classifier_dropout": CHANCE,
    "padding": OPTIONAL_COUNT,
    "tied": SWITCH,
}


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """What a BertModel is made of; the defaults are those of bert-base-uncased.

    Raises:
        ValueError: a setting that is not of its kind, or settings that do not go together.
    """

    model_type: str = "bert"
    vocabulary: int = 30522  # V
    width: int = 768  # M
    layers: int = 12
    heads: int = 12  # H
    hidden: int = 3072  # F
    positions: int = 512  # rows of the table of positions; RoBERTa's use starts behind the row of the padding token
    token_types: int = 2  # 0: no embedding of token types, as in DistilBERT
    activation: str = "gelu"
    eps: float = 1e-12  # of the layer norms
    dropout: float = 0.1
    attention_dropout: float = 0.1
    classifier_dropout: float = 0.1  # before a classifier of sequences or tokens
    padding: int | None = 0  # the id of the padding token
    outputs: tuple[str, ...] = ("pooled",)  # of OUTPUTS
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")  # of the classifiers
    tied: bool = True  # the masked-LM head reads the embedding of words
    kept: Mapping[str, object] = field(default_factory=dict, repr=False)  # more of config.json, as it was

    def __post_init__(self) -> None:
        settings.check("BertConfig", self, _KINDS)
        if self.width % self.heads:
            raise ValueError(f"BertConfig: width {self.width} is no multiple of {self.heads} heads")
        if set(self.outputs) - set(OUTPUTS) or len(set(self.outputs)) < len(self.outputs):
            raise ValueError(f"BertConfig: outputs must be some of {', '.join(OUTPUTS)}, not {self.outputs}")
        if "next_sentence" in self.outputs and "pooled" not in self.outputs:
            raise ValueError("BertConfig: the output next_sentence is made from pooled, which is not among the outputs")
        if not self.labels:
            raise ValueError("BertConfig: labels must name at least one class")
        if self.is_roberta and (self.padding is None or self.padding + 1 >= self.positions):
            raise ValueError(
                f"BertConfig: positions start behind the padding token's, {self.padding}, of {self.positions}"
            )
        if self.padding is not None and self.padding >= self.vocabulary:
            raise ValueError(f"BertConfig: padding {self.padding} is not in the vocabulary of {self.vocabulary}")

    @property
    def is_roberta(self) -> bool:
        return self.model_type in ROBERTA

    @property
    def max_tokens(self) -> int:
        """The longest row that there are positions for."""
        return self.positions - (self.padding + 1 if self.is_roberta else 0)
