"""Models that give a vector to every token (ColBERT: Khattab and Zaharia 2020), from the directories of sentence-transformers
(MultiVectorEncoder), of PyLate, and of ColBERT's own code.

    directory of              its mark                                                   projection
    sentence-transformers     model_type MultiVectorEncoder, a module MultiVectorMask    modules Dense, token by token
    PyLate, to version 3      model_type ColBERT, and settings in the same file          module Dense
    ColBERT                   the architecture HF_ColBERT; artifact.metadata             the weight linear.weight, in BERT's file

Letters: N packed tokens, S sequences.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.options import Integer, ListOf, Switch, Text, Words, options
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import sentence_files
from uwaga.models.checkpoints.config_json import ModelSize, setting
from uwaga.models.checkpoints.sentence_files import SentenceModule
from uwaga.models.families.bert import COLBERT
from uwaga.models.tokenizers.tokenizer import content_of

MODEL_TYPES = ("MultiVectorEncoder", "ColBERT")  # of config_sentence_transformers.json
TASKS = ("query", "document")
MODULES = ("Dense", "LayerNorm", "Normalize", "MultiVectorMask")  # work on vectors of tokens; any other is an error
_QUERY_LENGTH = 32  # ColBERT's default
_LENGTHS = ("query_length", "document_length", "query_expansion")
_Strings = ListOf[Text] | None
_Task = Literal["query", "document"]
_Tasks = Annotated[_Task | ListOf[_Task], Words("'query', 'document' or a list of them")]


@options
class Expansion:
    """The key query_expansion: mask tokens that lengthen queries ("query augmentation")."""

    strategy: Literal["fixed", "min"]  # "fixed": longer queries are too long; "min": they have no mask tokens
    length: ModelSize  # of the query then, special tokens included
    attend: Switch = False  # whether tokens see the mask tokens
    token: Text | None = None  # None: the tokenizer's mask token, or its end of sequence if it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVectors:
    """How the hidden states of tokens become vectors, and which tokens have a vector."""

    expansion: Expansion | None = None
    query_length: int | None = None  # tokens, special ones included; None: as the model
    document_length: int | None = None
    skipped_words: tuple[str, ...] = ()  # tokens without a vector, such as punctuation
    skipped_of: tuple[str, ...] = ("document",)  # the tasks where they are left out
    kept_ids: tuple[int, ...] = ()  # if there are some, the only tokens of a document with a vector
    prefixes: tuple[str, ...] = ()  # of prompts; those in the vocabulary are one token each
    prompts: Mapping[str, str]
    projection: Path | None = None  # the directory whose weights have linear.weight; None: the modules say all
    normalize: bool = False  # at the end, in addition to the modules

    def limit(self, task: str | None, most: int, positions: int) -> int:
        """Return the most tokens of a text that the model reads, special tokens included.

        most: of a text without a task. positions: of any text; the length for a task replaces `most`, as in sentence-transformers.
        """
        if task == "document" and self.document_length is not None:
            return min(positions, self.document_length)
        if task == "query" and self.expansion is not None and self.expansion.strategy == "fixed":
            return min(positions, self.expansion.length)
        if task == "query" and self.query_length is not None:
            return min(positions, max(self.query_length, 0 if self.expansion is None else self.expansion.length))
        return most


def read(folder: Path, settings: Mapping[str, Any], modules: Sequence[SentenceModule]) -> TokenVectors | None:
    """Return the settings of a ColBERT model; None if a directory has another kind of model.

    Args:
        settings: config_sentence_transformers.json.
        modules: the modules of modules.json, in their order.

    Raises:
        CheckpointError: a file is wrong, or asks for something that is not implemented.
    """
    config = untrusted.read_json(folder / "config.json", missing_ok=True)
    if not modules and config.get("architectures") == [COLBERT]:
        return _of_colbert(folder)
    if settings.get("model_type") not in MODEL_TYPES:
        return None
    path = folder / "config_sentence_transformers.json"
    prefixes, prompts = _prompts(path, settings)
    of_kind = {module.kind: module for module in modules}
    transformer, of_transformer = sentence_files.find(
        of_kind["Transformer"].folder if "Transformer" in of_kind else folder
    )
    values = _settings_of_pylate(path, settings)
    values |= {name: of_transformer[name] for name in _LENGTHS if name in of_transformer}
    result = TokenVectors(
        expansion=setting(values, transformer, "query_expansion", Expansion | None, None),
        query_length=setting(values, transformer, "query_length", ModelSize | None, None),
        document_length=setting(values, transformer, "document_length", ModelSize | None, None),
        prefixes=prefixes,
        prompts=prompts,
    )
    words = setting(settings, path, "skiplist_words", _Strings, None)
    if settings.get("model_type") == "ColBERT":
        skipped = string.punctuation if words is None else words
        return replace(result, skipped_words=tuple(skipped), normalize=True)
    if "MultiVectorMask" not in of_kind:
        if result.expansion is not None:
            raise CheckpointError(
                f"{transformer}: has query_expansion, and no module MultiVectorMask follows: its mask tokens would have no vectors"
            )
        return result
    path = of_kind["MultiVectorMask"].folder / "config.json"
    settings = untrusted.read_json(path, missing_ok=True)
    sentence_files.check(path, settings, "MultiVectorMask")
    tasks = setting(settings, path, "skiplist_tasks", _Tasks, ["document"])
    return replace(
        result,
        skipped_words=tuple(setting(settings, path, "skiplist_words", _Strings, None) or ()),
        skipped_of=(tasks,) if isinstance(tasks, str) else tuple(tasks),
        kept_ids=tuple(setting(settings, path, "keep_only_token_ids", ListOf[Integer] | None, None) or ()),
    )


def _of_colbert(folder: Path) -> TokenVectors:
    """Return the settings of a directory of ColBERT's own code."""
    path = folder / "artifact.metadata"
    settings = untrusted.read_json(path, missing_ok=True)
    prefixes = {
        task: setting(settings, path, name, Text | None, None) or default
        for task, name, default in (("query", "query_token_id", "[unused0]"), ("document", "doc_token_id", "[unused1]"))
    }
    return TokenVectors(
        expansion=Expansion(
            strategy="fixed",
            length=setting(settings, path, "query_maxlen", ModelSize | None, None) or _QUERY_LENGTH,
            attend=setting(settings, path, "attend_to_mask_tokens", Switch, False),
        ),
        document_length=setting(settings, path, "doc_maxlen", ModelSize | None, None),
        skipped_words=tuple(string.punctuation) if setting(settings, path, "mask_punctuation", Switch, True) else (),
        prefixes=tuple(prefixes.values()),
        prompts={task: f"{prefix} " for task, prefix in prefixes.items()},
        projection=folder,
        normalize=True,
    )


def _settings_of_pylate(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return PyLate's settings under the names of sentence-transformers."""
    found = {
        name: settings[name]
        for name in _LENGTHS
        if name in settings and (settings[name] is not None or name == "query_expansion")
    }
    old_flag, flag = "attend_to_mask_tokens", "attend_to_expansion_tokens"
    of_pylate = {"do_query_expansion", flag, old_flag, "query_prefix", "document_prefix", "skiplist_words"}
    if "query_expansion" in found or not (found or settings.keys() & of_pylate):
        return found
    if settings.get("do_query_expansion") is False:
        return found | {"query_expansion": None}
    attend = setting(settings, path, flag if flag in settings else old_flag, Switch | None, None)
    length = found.pop("query_length", None) or _QUERY_LENGTH
    return found | {"query_expansion": {"strategy": "fixed", "attend": bool(attend), "length": length}}


def _prompts(path: Path, settings: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return PyLate's prefixes, and the prompts by name, which begin with them."""
    prompts = dict(settings.get("prompts") or {})
    prefixes = []
    for task in TASKS:
        name = f"{task}_prefix"
        if name in settings:
            prefix = setting(settings, path, name, Text | None, None) or ""
            prefixes.append(prefix)
            prompts[task] = prefix + (prompts.get(task) or "").removeprefix(prefix)
    return tuple(prefixes), {name: prompt or "" for name, prompt in prompts.items()}


def register_prefixes(backend: Backend, prefixes: Sequence[str]) -> bool:
    """Make each known prefix one token, as in training; return whether one has a space."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    registered = []
    for prefix in prefixes:
        candidates = [prefix, *prefix.split(None, 1)[:1]]
        token = next((candidate for candidate in candidates if candidate.strip() and candidate in vocabulary), None)
        if token is not None and backend.encode(token, add_special_tokens=False).tokens != [token]:
            registered.append(token)
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in registered])
    return any(" " in token for token in registered)


def token_ids(backend: Backend, words: Sequence[str]) -> list[int]:
    """Return the ids of the words that are one token of the vocabulary."""
    return [number for number in map(backend.token_to_id, words) if number is not None]


def expansion_id(backend: Backend, expansion: Expansion, path: Path) -> int:
    """Return the token that lengthens queries, by tokenizer_config.json. Raises CheckpointError."""
    names = untrusted.read_json(path, missing_ok=True)
    tokens = map(content_of, (expansion.token, names.get("mask_token"), names.get("eos_token")))
    token = next((token for token in tokens if token is not None), None)
    if token is None:
        raise CheckpointError(f"{path}: has neither a mask_token nor an eos_token, which query_expansion needs")
    number = backend.token_to_id(token)
    if number is None:
        raise CheckpointError(f"{path}: the token {printable(token)!r} of query_expansion is not in its vocabulary")
    return number
