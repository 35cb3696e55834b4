"""The configuration of a BERT model. Letters: M model width, F feed-forward width, H query heads, V vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uwaga._base.options import POSITIVE, SWITCH, check, one_of
from uwaga.models.checkpoints.config_json import COUNT, OPTIONAL_COUNT, OPTIONAL_SIZE, PROBABILITY, SIZE

# The outputs a model can have besides its hidden states; fields of BertOutput.
OUTPUTS = ("pooled", "masked_lm", "next_sentence", "sequence", "tokens")

# Model types as in transformers. They differ in defaults, positions and heads.
ROBERTA = ("roberta", "xlm-roberta", "camembert", "mpnet")  # mpnet: with a relative position bias besides
WITHOUT_TYPES = ("distilbert", "mpnet")
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
    "num_buckets": OPTIONAL_SIZE,
    "activation": one_of(*ACTIVATIONS),
    "norm_eps": POSITIVE,
    "dropout": PROBABILITY,
    "attention_dropout": PROBABILITY,
    "classifier_dropout": PROBABILITY,
    "pad_token_id": OPTIONAL_COUNT,
    "tie_word_embeddings": SWITCH,
}


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The configuration of a BertModel; the defaults are those of bert-base-uncased.

    Raises:
        ValueError: a setting of a wrong type or range, or settings that contradict each other.
    """

    model_type: str = "bert"
    vocab_size: int = 30522  # V
    d_model: int = 768  # M
    num_layers: int = 12
    num_heads: int = 12  # H
    d_ff: int = 3072  # F
    max_position_embeddings: int = (
        512  # rows of the position embedding; RoBERTa uses those after the row of pad_token_id
    )
    type_vocab_size: int = 2  # 0: no embedding of token types, as in DistilBERT and MPNet
    num_buckets: int | None = None  # of the relative position bias of MPNet, shared by all layers; None: there is none
    activation: str = "gelu"
    norm_eps: float = 1e-12  # of the layer norms
    dropout: float = 0.1
    attention_dropout: float = 0.1
    classifier_dropout: float = 0.1  # before the classifiers of sequences and tokens
    pad_token_id: int | None = 0  # the id of the padding token
    outputs: tuple[str, ...] = ("pooled",)  # a subset of OUTPUTS
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")  # names of the classes
    tie_word_embeddings: bool = True  # the masked-LM head uses the token embedding
    kept: Mapping[str, object] = field(default_factory=dict, repr=False)  # other keys of config.json, unchanged

    def __post_init__(self) -> None:
        check("BertConfig", self, _KINDS)
        if self.d_model % self.num_heads:
            raise ValueError(f"BertConfig: d_model {self.d_model} is not a multiple of num_heads {self.num_heads}")
        if set(self.outputs) - set(OUTPUTS) or len(set(self.outputs)) < len(self.outputs):
            raise ValueError(f"BertConfig: outputs must be some of {', '.join(OUTPUTS)}, not {self.outputs}")
        self._check_outputs()
        if (self.type_vocab_size == 0) != (self.model_type in WITHOUT_TYPES):
            raise ValueError(
                f"BertConfig: a {self.model_type} model cannot have type_vocab_size {self.type_vocab_size}"
            )
        if (self.num_buckets is None) != (self.model_type != "mpnet"):
            raise ValueError(f"BertConfig: a {self.model_type} model cannot have num_buckets {self.num_buckets}")
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise ValueError("BertConfig: labels must be at least one name, and all different")
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError(
                f"BertConfig: pad_token_id {self.pad_token_id} is not in the vocabulary of {self.vocab_size}"
            )
        if self.is_roberta and (self.pad_token_id is None or self.max_tokens < 1):
            rule = f"needs max_position_embeddings above pad_token_id + 1: {self.max_position_embeddings} and {self.pad_token_id}"
            raise ValueError(f"BertConfig: a {self.model_type} model {rule}")

    def _check_outputs(self) -> None:
        made_from_pooled = {"next_sentence"} | ({"sequence"} if self.model_type == "bert" else set())
        for name in self.outputs:
            if name in made_from_pooled and "pooled" not in self.outputs:
                raise ValueError(f"BertConfig: output {name} is computed from pooled, which is not in outputs")
            if name in ("pooled", "next_sentence") and self.model_type == "distilbert":
                raise ValueError(f"BertConfig: a distilbert model has no output {name}")

    @property
    def is_roberta(self) -> bool:
        return self.model_type in ROBERTA

    @property
    def max_tokens(self) -> int:
        """The greatest number of tokens of a row."""
        first = 0 if self.pad_token_id is None or not self.is_roberta else self.pad_token_id + 1
        return self.max_position_embeddings - first
