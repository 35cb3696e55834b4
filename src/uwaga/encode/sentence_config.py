"""The sentence-transformers configuration of a model directory: maximum length, prompts, pooling and what follows it.

A plain Hugging Face directory has none, and gets the defaults of sentence-transformers: the mean of all tokens, or the last token of a
causal language model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.encode import chat_template, colbert
from uwaga.encode.chat_template import ChatTemplate
from uwaga.encode.colbert import TokenVectors
from uwaga.models.checkpoints import sentence_files
from uwaga.models.checkpoints.config_json import ModelSize, setting
from uwaga.models.checkpoints.sentence_files import SentenceModule, TransformerSettings, unsupported

_MAXSIM = ("maxsim", "meanmaxsim")
_Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
_HEAD = ("Dense", "LayerNorm", "Normalize", "Dropout")
_INSTEAD = "{}, and uwaga.integrations.sentence_transformers.unpad makes it skip padding"
_CROSS_ENCODER = (
    "a cross-encoder or classifier, which gives scores of texts or pairs and no vectors",
    "uwaga.Reranker, and `uwaga serve` with --reranker, take one with one label; "
    + _INSTEAD.format("sentence_transformers.CrossEncoder reads it")
    + "; uwaga.models.load reads it for its logits",
)
_SPARSE = (
    "a SPLADE model, which gives a weight to every word of the vocabulary and no dense vector",
    _INSTEAD.format("sentence_transformers.SparseEncoder reads it"),
)
_ST = "sentence_transformers.SentenceTransformer reads it"
PEER_READS_IT = _INSTEAD.format(_ST)
_ROUTER = ("a router, which has a model of its own for queries and for documents", PEER_READS_IT)
# Models that are not text encoders: what they are, and what reads them. By model_type of config_sentence_transformers.json,
_OTHER_MODELS = {"CrossEncoder": _CROSS_ENCODER, "SparseEncoder": _SPARSE}
# by modules,
_OTHER_MODULES = {
    "LogitScore": _CROSS_ENCODER,
    "MLMTransformer": _SPARSE,
    "SpladePooling": _SPARSE,
    "Router": _ROUTER,
    "Asym": _ROUTER,
    "StaticEmbedding": ("a table of word vectors without attention, whose mean is the vector of a text", _ST),
    "WordEmbeddings": ("a table of word vectors without attention", _ST),
    "BoW": ("a bag of words without attention", _ST),
    "CLIPModel": ("a model of images and texts", _ST),
}
# and by the end of the architecture in config.json.
_OTHER_HEADS = {
    "ForSequenceClassification": _CROSS_ENCODER,
    "ForTokenClassification": (
        "a classifier of tokens, which gives no vectors",
        "uwaga.models.load reads it for its logits",
    ),
    "ForQuestionAnswering": ("a model that marks answers in a text, and gives no vectors", "transformers reads it"),
    "ForMultipleChoice": ("a model that chooses among answers, and gives no vectors", "transformers reads it"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceConfig:
    """How texts become tokens, and how the hidden states of a text become one vector."""

    folder: Path  # of config.json, the weights and tokenizer.json
    pooling: tuple[str, ...] = ("mean",)  # keys of inference.POOLING; the vectors of several are concatenated
    include_prompt: bool = True  # False: the tokens of a prompt are not pooled
    head: tuple[SentenceModule, ...] = ()  # what follows pooling: Dense, LayerNorm, Normalize, Dropout
    truncate_dim: int | None = None  # the number of first dimensions to keep; None: all
    # The similarity of vectors: "cosine", "dot", "euclidean" or "manhattan"; of vectors of tokens, "maxsim" or "meanmaxsim".
    similarity: str = "cosine"
    chat: ChatTemplate | None = None  # makes the text that the model reads; None: it reads a text as it is
    tokens: TokenVectors | None = None  # of a ColBERT model, which has vectors of tokens instead of pooling
    transformer: TransformerSettings  # how texts become tokens
    prompt: str = ""  # before every text
    prompts: Mapping[str, str]  # the prompts of training, by name


def read(folder: Path) -> SentenceConfig:
    """Read the configuration of a directory.

    Raises CheckpointError: a file is wrong; or the model is no text encoder, or asks for something that TextEncoder does not compute, and
    the message says what it is and what reads it.
    """
    path = folder / sentence_files.MODEL
    settings = untrusted.read_json(path, missing_ok=True)
    model_type = settings.get("model_type", "SentenceTransformer")
    _refuse(folder, _OTHER_MODELS, [model_type])
    entries = untrusted.read_json(folder / sentence_files.MODULES, of=list, missing_ok=True)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in entries if isinstance(module, dict)]
    _refuse(folder, _OTHER_MODULES, kinds)
    modules = sentence_files.modules(folder)
    place = modules.transformer
    transformer = sentence_files.read(place, is_module=modules.is_listed)
    described = untrusted.read_json(place / "config.json")
    named = described.get("architectures")
    architectures = named if isinstance(named, list) else []
    if not modules.pooling:
        _refuse(folder, _OTHER_HEADS, architectures, is_suffix=True)
    if transformer.task != "feature-extraction":
        raise unsupported(transformer.path, "transformer_task", transformer.task, "'feature-extraction'")
    listed_modules = (SentenceModule("Transformer", place), *modules.others) if modules.is_listed else ()
    tokens = colbert.read(folder, settings, listed_modules)
    chat = chat_template.for_texts(folder, transformer, is_listed=modules.is_listed)
    if chat is not None and tokens is not None:
        raise CheckpointError(f"{chat.path}: a chat template is not supported for a ColBERT model; {PEER_READS_IT}")
    common: dict[str, Any] = {"folder": place, "transformer": transformer, "chat": chat, "tokens": tokens}
    if not modules.is_listed:
        # Without modules.json, sentence-transformers does not read config_sentence_transformers.json.
        if tokens is not None:
            return SentenceConfig(similarity="maxsim", prompts=tokens.prompts, **common)
        is_decoder = bool(architectures) and str(architectures[0]).endswith("ForCausalLM")
        pooling = "lasttoken" if is_decoder and described.get("is_causal", True) else "mean"
        return SentenceConfig(pooling=(pooling,), prompts={}, **common)
    sentence_files.check(path, settings, sentence_files.MODEL)
    others = [
        module.kind for module in modules.others if module.kind not in (_HEAD if tokens is None else colbert.MODULES)
    ]
    if others:
        raise CheckpointError(
            f"{folder / 'modules.json'} has modules that TextEncoder does not compute: {', '.join(map(printable, others))}; "
            + PEER_READS_IT
        )
    if tokens is None:
        if model_type != "SentenceTransformer":
            raise unsupported(path, "model_type", model_type, "'SentenceTransformer'")
        if not modules.pooling:
            raise CheckpointError(
                f"{folder / sentence_files.MODULES} has no module Pooling after the Transformer: a text gets no vector"
            )
        check_no_lengths(transformer)
        similarity = setting(settings, path, "similarity_fn_name", _Similarity | None, None) or "cosine"
    else:
        if calls := transformer.values.get("processing_kwargs"):  # lengths of queries and documents come from elsewhere
            raise unsupported(transformer.path, "processing_kwargs", calls, "null")
        settings = {**settings, "prompts": tokens.prompts}
        # PyLate writes the names of other similarities, and computes MaxSim.
        similarity = named if (named := settings.get("similarity_fn_name")) in _MAXSIM else "maxsim"
    prompts, default = read_prompts(path, settings)
    return SentenceConfig(
        pooling=modules.pooling or ("mean",),
        include_prompt=modules.include_prompt,
        head=modules.others,
        truncate_dim=setting(settings, path, "truncate_dim", ModelSize | None, None),
        similarity=similarity,
        prompt=default,
        prompts=prompts,
        **common,
    )


def check_no_lengths(transformer: TransformerSettings) -> None:
    """Raise CheckpointError if there are settings of ColBERT models."""
    for key in ("query_length", "document_length", "query_expansion"):
        if transformer.values.get(key) is not None:
            raise unsupported(transformer.path, key, transformer.values[key], "null")


def _refuse(
    folder: Path, others: Mapping[str, tuple[str, str]], names: Sequence[object], *, is_suffix: bool = False
) -> None:
    """Raise CheckpointError if a name, or its end if is_suffix, is in a table of other models."""
    for name in names:
        for other, (what, reader) in others.items():
            if name == other or (is_suffix and str(name).endswith(other)):
                raise CheckpointError(
                    f"{folder} holds {what} ({printable(str(name))}), and TextEncoder cannot use it; {reader}"
                )


def read_prompts(path: Path, settings: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Return the prompts by name, and the prompt before every text. Raises CheckpointError."""
    prompts, name = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise CheckpointError(f"{path}: prompts must be a JSON object of strings")
    if name is not None and (not isinstance(name, str) or name not in prompts):
        raise CheckpointError(
            f"{path}: default_prompt_name is {printable(repr(name))}, and there is no prompt of that name"
        )
    return prompts, "" if name is None else prompts[name]
