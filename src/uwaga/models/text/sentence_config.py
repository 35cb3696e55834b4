"""The sentence-transformers configuration of a model directory: maximum length, prompts, pooling and what follows it.

A plain Hugging Face directory has none, and gets the defaults of sentence-transformers: the mean of all tokens.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uwaga._base import json_files, untrusted
from uwaga._base.digests import cached_sha256
from uwaga._base.errors import CheckpointError
from uwaga._base.options import OptionValidator, one_of, optional
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import modules_json
from uwaga.models.checkpoints.config_json import OPTIONAL_SIZE
from uwaga.models.checkpoints.modules_json import SentenceModule
from uwaga.models.text import colbert
from uwaga.models.text.colbert import TokenVectors

# transformers writes 1e30 where a tokenizer has no limit.
_NO_LIMIT = 1 << 40


_MAXSIM = ("maxsim", "meanmaxsim")
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
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
# What is refused: what it is in words, and what reads it. By model_type of config_sentence_transformers.json,
_OTHER_MODELS = {
    "CrossEncoder": _CROSS_ENCODER,
    "SparseEncoder": _SPARSE,
}
# by modules,
_OTHER_MODULES = {
    "LogitScore": _CROSS_ENCODER,
    "MLMTransformer": _SPARSE,
    "SpladePooling": _SPARSE,
    "Router": ("a router, which has a model of its own for queries and for documents", PEER_READS_IT),
    "Asym": ("a router, which has a model of its own for queries and for documents", PEER_READS_IT),
    "StaticEmbedding": ("a table of word vectors without attention, whose mean is the vector of a text", _ST),
    "WordEmbeddings": ("a table of word vectors without attention", _ST),
    "BoW": ("a bag of words without attention", _ST),
    "CLIPModel": ("a model of pictures and texts", _ST),
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
    """How texts become tokens, and the hidden states of a text one vector."""

    folder: Path  # of config.json, the weights and tokenizer.json
    pooling: tuple[str, ...] = ("mean",)  # keys of pooling.POOLING; the vectors of several are concatenated
    include_prompt: bool = True  # False: the tokens of a prompt are not pooled
    head: tuple[SentenceModule, ...] = ()  # what follows pooling: Dense, LayerNorm, Normalize, Dropout
    truncate_dim: int | None = None  # the first numbers of a vector, which are its result; None: all
    # What vectors are compared by: "cosine", "dot", "euclidean", "manhattan"; those of tokens "maxsim" or "meanmaxsim".
    similarity: str = "cosine"
    tokens: TokenVectors | None = None  # of a ColBERT model, which has vectors of tokens in place of pooling
    max_length: int | None = None  # tokens, special ones included; None: not given
    limited_by: Path | None = None  # the file that gives max_length
    lowercase: bool = False  # before anything that the tokenizer does
    prompt: str = ""  # before every text
    prompts: Mapping[str, str]  # that the model was trained with, by name


def read(folder: Path) -> SentenceConfig:
    """The configuration of a directory.

    Raises:
        CheckpointError: a file that is wrong, or a model that is no text encoder, or asks for something that TextEncoder does not
            compute; the message says what it is, and what reads it.
    """
    path = folder / "config_sentence_transformers.json"
    settings = json_files.optional(path) or {}
    _refuse(folder, _OTHER_MODELS, [settings.get("model_type")])
    listed = json_files.optional(folder / "modules.json", of=list) or []
    kinds = [str(module.get("type")).rpartition(".")[2] for module in listed if isinstance(module, dict)]
    _refuse(folder, _OTHER_MODULES, kinds)
    modules = modules_json.read(folder)
    place = folder if modules is None else modules.transformer
    if modules is None or not modules.pooling:
        architectures = json_files.read(place / "config.json").get("architectures")
        _refuse(folder, _OTHER_HEADS, architectures if isinstance(architectures, list) else [], is_suffix=True)
    length, file = _tokenizer_length(place)
    listed_modules = () if modules is None else (SentenceModule("Transformer", modules.transformer), *modules.others)
    tokens = colbert.read(folder, settings, listed_modules)
    if modules is None:
        if tokens is None:
            return SentenceConfig(folder=folder, max_length=length, limited_by=file, prompts={})
        return SentenceConfig(
            folder=folder,
            max_length=length,
            limited_by=file,
            tokens=tokens,
            similarity="maxsim",
            prompts=tokens.prompts,
        )
    allowed = _HEAD if tokens is None else colbert.MODULES
    others = [module.kind for module in modules.others if module.kind not in allowed]
    if others:
        raise CheckpointError(
            f"{folder / 'modules.json'} has modules that TextEncoder does not compute: {', '.join(map(printable, others))}; "
            + PEER_READS_IT
        )
    if modules.max_tokens is not None:
        length, file = modules.max_tokens, place / "sentence_bert_config.json"
    prompts, default = _prompts(path, settings if tokens is None else {**settings, "prompts": tokens.prompts})
    if tokens is None:
        similarity = _checked(path, settings, "similarity_fn_name", optional(one_of(*_SIMILARITIES)), None) or "cosine"
    else:  # PyLate writes the names of other comparisons, and compares by MaxSim
        named = settings.get("similarity_fn_name")
        similarity = named if named in _MAXSIM else "maxsim"
    return SentenceConfig(
        folder=place,
        pooling=modules.pooling or ("mean",),
        include_prompt=modules.include_prompt,
        head=modules.others,
        truncate_dim=_checked(path, settings, "truncate_dim", OPTIONAL_SIZE, None),
        similarity=similarity,
        tokens=tokens,
        max_length=length,
        limited_by=file,
        lowercase=(json_files.optional(place / "sentence_bert_config.json") or {}).get("do_lower_case") is True,
        prompt=default,
        prompts=prompts,
    )


def _refuse(
    folder: Path, others: Mapping[str, tuple[str, str]], names: Sequence[object], *, is_suffix: bool = False
) -> None:
    """Raises CheckpointError: a name, or with is_suffix its end, is that of something else than a text encoder."""
    for name in names:
        for other, (what, reader) in others.items():
            if name == other or (is_suffix and str(name).endswith(other)):
                raise CheckpointError(
                    f"{folder} holds {what} ({printable(str(name))}), and TextEncoder cannot use it; {reader}"
                )


def _checked(path: Path, settings: Mapping[str, Any], name: str, kind: OptionValidator, default: Any) -> Any:
    value = settings.get(name, default)
    if not kind.accepts(value):
        raise CheckpointError(f"{path}: {name} must be {kind.words}, not {printable(repr(value))}")
    return value


def _prompts(path: Path, settings: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The prompts by name, and the one that is put before every text."""
    prompts, name = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise CheckpointError(f"{path}: prompts must be a JSON object of strings")
    if name is not None and (not isinstance(name, str) or name not in prompts):
        raise CheckpointError(
            f"{path}: default_prompt_name is {printable(repr(name))}, and there is no prompt of that name"
        )
    return prompts, "" if name is None else prompts[name]


def _tokenizer_length(folder: Path) -> tuple[int | None, Path]:
    """The maximum length of tokenizer_config.json, and that file."""
    path = folder / "tokenizer_config.json"
    length = (json_files.optional(path) or {}).get("model_max_length")
    if isinstance(length, int | float) and not isinstance(length, bool) and 0 < length < _NO_LIMIT:
        return int(length), path
    return None, path


# What vectors depend on: settings of models, tokenizers, pooling and prompts; weights of any kind, and the index of shards.
_FINGERPRINTED = (
    "*.json",
    "artifact.metadata",
    "*/config.json",
    "*.safetensors",
    "*.bin",
    "[0-9]_*/model.safetensors",
    "[0-9]_*/pytorch_model.bin",
)
# How the model was trained or is shown on the hub.
_NOT_FINGERPRINTED = {"data_config.json", "trainer_state.json", "training_args.bin"}


def fingerprint(*folders: Path) -> str:
    """SHA-256 over the names and contents of all files that the vectors of a model depend on, wherever the model lies. A file that has
    not changed since it was hashed last is not read (`uwaga._base.digests`).

    folders: the model's directory and, in one of sentence-transformers, the one of its transformer.

    Raises CheckpointError: a file that cannot be read.
    """
    whole = hashlib.sha256()
    with cached_sha256() as sha256:
        for folder in dict.fromkeys(folders):
            excluded = {folder / name for name in _NOT_FINGERPRINTED}
            for path in sorted({each for pattern in _FINGERPRINTED for each in folder.glob(pattern)} - excluded):
                try:
                    # Weights have no limit here: their header is compared with their size when they are loaded.
                    digest = sha256(path, untrusted.TOKENIZER_BYTES if path.suffix == ".json" else None)
                except OSError as error:
                    raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
                whole.update(f"{path.relative_to(folder).as_posix()} {digest}\n".encode())
    return whole.hexdigest()
