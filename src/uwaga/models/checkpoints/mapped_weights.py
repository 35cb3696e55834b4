"""Weights that the processes of a machine share: in a safetensors file in the folder of caches (`uwaga._base.env.data`), in the dtype and the
layout in which the model computes, which every process maps into its memory. Nobody writes to them, so that they are in memory once.

The first process to ask writes the file, and the others wait for it. It is named by what it is made from and by, and by its content, which every
process compares before it maps the file; a file that has not changed since then is not read again (`directories.cached_sha256`). It may be removed at
any time: who has it mapped keeps it.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from uwaga._base import durable, env, safetensors_files
from uwaga._base.errors import CheckpointError
from uwaga.models.checkpoints.directories import cached_sha256, fingerprint

_ALIGNED = 64  # bytes: where a tensor begins, as in memory from PyTorch, whose vectors are read at once
_PADDING = "__padding"
_DIGITS = 32  # of a SHA-256 in a name


class SharedFile(NamedTuple):
    """Where the weights of a model are, and what it is made from."""

    path: Path  # without the digest of the content
    is_current: Callable[[], bool]  # whether the files of the model are still those of the name


def shared_file(folder: Path, dtype: torch.dtype | None) -> SharedFile:
    """Return the shared file of a model, named by its fingerprint and by the packages that name and lay out weights; dtype None: as stored."""
    kind = "stored" if dtype is None else str(dtype).removeprefix("torch.")
    library = metadata.version("transformers") if find_spec("transformers") else ""
    versions = f"{sys.modules['uwaga'].__version__} {library}"
    content = fingerprint(folder)
    made_by = hashlib.sha256(versions.encode()).hexdigest()[:8]
    # Temporary files have the first letters of the name: they must tell the files apart.
    path = env.data() / "weights" / f"{kind}-{made_by}-{content[:_DIGITS]}"
    return SharedFile(path, lambda: fingerprint(folder) == content)


def mapped(file: SharedFile, make: Callable[[], Mapping[str, Tensor]], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Map the tensors of the file, which is written from what `make` returns if it does not exist.

    Raises CheckpointError: the file cannot be written, is not what was written, or has other names or shapes than `like`; the files of the
    model changed meanwhile.
    """
    folder = file.path.parent
    try:
        durable.make_folder(folder)
        with durable.file_lock(file.path.with_suffix(".lock")):
            found = next(iter(sorted(folder.glob(f"{file.path.name}-*.safetensors"))), None)
            path = found or _written(file, make())
        with cached_sha256() as sha256:
            is_whole = found is None or path.stem.rpartition("-")[2] == sha256(path, None)[:_DIGITS]
        opened: Any = safetensors_files.open_file(path) if is_whole else None
    except OSError as error:
        where = f"{error.filename or file.path}: {error.strerror or error}"
        raise CheckpointError(
            f"{where}: the weights that processes share are written there; UWAGA_DATA is another folder for it"
        ) from error
    try:
        tensors = {name: opened.get(stored) for name, stored in json.loads(opened.metadata["names"]).items()}
        is_whole &= {name: x.shape for name, x in tensors.items()} == {name: x.shape for name, x in like.items()}
    except (KeyError, ValueError, AttributeError, SafetensorError):
        is_whole = False
    if not is_whole:
        raise CheckpointError(f"{path} is damaged: remove it")
    return tensors


def _written(file: SharedFile, tensors: Mapping[str, Tensor]) -> Path:
    """Write the file and return its path. Tensors that share their memory are written once.

    Raises CheckpointError if the files of the model have changed since the file was named.
    """
    stored: dict[tuple, str] = {}
    names = {}
    for name, x in tensors.items():
        names[name] = stored.setdefault((x.data_ptr(), x.dtype, x.shape, x.stride()) if x.numel() else (name,), name)
    unique = [(name, tensors[name].detach().contiguous()) for name in stored.values()]
    whole = hashlib.sha256()
    for content in _contents(unique, names):
        whole.update(content)
    path = file.path.with_name(f"{file.path.name}-{whole.hexdigest()[:_DIGITS]}.safetensors")
    durable.remove_temporary(path.parent, path.name)
    with durable.atomic_replace(path) as written:
        for content in _contents(unique, names):
            written.write(content)
        if not file.is_current():
            raise CheckpointError("the files of the model were changed while they were read: load it again")
    return path


def _contents(tensors: list[tuple[str, Tensor]], names: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    yield _header(tensors, names)
    for _, x in tensors:
        yield x.reshape(-1).view(torch.uint8).numpy().data if x.numel() else b""
        yield bytes(-x.nbytes % _ALIGNED)


def _header(tensors: list[tuple[str, Tensor]], names: Mapping[str, str]) -> bytes:
    """Return the header, with an entry for every gap: in the format, each byte belongs to a tensor."""
    entries: dict[str, object] = {"__metadata__": {"names": json.dumps(names)}}
    at = 0
    for number, (name, x) in enumerate(tensors):
        entries[name] = {
            "dtype": safetensors_files.dtype_name(x.dtype),
            "shape": list(x.shape),
            "data_offsets": [at, at + x.nbytes],
        }
        at += x.nbytes
        if gap := -x.nbytes % _ALIGNED:
            entries[f"{_PADDING}{number}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [at, at + gap]}
            at += gap
    written = json.dumps(entries, separators=(",", ":")).encode()
    written += b" " * (-(len(written) + 8) % _ALIGNED)
    return len(written).to_bytes(8, "little") + written
