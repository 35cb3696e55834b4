"""Where a model is: a directory, a part of a sentence-transformers directory, bundled, or a repository on the hub."""

import os
from pathlib import Path

from uwaga._base.errors import CheckpointError
from uwaga.models import bundled, sentence

# What a model and its tokenizer consist of; not the same weights again for other programs.
_FILES = ("*.json", "*.txt", "*.model", "*/config.json")
_SAFETENSORS, _PICKLED = "model*.safetensors", "pytorch_model*.bin"


def find(path_or_hub_id: str | os.PathLike[str], revision: str | None) -> Path:
    """The directory itself, that of a bundled model, or the one that huggingface_hub keeps of a repository.

    Raises CheckpointError.
    """
    path = Path(path_or_hub_id)
    if path.is_dir():
        if revision is not None:
            raise ValueError(f"load: {path} is a directory, which has no revision {revision!r}")
        return path
    if path.exists():
        raise CheckpointError(f"{path} is a file; a model is loaded from the directory that holds its config.json")
    name = os.fspath(path_or_hub_id)
    if name in bundled.MODELS:
        if revision is not None:
            raise ValueError(f"load: {name} is a bundled model, which has no revision {revision!r}")
        return bundled.folder(name)
    return _fetched(name, revision)


def transformer(folder: Path) -> Path:
    """The directory of the transformer itself, in one of sentence-transformers too."""
    modules = sentence.read(folder)
    return folder if modules is None else modules.transformer


def _fetched(hub_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub_id, revision=revision, allow_patterns=[*_FILES, _SAFETENSORS]))
        if not any(folder.rglob(_SAFETENSORS)):
            folder = Path(snapshot_download(hub_id, revision=revision, allow_patterns=[*_FILES, _PICKLED]))
    except HFValidationError as error:
        raise CheckpointError(f"{hub_id} is neither a directory nor the id of a repository: {error}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(f"{hub_id} is no directory, and cannot be fetched from the hub: {error}") from error
    return folder
