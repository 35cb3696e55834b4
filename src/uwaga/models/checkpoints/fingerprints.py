"""The fingerprint of a model's directory: which model it is, by the files that a load may open."""

import hashlib
import os
from fnmatch import fnmatchcase
from pathlib import Path

from uwaga._base import untrusted
from uwaga._base.digests import cached_sha256
from uwaga._base.errors import CheckpointError
from uwaga.models.checkpoints import modules_json

# What lies beside models and no load opens: documents, code, weights of other programs, and how a model was trained. Any other file counts,
# so that one is hashed before this package or transformers learns to read it.
_NOT_READ = (
    *(".git*", ".DS_Store", "*.md", "*.py", "*.ipynb", "*.csv", "*.log", "*.pdf", "*.png", "*.jpg", "*.svg"),
    *("LICENSE*", "NOTICE*"),
    *("*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.pt", "*.pth"),
    *("data_config.json", "trainer_state.json"),
)
_TEMPLATES = "additional_chat_templates"  # the one folder that is read of a folder with a tokenizer


def fingerprint(folder: Path) -> str:
    """SHA-256 over the names and contents of the files of a model, wherever it lies: those in its directory and in the folders of its
    modules. So a file that appears later, such as a chat template, changes it too. A file that has not changed since it was hashed last is not
    read (`uwaga._base.digests`).

    Raises CheckpointError: a file that cannot be read, or a modules.json that is wrong.
    """
    whole = hashlib.sha256()
    with cached_sha256() as sha256:
        for path in _files(folder):
            try:
                # Weights have no limit here: their header is compared with their size when they are loaded.
                digest = sha256(path, untrusted.TOKENIZER_BYTES if path.suffix == ".json" else None)
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
            whole.update(os.fsencode(path.relative_to(folder).as_posix()) + f" {digest}\n".encode())
    return whole.hexdigest()


def _files(folder: Path) -> list[Path]:
    places = modules_json.folders(folder)
    listed = {each for place in places for inner in (place, place / _TEMPLATES) for each in inner.glob("*")}
    return sorted(
        each for each in listed if not each.is_dir() and not any(fnmatchcase(each.name, name) for name in _NOT_READ)
    )
