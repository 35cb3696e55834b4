"""The configuration of a BERT model. Letters: M model width, F feed-forward width, H query heads, V vocabulary."""

from dataclasses import field
from typing import Annotated, Any, Literal

from annotated_types import Gt

from uwaga._base.options import FractionBelow1, Positive, Real, Switch, Text, options
from uwaga.models.checkpoints.config_json import Activation, ModelCount, ModelSize
from uwaga.nn.rotary_scaling import RotaryScaling

# The outputs a model can have besides its hidden states; fields of BertOutput.
OUTPUTS = ("pooled", "masked_lm", "next_sentence", "sequence", "tokens", "replaced")

# Model types as in transformers. They differ in defaults, positions and heads.
ROBERTA = ("roberta", "xlm-roberta", "camembert", "mpnet")  # mpnet: with a relative position bias besides
WITHOUT_TYPES = ("distilbert", "mpnet")
FACTORIZED = ("albert", "electra")  # embeddings of a width of their own
_WITHOUT_POOLER = ("distilbert", "electra")
CLASSIFIES_POOLED = (
    "albert",
    "bert",
    "gte",
    "nomic_bert",
)  # the classifier of sequences reads the output of the pooler
ROTARY = ("gte", "jina_embeddings_v3", "nomic_bert")  # rotary positions in place of learned ones
# Layers that share weights cost memory in no file, so that no file bounds their number.
_MOST_SHARED = 1024


@options
class BertConfig:
    """The configuration of a BertModel; the defaults are those of bert-base-uncased.

    Raises:
        ValueError: a setting of a wrong type or range, or settings that contradict each other.
    """

    model_type: Literal[
        "bert",
        "distilbert",
        "albert",
        "electra",
        "roberta",
        "xlm-roberta",
        "camembert",
        "mpnet",
        "gte",
        "jina_embeddings_v3",
        "nomic_bert",
    ] = "bert"
    vocab_size: ModelSize = 30522  # V
    d_model: ModelSize = 768  # M
    num_layers: ModelCount = 12
    num_heads: ModelSize = 12  # H
    d_ff: ModelSize = 3072  # F
    max_position_embeddings: ModelSize = (
        512  # rows of the position embedding; RoBERTa uses those after the row of pad_token_id
    )
    type_vocab_size: ModelCount = 2  # 0: no embedding of token types, as in DistilBERT and MPNet
    embedding_size: ModelSize | None = (
        None  # the width of embeddings in ALBERT and ELECTRA, which a linear map brings to M; None: M
    )
    num_hidden_groups: ModelSize | None = (
        None  # in ALBERT, the groups of layers with weights of their own; None: every layer has its own
    )
    inner_group_num: ModelSize = 1  # the layers of such a group, which run one after another
    num_buckets: ModelSize | None = (
        None  # of the relative position bias of MPNet, shared by all layers; None: there is none
    )
    rotary_base: Annotated[Real, Gt(1)] | None = None  # of GTE, NomicBERT and Jina v3; None: learned positions
    rotary_scaling: RotaryScaling | None = None
    d_k: ModelSize | None = None  # D; None: M / H
    activation: Activation = "gelu"
    norm_eps: Positive = 1e-12  # of the layer norms
    dropout: FractionBelow1 = 0.1
    attention_dropout: FractionBelow1 = 0.1
    classifier_dropout: FractionBelow1 = 0.1  # before the classifiers of sequences and tokens
    pad_token_id: ModelCount | None = 0  # the id of the padding token
    outputs: tuple[Text, ...] = ("pooled",)  # a subset of OUTPUTS
    labels: tuple[Text, ...] = ("LABEL_0", "LABEL_1")  # names of the classes
    tie_word_embeddings: Switch = True  # the masked-LM head uses the token embedding
    kept: dict[str, Any] = field(default_factory=dict, repr=False)  # other keys of config.json, unchanged

    def __post_init__(self) -> None:
        if self.d_k is None and self.d_model % self.num_heads:
            raise ValueError(f"BertConfig: d_model {self.d_model} is not a multiple of num_heads {self.num_heads}")
        if set(self.outputs) - set(OUTPUTS) or len(set(self.outputs)) < len(self.outputs):
            raise ValueError(f"BertConfig: outputs must be some of {', '.join(OUTPUTS)}, not {self.outputs}")
        self._check_outputs()
        can_lack_types = self.model_type == "gte"
        if (self.type_vocab_size == 0) != (self.model_type in WITHOUT_TYPES) and not can_lack_types:
            raise ValueError(f"BertConfig: {self._named} cannot have type_vocab_size {self.type_vocab_size}")
        if (self.num_buckets is None) != (self.model_type != "mpnet"):
            raise ValueError(f"BertConfig: {self._named} cannot have num_buckets {self.num_buckets}")
        if (self.embedding_size is not None) != (self.model_type in FACTORIZED):
            raise ValueError(f"BertConfig: {self._named} cannot have embedding_size {self.embedding_size}")
        if (self.rotary_base is not None) != (self.model_type in ROTARY):
            raise ValueError(f"BertConfig: {self._named} cannot have rotary_base {self.rotary_base}")
        if self.rotary_base is None and (self.rotary_scaling is not None or self.d_k is not None):
            raise ValueError(f"BertConfig: {self._named} cannot have rotary_scaling or d_k, which need rotary_base")
        self._check_groups()
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise ValueError("BertConfig: labels must be at least one name, and all different")
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError(
                f"BertConfig: pad_token_id {self.pad_token_id} is not in the vocabulary of {self.vocab_size}"
            )
        if self.is_roberta and (self.pad_token_id is None or self.max_tokens < 1):
            rule = f"needs max_position_embeddings above pad_token_id + 1: {self.max_position_embeddings} and {self.pad_token_id}"
            raise ValueError(f"BertConfig: {self._named} {rule}")

    @property
    def _named(self) -> str:
        return f"{'an' if self.model_type[0] in 'aeiou' else 'a'} {self.model_type} model"

    def _check_outputs(self) -> None:
        made_from_pooled = {"next_sentence"} | ({"sequence"} if self.model_type in CLASSIFIES_POOLED else set())
        lacks = {"pooled", "next_sentence"} if self.model_type in _WITHOUT_POOLER else set()
        lacks |= {"replaced"} if self.model_type != "electra" else set()
        for name in self.outputs:
            if name in made_from_pooled and "pooled" not in self.outputs:
                raise ValueError(f"BertConfig: output {name} is computed from pooled, which is not in outputs")
            if name in lacks:
                raise ValueError(f"BertConfig: {self._named} has no output {name}")

    def _check_groups(self) -> None:
        if self.model_type != "albert":
            if self.num_hidden_groups is not None or self.inner_group_num != 1:
                raise ValueError(f"BertConfig: {self._named} has no groups of layers")
            return
        if self.num_hidden_groups is None or not self.num_hidden_groups <= self.num_layers:
            raise ValueError(
                f"BertConfig: an albert model needs num_hidden_groups from 1 to num_layers {self.num_layers}, not {self.num_hidden_groups}"
            )
        if self.num_layers * self.inner_group_num > _MOST_SHARED:
            raise ValueError(
                f"BertConfig: num_layers {self.num_layers} times inner_group_num {self.inner_group_num} is more than {_MOST_SHARED} layers"
            )

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings."""
        return self.d_model if self.embedding_size is None else self.embedding_size

    @property
    def projects_embeddings(self) -> bool:
        """Whether a linear map follows the embeddings: always in ALBERT, in ELECTRA where their width is not M."""
        return self.model_type == "albert" or self.embedding_width != self.d_model

    @property
    def layer_weights(self) -> tuple[int, ...]:
        """For each layer that runs, the number of its weights: those of ALBERT share them by groups."""
        if self.num_hidden_groups is None:
            return tuple(range(self.num_layers))
        share = self.num_layers / self.num_hidden_groups
        groups = (int(n / share) for n in range(self.num_layers))
        return tuple(group * self.inner_group_num + inner for group in groups for inner in range(self.inner_group_num))

    @property
    def is_gated(self) -> bool:
        """Whether feed-forward layers have a gate."""
        return self.model_type in ("gte", "nomic_bert")

    @property
    def has_roberta_lm_head(self) -> bool:
        """Whether the activation of the masked-LM head is GELU, whatever that of the layers."""
        return self.is_roberta or self.model_type in ("electra", "gte", "jina_embeddings_v3")

    @property
    def is_roberta(self) -> bool:
        return self.model_type in ROBERTA

    @property
    def max_tokens(self) -> int:
        """The greatest number of tokens of a row."""
        first = 0 if self.pad_token_id is None or not self.is_roberta else self.pad_token_id + 1
        return self.max_position_embeddings - first
