"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), DistilBERT (Sanh et al. 2019) and MPNet (Song et al. 2020)."""

from dataclasses import replace
from typing import Annotated, Any

from annotated_types import Ge, Le
from torch.nn import init

from uwaga._base.errors import CheckpointError
from uwaga._base.options import FractionBelow1, Integer, Words
from uwaga.models.checkpoints import config_json
from uwaga.models.checkpoints.config_json import Key, keys
from uwaga.models.configuration import Config
from uwaga.models.families.family import Draw, Family, File, classes, post_norm_layers, without

# Bounded, since labels are made for all classes before the shape of the classifier is known.
_Classes = Annotated[Integer, Ge(1), Le(2**16)]
# Of the architecture that ColBERT's own code writes (Khattab and Zaharia 2020): a BertModel and this weight.
COLBERT = "HF_ColBERT"
HEADS = {
    "Model": (), "ForMaskedLM": ("logits",), "ForSequenceClassification": ("sequence",), "ForTokenClassification": ("tokens",),
}  # fmt: skip
POOLED_HEADS = HEADS | {"ForSequenceClassification": ("pooled", "sequence")}
COMMON_KEYS = keys(vocab_size=30522, max_position_embeddings=512, pad_token_id=0, tie_word_embeddings=True)
BERT_KEYS = COMMON_KEYS | keys(
    hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, type_vocab_size=2, hidden_act="gelu",
    layer_norm_eps=1e-12, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, classifier_dropout=None,
)  # fmt: skip


def settle(settings: dict[str, Any], file: File) -> None:
    """Complete the settings of BERT and its relatives: dropouts, activations and the names of the classes."""
    if settings.get("classifier_dropout") is None:
        settings["classifier_dropout"] = settings["dropout"]
    settings.setdefault("embedding_dropout", settings["dropout"])
    settings.setdefault("head_activation", settings["activation"])
    settings.setdefault("labels", _labels(file))


def _labels(file: File) -> tuple[str, ...]:
    """Return the names of the classes by index, or the defaults of transformers."""
    labels = file.config.get("id2label")
    if labels is None:
        number = config_json.setting(file.config, file.where, "num_labels", _Classes, 2)
        labels = {str(n): f"LABEL_{n}" for n in range(number)}
    if not isinstance(labels, dict) or set(labels) != {str(n) for n in range(len(labels))}:
        raise CheckpointError(f"{file.where}: id2label must have the keys 0, 1, ... without a gap")
    return tuple(str(labels[str(n)]) for n in range(len(labels)))


def write(config: Config) -> dict[str, object]:
    """Return the names of the classes."""
    numbers = {label: n for n, label in enumerate(config.labels)}
    return {"id2label": {str(n): label for label, n in numbers.items()}, "label2id": numbers}


def _initial(_: Config) -> Draw:
    """Draw as Devlin et al.'s code: from a normal distribution of deviation 0.02, truncated at two deviations."""
    return lambda _, weight, generator: init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04, generator=generator)


EMBEDDINGS = {
    "embeddings.word_embeddings": "embeddings.token_embedding",
    "embeddings.position_embeddings": "embeddings.positions",
    "embeddings.LayerNorm": "embeddings.norm",
}
POOLER = {"pooler.dense": "pooler.dense"}
TYPES = {"embeddings.token_type_embeddings": "embeddings.token_types"}
BODY = EMBEDDINGS | TYPES | POOLER | post_norm_layers(
    "encoder.layer.{n}", "attention.self.query attention.self.key attention.self.value attention.output.dense attention.output.LayerNorm "
    "intermediate.dense output.dense output.LayerNorm",
)  # fmt: skip
ROBERTA_HEADS = {
    "lm_head.dense": "lm_head.dense",
    "lm_head.layer_norm": "lm_head.norm",
    "classifier.dense": "sequence.dense",
    "classifier.out_proj": "sequence.output",
    "classifier": "tokens.output",
}
UNREAD = {"embeddings.position_ids": "counts up from 0; a buffer of transformers before 4.31"}
_NEXT_SENTENCE = "of the head that says whether a sentence follows another, which is not computed"

BERT = Family(
    keys=BERT_KEYS,
    fixed={"position_encoding": "learned", "embedding_norm": True, "lm_head_bias": True},
    extra=("labels",),
    outputs=("pooled",),
    only={"position_embedding_type": ("absolute", None)},
    names=BODY | {
        "cls.predictions.transform.dense": "lm_head.dense",
        "cls.predictions.transform.LayerNorm": "lm_head.norm",
        "classifier": "sequence.output/tokens.output",
    },
    prefix="bert.",
    logits=("cls.predictions.decoder", "cls.predictions.bias"),
    architectures=classes("Bert", POOLED_HEADS | {"ForPreTraining": ("logits",), "ForNextSentencePrediction": ()}) | {COLBERT: ()},
    tokenizer="BertTokenizer",
    unread=UNREAD | dict.fromkeys(("cls.seq_relationship.weight", "cls.seq_relationship.bias"), _NEXT_SENTENCE),
    unread_of={COLBERT: {"linear.weight": "ColBERT's projection of hidden states, which TextEncoder reads"}},
    # TensorFlow's names, which the first converted checkpoints have, among them bert-base-uncased.
    legacy={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},
    dropped=("num_labels",),
    settle=settle,
    write=write,
    initial=_initial,
)  # fmt: skip

ROBERTA = replace(
    BERT,
    keys=BERT_KEYS | keys(pad_token_id=1),
    fixed=BERT.fixed | {"positions_after_padding": True, "head_activation": "gelu", "classifier": "tanh"},
    names=BODY | ROBERTA_HEADS,
    prefix="roberta.",
    logits=("lm_head.decoder", "lm_head.bias"),
    architectures=classes("Roberta", HEADS),
    tokenizer="RobertaTokenizer",
    unread=UNREAD,
)


def _of_mpnet(value: int) -> Any:
    words = f"{value} (MPNet of transformers takes {value} for it, whatever the file says: positions of another model have other rows)"
    return Annotated[Integer, Ge(value), Le(value), Words(words)]


_MPNET = replace(
    ROBERTA,
    keys=without(BERT_KEYS, "type_vocab_size", "classifier_dropout") | keys(
        vocab_size=30527,
        pad_token_id=Key("pad_token_id", 1, _of_mpnet(1)),
        relative_attention_num_buckets=Key("num_buckets", 32, _of_mpnet(32)),
    ),
    names=EMBEDDINGS | POOLER | ROBERTA_HEADS | {"encoder.relative_attention_bias": "encoder.positions"} | post_norm_layers(
        "encoder.layer.{n}", "attention.attn.q attention.attn.k attention.attn.v attention.attn.o attention.LayerNorm intermediate.dense "
        "output.dense output.LayerNorm",
    ),
    prefix="mpnet.",
    architectures=classes("MPNet", HEADS),
    tokenizer="MPNetTokenizer",
)  # fmt: skip
_DISTILBERT = replace(
    BERT,
    keys=COMMON_KEYS | keys(
        dim=768, n_layers=6, n_heads=12, hidden_dim=3072, activation="gelu", dropout=0.1, attention_dropout=0.1,
        seq_classif_dropout=Key("classifier_dropout", 0.2, FractionBelow1 | None),
    ),
    fixed=BERT.fixed | {"classifier": "relu", "norm_eps": 1e-12},
    outputs=(),
    names=EMBEDDINGS | post_norm_layers(
        "transformer.layer.{n}", "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm ffn.lin1 ffn.lin2 "
        "output_layer_norm",
    ) | {
        "vocab_transform": "lm_head.dense",
        "vocab_layer_norm": "lm_head.norm",
        "pre_classifier": "sequence.dense",
        "classifier": "sequence.output/tokens.output",
    },
    prefix="distilbert.",
    unread=UNREAD,
    logits=("vocab_projector", "vocab_projector.bias"),
    architectures=classes("DistilBert", HEADS),
)  # fmt: skip
FAMILIES = {
    "bert": BERT,
    "camembert": replace(ROBERTA, architectures=classes("Camembert", HEADS), tokenizer="CamembertTokenizer"),
    "distilbert": _DISTILBERT,
    "mpnet": _MPNET,
    "roberta": replace(ROBERTA, keys=ROBERTA.keys | keys(vocab_size=50265)),
    "xlm-roberta": replace(ROBERTA, architectures=classes("XLMRoberta", HEADS), tokenizer="XLMRobertaTokenizer"),
}
