"""modules.json of a sentence-transformers directory: where the transformer is, how its hidden states are pooled, and what follows."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from uwaga._base import json_files
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable

# In the order in which sentence-transformers concatenates several.
_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class SentenceModule(NamedTuple):
    """A module of modules.json."""

    kind: str  # its class, such as Dense
    folder: Path


@dataclass(frozen=True, kw_only=True)
class SentenceModules:
    """The modules of modules.json."""

    transformer: Path
    pooling: tuple[str, ...] = ()  # cls, mean, max, ...: several are concatenated; empty: no pooling
    include_prompt: bool = True  # whether the tokens of a prompt are pooled
    others: tuple[SentenceModule, ...] = ()  # the other modules, in their order
    max_tokens: int | None = None  # max_seq_length of sentence_bert_config.json


def read(folder: Path) -> SentenceModules | None:
    """The modules of a directory, or None where there is no modules.json. Raises CheckpointError."""
    path = folder / "modules.json"
    listed = json_files.optional(path, of=list)
    if listed is None:
        return None
    modules = _modules(path, listed)
    of_kind = dict(modules)
    if "Transformer" not in of_kind:
        raise CheckpointError(
            f"{path} has no module of the type Transformer, only {', '.join(printable(kind) for kind in of_kind)}"
        )
    pooling, include_prompt = _pooling(of_kind["Pooling"] / "config.json") if "Pooling" in of_kind else ((), True)
    return SentenceModules(
        transformer=of_kind["Transformer"],
        pooling=pooling,
        include_prompt=include_prompt,
        others=tuple(module for module in modules if module.kind not in ("Transformer", "Pooling")),
        max_tokens=_max_tokens(of_kind["Transformer"] / "sentence_bert_config.json"),
    )


def _modules(path: Path, listed: list) -> list[SentenceModule]:
    modules = []
    for module in listed:
        kind, place = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(place, str):
            raise CheckpointError(f"{path} must list modules with a type and a path")
        if PurePosixPath(place).is_absolute() or ".." in PurePosixPath(place).parts or "\\" in place or "\0" in place:
            raise CheckpointError(f"{path} names the folder {printable(place)!r}, which is not inside its own")
        modules.append(SentenceModule(kind.rpartition(".")[2], path.parent / place))
    return modules


def _pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    """The modes, and whether prompts are pooled."""
    settings = json_files.read(path)
    # New files have one mode or a list of them, old ones a bool for each mode.
    modes = settings.get("pooling_mode", [word for key, word in _POOLING.items() if settings.get(key) is True])
    modes = [modes] if isinstance(modes, str) else modes
    if not modes or not isinstance(modes, list) or any(mode not in _POOLING.values() for mode in modes):
        raise CheckpointError(f"{path} has no supported pooling mode")
    include_prompt = settings.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise CheckpointError(f"{path}: include_prompt must be true or false, not {printable(repr(include_prompt))}")
    return tuple(modes), include_prompt


def _max_tokens(path: Path) -> int | None:
    value = (json_files.optional(path) or {}).get("max_seq_length")
    if value is not None and (type(value) is not int or value < 1):
        raise CheckpointError(
            f"{path}: max_seq_length must be a whole number of at least 1, not {printable(repr(value))}"
        )
    return value
