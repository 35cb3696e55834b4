"""Reading a safetensors file, and the header of one whose tensors are written piece by piece.

The library checks offsets, sizes and overlaps; the rest is checked here. It writes from a copy of each tensor in memory.

The format: 8 bytes with the length of the header (little-endian), the header (JSON: name -> dtype, shape, offsets), the
data. Of two weights of one name the library keeps the last without an error, and it accepts headers of up to 100 MB.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError

# The format's names of dtypes that weights may have; others are shown in messages unchanged.
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_METADATA = "__metadata__"  # of the header: a JSON object of strings


class Stored(NamedTuple):
    """The description of one weight in a file."""

    shape: tuple[int, ...]
    dtype: str  # float32, ...; for other dtypes than those of weights the name in the file
    file: str  # the name of the file


class SafetensorsFile(NamedTuple):
    """An open file: the descriptions of its tensors by name, a function that maps one of them into memory, and its metadata."""

    stored: Mapping[str, Stored]
    get: Callable[[str], Tensor]
    metadata: Mapping[str, str]


def read(path: Path) -> tuple[Mapping[str, Stored], Callable[[str], Tensor]]:
    """Return the weights' descriptions by name, and a function that reads one weight. Raises CheckpointError."""
    return open_file(path)[:2]


def open_file(path: Path) -> SafetensorsFile:
    """Open a file; its tensors are read when their elements are. Raises CheckpointError."""
    from safetensors import SafetensorError, safe_open

    header, before = _header(path)
    try:
        file = safe_open(path, framework="pt").__enter__()
        after = _identity(path.stat())
    except (SafetensorError, OSError, MemoryError, RuntimeError) as error:  # RuntimeError: PyTorch cannot map the file
        raise CheckpointError(f"{path} is not a valid safetensors file: {error}") from error
    if after != before:  # the library has opened the path itself
        raise CheckpointError(f"{path} was replaced or written while it was opened; try again when nothing writes it")
    metadata = header.pop(_METADATA, None) or {}
    stored = {
        name: Stored(shape=tuple(entry["shape"]), dtype=_DTYPES.get(entry["dtype"], entry["dtype"]), file=path.name)
        for name, entry in header.items()
    }
    return SafetensorsFile(stored, file.get_tensor, metadata)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the format's name of a dtype."""
    names = {getattr(torch, stored): name for name, stored in _DTYPES.items()}
    return (names | {torch.int64: "I64", torch.uint8: "U8", torch.bool: "BOOL"})[dtype]


def layout(
    tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the header of a file with tensors of these shapes, and where in the file each of them begins, C-contiguous and little-endian."""
    entries: dict[str, object] = {_METADATA: dict(metadata)}
    at, offsets = 0, {}
    # Large elements first, so that each tensor is aligned to its own.
    for name, (shape, dtype) in sorted(tensors.items(), key=lambda entry: (-entry[1][1].itemsize, entry[0])):
        end = at + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": dtype_name(dtype), "shape": list(shape), "data_offsets": [at, end]}
        offsets[name], at = at, end
    written = json.dumps(entries, separators=(",", ":")).encode()
    written += b" " * (-len(written) % 8)
    header = len(written).to_bytes(8, "little") + written
    return header, {name: len(header) + offset for name, offset in offsets.items()}


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _header(path: Path) -> tuple[dict, tuple[int, ...]]:
    """Return the header, with the checks that the library lacks, of its length and duplicate names; and which file has it."""
    try:
        with untrusted.open_regular(path) as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            length = int.from_bytes(file.read(8), "little")
            reason = ""
            if size < 8 or length > size - 8:
                reason = f"its header claims {length} bytes, and the file has {size}"
            elif length > untrusted.JSON_BYTES:
                reason = f"its header of {length} bytes is longer than {untrusted.JSON_BYTES}"
            if reason:
                raise CheckpointError(f"{path} is not a valid safetensors file: {reason}")
            return untrusted.json_of(file.read(length), f"the header of {path}"), _identity(status)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
