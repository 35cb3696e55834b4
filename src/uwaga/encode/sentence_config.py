"""The sentence-transformers configuration of a model directory: maximum length, prompts, pooling and what follows it.

A plain Hugging Face directory has none, and gets the defaults of sentence-transformers: the mean of all tokens, or the last token of a
causal language model.
"""

from collections.abc import Mapping
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
PEER_READS_IT = "sentence_transformers.SentenceTransformer reads it, and uwaga.integrations.sentence_transformers.unpad makes it skip padding"
# Ends of architectures that give no vectors of texts.
_OTHER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")


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
    if model_type in ("CrossEncoder", "SparseEncoder"):
        raise _other_model(folder, model_type)
    modules = sentence_files.modules(folder)
    place = modules.transformer
    transformer = sentence_files.read(place, is_module=modules.is_listed)
    described = untrusted.read_json(place / "config.json")
    named = described.get("architectures")
    architectures = named if isinstance(named, list) else []
    if not modules.pooling and (heads := [str(name) for name in architectures if str(name).endswith(_OTHER_HEADS)]):
        raise _other_model(folder, heads[0])
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


def _other_model(folder: Path, name: str) -> CheckpointError:
    return CheckpointError(
        f"{folder} holds a {printable(name)}, which gives no dense vectors of texts; uwaga.Reranker and `uwaga serve --reranker` take a "
        "cross-encoder with one label, uwaga.models.load gives logits, and sentence_transformers or transformers reads any of them"
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
