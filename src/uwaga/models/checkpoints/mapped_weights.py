"""Weights that the processes of a machine share: in a safetensors file in the folder of caches (`uwaga._base.env.data`), in the dtype and the
layout in which the model computes, which every process maps into its memory. Nobody writes to them, so that they are in memory once.

The first process to ask writes the file, and the others wait for it. It is named by what it is made from and never changes, and may be
removed at any time: who has it mapped keeps it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from uwaga._base import durable, env, safetensors_files
from uwaga._base.errors import CheckpointError

_ALIGNED = 64  # bytes: where a tensor begins, as in memory from PyTorch, whose vectors are read at once
_PADDING = "__padding"


def path_of(fingerprint: str, dtype: torch.dtype | None) -> Path:
    """Of the weights of a model with this fingerprint; dtype None: as they are stored."""
    name = "stored" if dtype is None else str(dtype).removeprefix("torch.")
    return env.data() / "weights" / f"{fingerprint}-{name}.safetensors"


def mapped(path: Path, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of the file, mapped; where there is none, it is written from what `make` returns. Raises CheckpointError, OSError."""
    durable.make_folder(path.parent)
    with durable.file_lock(path.with_suffix(".lock")):
        if not path.exists():
            _write(path, make())
        file = safetensors_files.open_file(path)
    try:
        names = json.loads(file.metadata["names"])
        return {name: file.get(stored) for name, stored in names.items()}
    except (KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: remove it") from error


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Tensors that share their memory are written once."""
    stored: dict[tuple, str] = {}
    names = {}
    for name, x in tensors.items():
        names[name] = stored.setdefault((x.data_ptr(), x.dtype, x.shape, x.stride()) if x.numel() else (name,), name)
    unique = [(name, tensors[name].detach().contiguous()) for name in stored.values()]
    with durable.atomic_replace(path) as file:
        file.write(_header(unique, names))
        for content in _contents(unique):
            file.write(content)


def _contents(tensors: list[tuple[str, Tensor]]) -> Iterator[bytes | memoryview]:
    for _, x in tensors:
        yield x.reshape(-1).view(torch.uint8).numpy().data if x.numel() else b""
        yield bytes(-x.nbytes % _ALIGNED)


def _header(tensors: list[tuple[str, Tensor]], names: Mapping[str, str]) -> bytes:
    """With an entry for every gap: the format allows no bytes that belong to nothing."""
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
