"""One safetensors file. The safetensors library checks offsets, sizes and overlaps; what it lets pass is checked here.

The format: 8 bytes with the length of the header (little-endian), the header (JSON: name -> dtype, shape, offsets), the
data. The library keeps the last of two weights of one name in silence, and accepts a header of up to 100 MB.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga.models import json_files

# The library's names of the dtypes that weights may have; others (integers, eight bits) are shown in messages as they are.
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Stored(NamedTuple):
    """What a file says of one weight."""

    shape: tuple[int, ...]
    dtype: str  # float32, ...; what is no floating dtype of PyTorch is named as the file names it
    file: str  # the name of the file that holds it


def read(path: Path) -> tuple[Mapping[str, Stored], Callable[[str], Tensor]]:
    """What the file holds, and a function that reads one weight. Raises CheckpointError."""
    from safetensors import SafetensorError, safe_open

    header = _header(path)
    try:
        file = safe_open(path, framework="pt").__enter__()
    except (SafetensorError, OSError, MemoryError) as error:
        raise CheckpointError(f"{path} is no proper safetensors file: {error}") from error
    header.pop("__metadata__", None)
    stored = {
        name: Stored(shape=tuple(entry["shape"]), dtype=_DTYPES.get(entry["dtype"], entry["dtype"]), file=path.name)
        for name, entry in header.items()
    }
    return stored, file.get_tensor


def _header(path: Path) -> dict:
    """The header, as far as the library does not look at it: its length and its names."""
    try:
        with untrusted.open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                reason = f"its header claims {length} bytes, and the file has {size}"
                raise CheckpointError(f"{path} is no proper safetensors file: {reason}")
            if length > json_files.LARGEST:
                reason = f"its header of {length} bytes is longer than {json_files.LARGEST}"
                raise CheckpointError(f"{path} is no proper safetensors file: {reason}")
            return json_files.parse(file.read(length), f"the header of {path}")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
