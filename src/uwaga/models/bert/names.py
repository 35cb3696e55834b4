"""The names of the weights of BERT-like models, and the heads that an architecture and these names say there are. By model type: `Names`."""

from collections.abc import Callable, Set
from dataclasses import dataclass, field

from uwaga._base.errors import CheckpointError
from uwaga.models.bert.config import OUTPUTS, BertConfig
from uwaga.models.checkpoints.tables import Table, WeightMapping, pair

_WORDS = "embeddings.word_embeddings.weight"
# Names in old files that are not read, and why.
_UNREAD = {"embeddings.position_ids": "counts up from 0; a buffer of transformers before 4.31"}
# Of the architecture that ColBERT's own code writes (Khattab and Zaharia 2020): a BertModel and this weight.
COLBERT = "HF_ColBERT"
_UNREAD_PROJECTION = "ColBERT's projection of hidden states, which TextEncoder reads"
_UNREAD_BIAS = "transformers adds the decoder's own bias where the decoder is not tied"
# TensorFlow's names, which the first converted checkpoints have, among them bert-base-uncased.
_LEGACY = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}
# The end of an architecture's name -> its outputs.
ARCHITECTURES = {
    "Model": (),
    "ForMaskedLM": ("masked_lm",),
    "ForSequenceClassification": ("sequence",),
    "ForTokenClassification": ("tokens",),
}

# The names of weights that many families have: theirs on the left, ours on the right. `{n}` counts layers.
WORDS = WeightMapping(_WORDS, "embeddings.token_embedding.weight")
EMBEDDINGS = (WORDS, *pair("embeddings.LayerNorm", "embeddings.norm"))
POSITIONS = WeightMapping("embeddings.position_embeddings.weight", "embeddings.positions.weight")
TYPES = WeightMapping("embeddings.token_type_embeddings.weight", "embeddings.token_types.weight")
POOLER = pair("pooler.dense", "pooler.dense")
TOKENS = pair("classifier", "tokens.output")
BERT_LAYERS = (
    *pair("encoder.layer.{n}.attention.self.query", "encoder.layers.{n}.attention.query"),
    *pair("encoder.layer.{n}.attention.self.key", "encoder.layers.{n}.attention.key"),
    *pair("encoder.layer.{n}.attention.self.value", "encoder.layers.{n}.attention.value"),
    *pair("encoder.layer.{n}.attention.output.dense", "encoder.layers.{n}.attention.output"),
    *pair("encoder.layer.{n}.attention.output.LayerNorm", "encoder.layers.{n}.attention_norm"),
    *pair("encoder.layer.{n}.intermediate.dense", "encoder.layers.{n}.feed_forward.up"),
    *pair("encoder.layer.{n}.output.dense", "encoder.layers.{n}.feed_forward.down"),
    *pair("encoder.layer.{n}.output.LayerNorm", "encoder.layers.{n}.feed_forward_norm"),
)


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of one model type."""

    stem: str  # the start of its architectures' names: Bert of BertForMaskedLM
    prefix: str
    old_prefixes: tuple[str, ...] = ()  # as in Table
    body: Callable[[BertConfig], tuple[WeightMapping, ...]]
    heads: dict[str, tuple[WeightMapping, ...]]  # by output; for masked_lm without the output projection
    decoder: str  # the output projection of the masked-LM head
    decoder_bias: str  # the name of its bias where the projection is tied
    architectures: dict[str, tuple[str, ...]] = field(repr=False)  # as ARCHITECTURES

    def table(self, config: BertConfig) -> Table:
        """The table of names of a model with this configuration."""
        heads = [row for name in config.outputs for row in self.heads[name] if name != "pooled"]
        tied: dict[str, str] = {}
        unread = dict(_UNREAD)
        if config.kept.get("architectures") == [COLBERT]:
            unread["linear.weight"] = _UNREAD_PROJECTION
        if "masked_lm" in config.outputs and config.tie_word_embeddings:
            heads.append(WeightMapping(self.decoder_bias, "masked_lm.bias"))
            tied = {f"{self.decoder}.weight": _WORDS, f"{self.decoder}.bias": self.decoder_bias}
            tied.pop(self.decoder_bias, None)
        elif "masked_lm" in config.outputs:
            heads.append(WeightMapping(f"{self.decoder}.weight", "masked_lm.decoder.weight"))
            heads.append(WeightMapping(f"{self.decoder}.bias", "masked_lm.bias"))
            if self.decoder_bias != f"{self.decoder}.bias":
                unread[self.decoder_bias] = _UNREAD_BIAS
        return Table(
            body=self.body(config) + (self.heads["pooled"] if "pooled" in config.outputs else ()),
            heads=tuple(heads),
            prefix=self.prefix,
            old_prefixes=self.old_prefixes,
            is_prefixed=self.architecture(config.outputs) != f"{self.stem}Model",
            counts={"n": config.num_layers},
            tied=tied,
            unread=unread,
            legacy=_LEGACY,
        )

    def architecture(self, outputs: tuple[str, ...]) -> str:
        """The architecture with these outputs in transformers, with or without a pooler. Raises CheckpointError: there is none."""
        for suffix, has in self.architectures.items():
            if set(outputs) | {"pooled"} == set(has) | {"pooled"}:
                return self.stem + suffix
        raise CheckpointError(f"transformers has no {self.stem} model with the outputs {', '.join(outputs)}")

    def outputs(self, architecture: str | None, names: Set[str]) -> tuple[str, ...]:
        """The outputs whose weights are in the file. Raises KeyError: an unknown architecture."""
        of_architecture = self.architectures[architecture.removeprefix(self.stem)] if architecture else ()
        canonical = Table(body=(), prefix=self.prefix, old_prefixes=self.old_prefixes).canonical
        bare = set(map(canonical, names))
        stored = {name for name, rows in self.heads.items() if any(row.theirs in bare for row in rows)}
        # `classifier` is a name for sequences and for tokens, and the architecture says which.
        stored -= {"sequence", "tokens"} - set(of_architecture)
        return tuple(name for name in OUTPUTS if name in stored)
