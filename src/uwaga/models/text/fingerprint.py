"""A number that changes with anything that the vectors of a model depend on."""

import hashlib
from pathlib import Path

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError

# Settings of models, tokenizers, pooling and prompts; weights of any kind, and the index of shards.
_FILES = ("*.json", "*/config.json", "*.safetensors", "*.bin")
# What says how the model was trained or looks on the hub, and is read by nobody.
_UNREAD = {"data_config.json", "trainer_state.json", "training_args.bin"}


def fingerprint(*folders: Path) -> str:
    """SHA-256 over the names and contents of a model's files. Two copies of a model have the same, wherever they lie.

    Raises CheckpointError: a file that cannot be read.

    folders: the model's directory and, in one of sentence-transformers, the one of its transformer.
    """
    whole = hashlib.sha256()
    for folder in dict.fromkeys(folders):
        for path in sorted({found for pattern in _FILES for found in folder.glob(pattern)} - _unread(folder)):
            try:
                # Weights are hashed however large they are: their header is compared with their size when they are read.
                most = untrusted.TOKENIZER_BYTES if path.suffix == ".json" else None
                digest = untrusted.sha256(path, most)
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
            whole.update(f"{path.relative_to(folder).as_posix()} {digest}\n".encode())
    return whole.hexdigest()


def _unread(folder: Path) -> set[Path]:
    return {folder / name for name in _UNREAD}
