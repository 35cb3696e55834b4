"""The names of weights in BERT's relatives: theirs on the left, ours on the right. `{n}` counts layers."""

from collections.abc import Set
from dataclasses import dataclass, field

from uwaga._base.errors import CheckpointError
from uwaga.models.bert.config import OUTPUTS, BertConfig
from uwaga.models.tables import Row, Table, pair

_WORDS = "embeddings.word_embeddings.weight"

_EMBEDDINGS = (
    Row(_WORDS, "embeddings.token_embedding.weight"),
    Row("embeddings.position_embeddings.weight", "embeddings.positions.weight"),
    *pair("embeddings.LayerNorm", "embeddings.norm"),
)
_BERT = (
    *_EMBEDDINGS,
    Row("embeddings.token_type_embeddings.weight", "embeddings.token_types.weight"),
    *pair("encoder.layer.{n}.attention.self.query", "encoder.layers.{n}.attention.query"),
    *pair("encoder.layer.{n}.attention.self.key", "encoder.layers.{n}.attention.key"),
    *pair("encoder.layer.{n}.attention.self.value", "encoder.layers.{n}.attention.value"),
    *pair("encoder.layer.{n}.attention.output.dense", "encoder.layers.{n}.attention.output"),
    *pair("encoder.layer.{n}.attention.output.LayerNorm", "encoder.layers.{n}.attention_norm"),
    *pair("encoder.layer.{n}.intermediate.dense", "encoder.layers.{n}.feed_forward.up"),
    *pair("encoder.layer.{n}.output.dense", "encoder.layers.{n}.feed_forward.down"),
    *pair("encoder.layer.{n}.output.LayerNorm", "encoder.layers.{n}.feed_forward_norm"),
)
_DISTILBERT = (
    *_EMBEDDINGS,
    *pair("transformer.layer.{n}.attention.q_lin", "encoder.layers.{n}.attention.query"),
    *pair("transformer.layer.{n}.attention.k_lin", "encoder.layers.{n}.attention.key"),
    *pair("transformer.layer.{n}.attention.v_lin", "encoder.layers.{n}.attention.value"),
    *pair("transformer.layer.{n}.attention.out_lin", "encoder.layers.{n}.attention.output"),
    *pair("transformer.layer.{n}.sa_layer_norm", "encoder.layers.{n}.attention_norm"),
    *pair("transformer.layer.{n}.ffn.lin1", "encoder.layers.{n}.feed_forward.up"),
    *pair("transformer.layer.{n}.ffn.lin2", "encoder.layers.{n}.feed_forward.down"),
    *pair("transformer.layer.{n}.output_layer_norm", "encoder.layers.{n}.feed_forward_norm"),
)
_POOLER = pair("pooler.dense", "pooler.dense")
_TOKENS = pair("classifier", "tokens.output")

# What may stand in old files and is not read. Whoever adds a name says why.
_UNREAD = {"embeddings.position_ids": "counts up from 0; a buffer of transformers before 4.31"}
_UNREAD_BIAS = "transformers adds the decoder's own bias where the decoder is not tied"
# TensorFlow's names, which the first conversions kept; bert-base-uncased still has them.
_LEGACY = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of one model type."""

    stem: str  # of its architectures: Bert, as in BertForMaskedLM
    prefix: str
    body: tuple[Row, ...]
    heads: dict[str, tuple[Row, ...]]  # by output; of the masked-LM head without its last map
    decoder: str  # the last map of the masked-LM head
    decoder_bias: str  # the name of its bias where it is tied
    architectures: dict[str, tuple[str, ...]] = field(repr=False)  # what comes behind the stem -> the outputs it has

    def table(self, config: BertConfig) -> Table:
        """All names of a model with this config."""
        heads = [row for name in config.outputs for row in self.heads[name] if name != "pooled"]
        tied: dict[str, str] = {}
        unread = dict(_UNREAD)
        if "masked_lm" in config.outputs and config.tie_word_embeddings:
            heads.append(Row(self.decoder_bias, "masked_lm.bias"))
            tied = {f"{self.decoder}.weight": _WORDS, f"{self.decoder}.bias": self.decoder_bias}
            tied.pop(self.decoder_bias, None)
        elif "masked_lm" in config.outputs:
            heads.append(Row(f"{self.decoder}.weight", "masked_lm.decoder.weight"))
            heads.append(Row(f"{self.decoder}.bias", "masked_lm.bias"))
            if self.decoder_bias != f"{self.decoder}.bias":
                unread[self.decoder_bias] = _UNREAD_BIAS
        return Table(
            body=self.body + (self.heads["pooled"] if "pooled" in config.outputs else ()),
            heads=tuple(heads),
            prefix=self.prefix,
            is_prefixed=self.architecture(config.outputs) != f"{self.stem}Model",
            counts={"n": config.num_layers},
            tied=tied,
            unread=unread,
            legacy=_LEGACY,
        )

    def architecture(self, outputs: tuple[str, ...]) -> str:
        """transformers' name of a model with these outputs. Any of its models may have a pooler besides."""
        for suffix, has in self.architectures.items():
            if set(outputs) | {"pooled"} == set(has) | {"pooled"}:
                return self.stem + suffix
        raise CheckpointError(f"transformers has no {self.stem} model with the outputs {', '.join(outputs)}")

    def outputs(self, architecture: str | None, names: Set[str]) -> tuple[str, ...]:
        """What an architecture promises, and what the names of a file's weights show besides. KeyError: unknown."""
        promised = self.architectures[architecture.removeprefix(self.stem)] if architecture else ()
        bare = {name.removeprefix(self.prefix) for name in names}
        # A row called classifier tells nothing: it is of sequences or of tokens, as the architecture says.
        shown = {name for name in ("pooled", "masked_lm", "next_sentence") if name in self.heads}
        found = {name for name in shown if any(row.theirs in bare for row in self.heads[name])}
        return tuple(name for name in OUTPUTS if name in found.union(promised))


def _roberta(stem: str) -> Names:
    return Names(
        stem=stem,
        prefix="roberta.",
        body=_BERT,
        heads={
            "pooled": _POOLER,
            "masked_lm": (*pair("lm_head.dense", "masked_lm.dense"), *pair("lm_head.layer_norm", "masked_lm.norm")),
            "sequence": (
                *pair("classifier.dense", "sequence.dense"),
                *pair("classifier.out_proj", "sequence.output"),
            ),
            "tokens": _TOKENS,
        },
        decoder="lm_head.decoder",
        decoder_bias="lm_head.bias",
        architectures=_ARCHITECTURES,
    )


_ARCHITECTURES = {
    "Model": (),
    "ForMaskedLM": ("masked_lm",),
    "ForSequenceClassification": ("sequence",),
    "ForTokenClassification": ("tokens",),
}

NAMES = {
    "bert": Names(
        stem="Bert",
        prefix="bert.",
        body=_BERT,
        heads={
            "pooled": _POOLER,
            "masked_lm": (
                *pair("cls.predictions.transform.dense", "masked_lm.dense"),
                *pair("cls.predictions.transform.LayerNorm", "masked_lm.norm"),
            ),
            "next_sentence": pair("cls.seq_relationship", "next_sentence"),
            "sequence": pair("classifier", "sequence.output"),
            "tokens": _TOKENS,
        },
        decoder="cls.predictions.decoder",
        decoder_bias="cls.predictions.bias",
        architectures=_ARCHITECTURES
        | {
            "ForPreTraining": ("pooled", "masked_lm", "next_sentence"),
            "ForNextSentencePrediction": ("pooled", "next_sentence"),
            "ForSequenceClassification": ("pooled", "sequence"),
        },
    ),
    "distilbert": Names(
        stem="DistilBert",
        prefix="distilbert.",
        body=_DISTILBERT,
        heads={
            "masked_lm": (*pair("vocab_transform", "masked_lm.dense"), *pair("vocab_layer_norm", "masked_lm.norm")),
            "sequence": (*pair("pre_classifier", "sequence.dense"), *pair("classifier", "sequence.output")),
            "tokens": _TOKENS,
        },
        decoder="vocab_projector",
        decoder_bias="vocab_projector.bias",
        architectures=_ARCHITECTURES,
    ),
    "roberta": _roberta("Roberta"),
    "xlm-roberta": _roberta("XLMRoberta"),
    "camembert": _roberta("Camembert"),
}
