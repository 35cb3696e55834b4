"""A sentence-transformers directory: modules.json says which folder holds the transformer and how its states are pooled."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models import json_files

# In the order in which sentence-transformers joins the vectors of several.
_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, kw_only=True)
class SentenceModules:
    """What modules.json lists, in its order."""

    transformer: Path
    pooling: tuple[str, ...] = ()  # cls, mean, max, ...: several are concatenated; empty where there is no pooling
    normalize: bool = False  # vectors of length 1 at the end
    others: tuple[str, ...] = ()  # the types of modules of any other kind, such as Dense
    max_tokens: int | None = None  # longer texts were cut there in training


def read(folder: Path) -> SentenceModules | None:
    """The modules of a directory, or None where there is no modules.json. Raises CheckpointError."""
    path = folder / "modules.json"
    found = json_files.optional(path, of=list)
    if found is None:
        return None
    modules = _modules(path, found)
    of_kind = dict(modules)
    if "Transformer" not in of_kind:
        raise CheckpointError(f"{path} lists no Transformer, but {', '.join(printable(kind) for kind in of_kind)}")
    known = {"Transformer", "Pooling", "Normalize"}
    return SentenceModules(
        transformer=of_kind["Transformer"],
        pooling=_pooling(of_kind["Pooling"] / "config.json") if "Pooling" in of_kind else (),
        normalize="Normalize" in of_kind,
        others=tuple(kind for kind, _ in modules if kind not in known),
        max_tokens=_max_tokens(of_kind["Transformer"] / "sentence_bert_config.json"),
    )


def _modules(path: Path, found: list) -> list[tuple[str, Path]]:
    """The last word of each module's type, and its folder."""
    modules = []
    for module in found:
        kind, place = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(place, str):
            raise CheckpointError(f"{path} must list modules with a type and a path")
        if PurePosixPath(place).is_absolute() or ".." in PurePosixPath(place).parts or "\\" in place or "\0" in place:
            raise CheckpointError(f"{path} names the folder {printable(place)!r}, which is not inside its own")
        modules.append((kind.rpartition(".")[2], path.parent / place))
    return modules


def _pooling(path: Path) -> tuple[str, ...]:
    settings = json_files.read(path)
    # A word or a list of words in new files, a switch per word in old ones.
    modes = settings.get("pooling_mode", [word for key, word in _POOLING.items() if settings.get(key) is True])
    modes = [modes] if isinstance(modes, str) else modes
    if not modes or not isinstance(modes, list) or any(mode not in _POOLING.values() for mode in modes):
        raise CheckpointError(f"{path} names no way of pooling that is known here")
    return tuple(modes)


def _max_tokens(path: Path) -> int | None:
    found = (json_files.optional(path) or {}).get("max_seq_length")
    if found is not None and (type(found) is not int or found < 1):
        raise CheckpointError(
            f"{path}: max_seq_length must be a whole number of at least 1, not {printable(repr(found))}"
        )
    return found
