"""What prepared data depends on, as a name: other files, another tokenizer or split give another."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from uwaga._base import untrusted
from uwaga.train import recipes_data
from uwaga.train.config import Config
from uwaga.train.data.sides import TRAIN, VALIDATION, Places
from uwaga.train.errors import DataError

_FORMAT = 2  # of the prepared files; another one where they mean something else
# Settings that the files do not depend on.
_FREE = (
    "context_length",
    "windows",
    "mlm_probability",
    "download",
    "sources",
    "train",
    "validation",
    "target_files",
    "validation_target_files",
)


def places(config: Config) -> Places:
    """The files of each side, those of sources found. Raises DataError."""
    data = config.data
    names = {
        TRAIN: data.train,
        VALIDATION: data.validation,
        "target": data.target_files,
        "validation_target": data.validation_target_files,
    }
    return {side: tuple(recipes_data.found(name, data) for name in own) for side, own in names.items()}


def fingerprint(config: Config, files: Places) -> str:
    """Of settings, and of files by their paths, sizes and times. Raises DataError: a file that is not there."""
    data = {name: value for name, value in asdict(config.data).items() if name not in _FREE}
    # Pairs must fit into the context, and windows are split by place.
    data |= {
        "context_length": config.data.context_length if data["kind"] == "pairs" else None,
        "windows": config.data.windows,
    }
    paths = [each.path for each in (config.tokenizer, config.tokenizer.target) if each is not None and each.path]
    described = {
        "format": _FORMAT,
        "objective": config.objective,
        "data": data,
        "tokenizer": asdict(config.tokenizer),
        "given": [_seen(Path(path)) for path in paths],
        "files": {side: [_state(path) for path in paths] for side, paths in files.items()},
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _state(path: Path) -> tuple[str, int, int]:
    try:
        state = untrusted.stat_regular(path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file") from error
    except IsADirectoryError as error:
        raise DataError(f"{path}: is a directory, not a file") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    return str(path.resolve()), state.st_size, state.st_mtime_ns


def _seen(path: Path) -> list[tuple[str, int, int]]:
    folder = path if path.is_dir() else path.parent
    return [_state(each) for each in sorted(folder.glob("*.json"))]
