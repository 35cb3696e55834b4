"""What a model directory says about texts: how they are cut and prepared, and how their hidden states become vectors.

A sentence-transformers directory says all of it; a plain Hugging Face directory does not, and gets what
sentence-transformers gives it: the mean of all tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from uwaga._base.errors import CheckpointError
from uwaga.models import json_files, sentence
from uwaga.models.json_files import printable

# Transformers writes 1e30 where a tokenizer knows no limit.
_NO_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceConfig:
    """How texts become hidden states, and those one vector."""

    folder: Path  # of config.json, the weights and tokenizer.json
    pooling: tuple[str, ...] = ("mean",)  # keys of pooling.POOLING; the vectors of several are joined
    normalize: bool = False  # to length 1
    max_length: int | None = None  # tokens, special ones included; None: nothing is said
    limited_by: Path | None = None  # the file that says so
    lowercase: bool = False  # before anything that the tokenizer does
    prompt: str = ""  # before every text
    prompts: Mapping[str, str]  # those that the model was trained with, by name


def read(folder: Path) -> SentenceConfig:
    """The configuration of a directory.

    Raises:
        CheckpointError: a file that is wrong, or asks for something that TextEncoder does not do: left out, it would
            change the vectors in silence.
    """
    modules = sentence.read(folder)
    if modules is None:
        length, file = _tokenizer_length(folder)
        return SentenceConfig(folder=folder, max_length=length, limited_by=file, prompts={})
    if modules.others:
        others = ", ".join(map(printable, modules.others))
        raise CheckpointError(f"{folder / 'modules.json'} has modules that TextEncoder does not compute: {others}")
    _need_prompts_pooled(folder)
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


def _need_prompts_pooled(folder: Path) -> None:
    for path in folder.glob("*_Pooling/config.json"):
        if json_files.read(path).get("include_prompt", True) is not True:
            raise CheckpointError(f"{path} leaves prompts out of pooling, which TextEncoder does not do")


def _prompts(path: Path) -> tuple[dict[str, str], str]:
    """The prompts by name, and the one that stands before every text."""
    settings = json_files.optional(path) or {}
    prompts, name = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise CheckpointError(f"{path}: prompts must be strings by name")
    if name is not None and (not isinstance(name, str) or name not in prompts):
        raise CheckpointError(
            f"{path}: default_prompt_name is {printable(repr(name))}, and there is no prompt of that name"
        )
    return prompts, "" if name is None else prompts[name]


def _tokenizer_length(folder: Path) -> tuple[int | None, Path]:
    """And the file that says so."""
    path = folder / "tokenizer_config.json"
    length = (json_files.optional(path) or {}).get("model_max_length")
    if isinstance(length, int | float) and not isinstance(length, bool) and 0 < length < _NO_LIMIT:
        return int(length), path
    return None, path
