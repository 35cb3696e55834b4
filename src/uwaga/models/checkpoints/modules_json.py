"""modules.json of a sentence-transformers directory: where the transformer is, how its hidden states are pooled, and what follows."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from uwaga._base import json_files
from uwaga._base.errors import CheckpointError
from uwaga._base.options import Switch
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import config_json, sentence_files

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


# Packages whose modules are computed. Those of PyLate have the names of sentence-transformers, which reads them so too.
_PACKAGES = ("sentence_transformers", "pylate")


def read(folder: Path) -> SentenceModules | None:
    """The modules of a directory, or None where there is no modules.json. Raises CheckpointError."""
    path = folder / "modules.json"
    listed = json_files.optional(path, of=list)
    if listed is None:
        return None
    modules = _modules(path, listed)
    kinds = [kind for kind, _ in modules]
    if "Transformer" not in kinds:
        raise CheckpointError(f"{path} has no module of the type Transformer, only {', '.join(map(printable, kinds))}")
    has_pooling = kinds[1:2] == ["Pooling"]
    others = tuple(modules[1 + has_pooling :])
    if kinds[0] != "Transformer" or {"Transformer", "Pooling"} & {module.kind for module in others}:
        raise CheckpointError(
            f"{path}: one Transformer must come first, and one Pooling may follow it, not {', '.join(map(printable, kinds))}"
        )
    pooling, include_prompt = _pooling(modules[1].folder / "config.json") if has_pooling else ((), True)
    return SentenceModules(transformer=modules[0].folder, pooling=pooling, include_prompt=include_prompt, others=others)


def folders(folder: Path) -> list[Path]:
    """The directory itself, and the folders of its modules, whatever these are. Raises CheckpointError."""
    path = folder / "modules.json"
    return list(
        dict.fromkeys([folder, *(place for _, place in _modules(path, json_files.optional(path, of=list) or []))])
    )


def _modules(path: Path, listed: list) -> list[SentenceModule]:
    for rule in _broken_rules(path, listed):
        raise CheckpointError(f"{path} {rule}")
    return [SentenceModule(each["type"].rpartition(".")[2], path.parent / each["path"]) for each in listed]


def _broken_rules(path: Path, listed: list) -> Iterator[str]:
    for module in listed:
        kind, place = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(place, str):
            yield "must list modules with a type and a path"
            return
        sentence_files.check(path, module, sentence_files.MODULES)
        if PurePosixPath(place).is_absolute() or ".." in PurePosixPath(place).parts or "\\" in place or "\0" in place:
            yield f"names the folder {printable(place)!r}, which is not inside its own"
        if kind.partition(".")[0] not in _PACKAGES:
            yield (
                f"has the type {printable(kind)}, which is no module of sentence_transformers; the code that comes with a model is never run "
                "here; sentence_transformers.SentenceTransformer may read it with trust_remote_code=True"
            )
    names = Counter(str(module["name"]) for module in listed if module.get("name") is not None)
    for name, _ in (each for each in names.most_common(1) if each[1] > 1):
        yield (
            f"has two modules of the name {printable(name)!r}, and sentence-transformers keeps one of them; "
            "give each a name of its own"
        )


def _pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    """The modes, and whether prompts are pooled."""
    settings = json_files.read(path)
    sentence_files.check(path, settings, "Pooling")
    for key in ("include_prompt", *_POOLING):
        config_json.setting(settings, path, key, Switch, True)
    # New files have one mode or a list of them, old ones a bool for each mode; of none, the mean.
    modes = settings.get("pooling_mode", [word for key, word in _POOLING.items() if settings.get(key)] or "mean")
    modes = [modes] if isinstance(modes, str) else modes
    if not modes or not isinstance(modes, list) or any(mode not in _POOLING.values() for mode in modes):
        raise CheckpointError(f"{path} has no supported pooling mode")
    return tuple(modes), settings.get("include_prompt", True)
