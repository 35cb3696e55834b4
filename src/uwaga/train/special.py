"""Special tokens: what each objective needs, what they are called, and which ids they have."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from uwaga.models import json_files
from uwaga.train.errors import ConfigError

# Of the tokenizers that are trained here, in the order of their ids: the names that GPT-2, T5 and BERT have for them.
NAMES: Mapping[str, Mapping[str, str]] = {
    "language-model": {"end": "<|endoftext|>", "unknown": "<unk>"},
    "encoder-decoder": {"padding": "<pad>", "end": "</s>", "unknown": "<unk>"},
    "masked-language-model": {
        "padding": "[PAD]", "unknown": "[UNK]", "first": "[CLS]", "last": "[SEP]", "mask": "[MASK]",
    },
}  # fmt: skip
# What no model of the objective can do without.
NEEDED = {
    "language-model": ("end",),
    "encoder-decoder": ("padding", "end"),
    "masked-language-model": ("padding", "first", "last", "mask"),
}
# Our names of roles -> those of transformers, in tokenizer_config.json and, with _id behind, in config.json.
_THEIRS = {
    "padding": ("pad_token",), "end": ("eos_token", "sep_token"), "unknown": ("unk_token",),
    "first": ("cls_token", "bos_token"), "last": ("sep_token", "eos_token"), "mask": ("mask_token",),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Special:
    """Ids of special tokens by their roles; None what a tokenizer has not."""

    padding: int | None = None  # also what a decoder begins with
    end: int | None = None  # of a text
    unknown: int | None = None
    first: int | None = None  # before and behind what an encoder reads alone
    last: int | None = None
    mask: int | None = None

    def ids(self) -> set[int]:
        return {value for each in fields(self) if (value := getattr(self, each.name)) is not None}


def of_names(backend: Backend, names: Mapping[str, str]) -> Special:
    """Those with these names that the tokenizer knows."""
    found = {role: backend.token_to_id(name) for role, name in names.items()}
    return Special(**found)


def of_folder(backend: Backend, folder: Path, objective: str, *, settings: str) -> Special:
    """Those that files of its directory name: `settings`, or special_tokens_map.json or config.json. Raises ConfigError."""
    named: dict[str, Any] = {}
    for file in ("special_tokens_map.json", settings):
        named |= json_files.optional(folder / file) or {}
    config = json_files.optional(folder / "config.json") or {}
    found = {
        role: _first(backend, named, config, theirs) for role, theirs in _THEIRS.items() if role in NAMES[objective]
    }
    for role in NEEDED[objective]:
        if found[role] is None:
            names = " or ".join(_THEIRS[role])
            raise ConfigError(f"{folder}: the tokenizer has no {names}, which a {objective} needs")
    return Special(**found)


def transformers_names(backend: Backend, special: Special, objective: str) -> dict[str, str]:
    """What tokenizer_config.json calls them."""
    roles = [each.name for each in fields(special) if each.name in NAMES[objective]]
    ids = {_THEIRS[role][0]: getattr(special, role) for role in roles}
    named = {name: backend.id_to_token(number) for name, number in ids.items() if number is not None}
    return {name: token for name, token in named.items() if token is not None}


def _first(
    backend: Backend, named: Mapping[str, Any], config: Mapping[str, Any], theirs: tuple[str, ...]
) -> int | None:
    for name in theirs:
        token = named.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and (found := backend.token_to_id(token)) is not None:
            return int(found)
        number = config.get(f"{name}_id")
        if type(number) is int and 0 <= number < 2**31 and backend.id_to_token(number) is not None:
            return number
    return None
