"""The sentence-transformers configuration of a model directory: maximum length, prompts, pooling and normalisation.

A plain Hugging Face directory has none, and gets the defaults of sentence-transformers: the mean of all tokens.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from uwaga._base import json_files, untrusted
from uwaga._base.digests import cached_sha256
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import modules_json

# transformers writes 1e30 where a tokenizer has no limit.
_NO_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceConfig:
    """How texts become tokens, and the hidden states of a text one vector."""

    folder: Path  # of config.json, the weights and tokenizer.json
    pooling: tuple[str, ...] = ("mean",)  # keys of pooling.POOLING; the vectors of several are concatenated
    normalize: bool = False  # to length 1
    max_length: int | None = None  # tokens, special ones included; None: not given
    limited_by: Path | None = None  # the file that gives max_length
    lowercase: bool = False  # before anything that the tokenizer does
    prompt: str = ""  # before every text
    prompts: Mapping[str, str]  # that the model was trained with, by name


def read(folder: Path) -> SentenceConfig:
    """The configuration of a directory.

    Raises:
        CheckpointError: a file that is wrong, or asks for something that TextEncoder does not compute.
    """
    modules = modules_json.read(folder)
    if modules is None:
        length, file = _tokenizer_length(folder)
        return SentenceConfig(folder=folder, max_length=length, limited_by=file, prompts={})
    if modules.others:
        others = ", ".join(map(printable, modules.others))
        raise CheckpointError(f"{folder / 'modules.json'} has modules that TextEncoder does not compute: {others}")
    _check_prompts_pooled(folder)
    place = modules.transformer
    length, file = _tokenizer_length(place)
    if modules.max_tokens is not None:
        length, file = modules.max_tokens, place / "sentence_bert_config.json"
    prompts, default = _prompts(folder / "config_sentence_transformers.json")
    return SentenceConfig(
        folder=place,
        pooling=modules.pooling or ("mean",),
        normalize=modules.normalize,
        max_length=length,
        limited_by=file,
        lowercase=(json_files.optional(place / "sentence_bert_config.json") or {}).get("do_lower_case") is True,
        prompt=default,
        prompts=prompts,
    )


def _check_prompts_pooled(folder: Path) -> None:
    for path in folder.glob("*_Pooling/config.json"):
        if json_files.read(path).get("include_prompt", True) is not True:
            raise CheckpointError(f"{path} leaves prompts out of pooling, which TextEncoder does not do")


def _prompts(path: Path) -> tuple[dict[str, str], str]:
    """The prompts by name, and the one that is put before every text."""
    settings = json_files.optional(path) or {}
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
_FINGERPRINTED = ("*.json", "*/config.json", "*.safetensors", "*.bin")
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
