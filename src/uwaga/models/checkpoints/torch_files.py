"""Reading weights from a file of torch.save: its pickle is interpreted here, and makes the tensors.

The interpreter runs no code of the file, hashes nothing but strings, and allocates nothing of a size that the file states. It makes
dictionaries by name, tuples, strings, numbers and dense tensors; each tensor is a view of a record that lies in the file. The file
is mapped: tensors share memory with it, and a write to one of them does not reach it.

The formats: PyTorch's `torch/serialization.py` and `torch/_utils.py`, and Python's `pickletools`.
"""

import math
import mmap
import pickletools
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import torch
from torch import Tensor

from uwaga._base import untrusted
from uwaga._base.arguments import check
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable

# The greatest number of opcodes of a pickle: a weight has about 40.
_MOST_OPCODES = 500_000
_MOST_DIMENSIONS = 64
# Of weights, and of the masks and positions next to them in old files.
_STORAGES = {
    **{f"torch.{x}Storage": getattr(torch, x.lower()) for x in ("Bool", "Int", "Long")},
    **{f"torch.{x}Storage": getattr(torch, x.lower()) for x in ("Half", "BFloat16", "Float", "Double")},
    "torch.ByteStorage": torch.uint8,
}
_TENSOR = "torch._utils._rebuild_tensor_v2"
_GLOBALS = {"collections.OrderedDict", "torch._utils._rebuild_parameter", _TENSOR, *_STORAGES}


class _Global(NamedTuple):
    """A global name in a pickle; it is not imported."""

    name: str


class _Storage(NamedTuple):
    dtype: torch.dtype
    content: torch.UntypedStorage


class _Mapped(mmap.mmap):
    """A file in memory. zipfile reads the archive's directory at the size that the file declares: reads are bounded here."""

    def read(self, size: int | None = None) -> bytes:
        left = len(self) - self.tell()
        size = left if size is None else min(size, left)
        if size > untrusted.JSON_BYTES:
            raise ValueError(f"a directory of more than {untrusted.JSON_BYTES} bytes")
        return super().read(size)


def read(path: Path) -> dict[str, Tensor]:
    """Return the dense tensors of a file by name; they share memory with it. Raises CheckpointError."""
    try:
        with untrusted.open_regular(path) as file:
            check(
                file.read(2) == b"PK",
                "it is not a zip archive, and files from before PyTorch 1.6 are not read; load it with "
                "torch.load(weights_only=True), and save it again with safetensors",
            )
            loaded = _load(_Mapped(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    # What zipfile and pickletools raise for a file that contradicts itself.
    except (ValueError, OverflowError, NotImplementedError, struct.error, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path} cannot be read as weights: {printable(str(error))}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path} must contain a dictionary of weights by name, not {type(loaded).__name__}")
    strange = ", ".join(printable(name) for name, x in loaded.items() if not isinstance(x, Tensor))
    if strange:
        raise CheckpointError(f"{path} contains values that are not dense tensors: {strange}")
    return loaded


def _load(file: _Mapped) -> object:
    """Return what the pickle of an archive describes. Raises what zipfile and pickletools raise."""
    records = _records(file)
    folder = next(iter(records), "").partition("/")[0]
    begin, size = records.get(f"{folder}/data.pkl", (0, 0))
    check(size, "the archive has no data.pkl")
    check(size <= untrusted.JSON_BYTES, f"a pickle of more than {untrusted.JSON_BYTES} bytes")
    order, length = records.get(f"{folder}/byteorder", (0, 0))
    is_little = not length or file[order : order + min(length, 8)] == b"little"
    check(is_little, "its numbers are not little-endian; save it again on a little-endian machine")
    numbers = torch.frombuffer(file, dtype=torch.uint8).untyped_storage()

    @cache
    def record(key: str) -> torch.UntypedStorage:
        check(f"{folder}/data/{key}" in records, f"missing storage {printable(key)}")
        begin, size = records[f"{folder}/data/{key}"]
        # torch.save aligns storages to 64 bytes; other programs that write archives do not.
        return numbers[begin : begin + size] if begin % 16 == 0 else numbers[begin : begin + size].clone()

    def storage(key: str, dtype: torch.dtype, numel: int) -> _Storage:
        content, size = record(key), numel * dtype.itemsize
        held = content.nbytes()
        check(0 <= size <= held, f"storage {printable(key)} claims {size} bytes and has {held}")
        return _Storage(dtype, content[:size])

    return _interpret(file[begin : begin + size], storage)


def _records(file: _Mapped) -> dict[str, tuple[int, int]]:
    """Return where the records of an archive begin, and their sizes, in the directory's order. Raises what zipfile raises."""
    with zipfile.ZipFile(cast(BinaryIO, file)) as archive:
        entries = archive.infolist()
    results: dict[str, tuple[int, int]] = {}
    for entry in entries:
        name, at = f"the record {printable(entry.filename)}", entry.header_offset
        is_stored = entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size
        is_stored = is_stored and not entry.flag_bits & 1
        check(is_stored, f"{name} is compressed or encrypted, which torch.save does not do")
        begin = at + 30 + sum(struct.unpack_from("<2H", file, at + 26))  # the name, and what follows it
        check(at >= 0 and begin + entry.file_size <= len(file), f"{name} ends after the end of the file")
        results[entry.filename] = (begin, entry.file_size)
    check(sum(entry.file_size for entry in entries) <= len(file), "its records overlap")
    return results


def _interpret(pickle: bytes, storage: Callable[[str, torch.dtype, int], _Storage]) -> object:
    """Return what a pickle describes; `storage` gives the storage of a key, type and number of elements. Raises ValueError."""
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stack below each mark
    memo: dict[int, Any] = {}
    no_items: list[Any] = []
    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(pickle)):
        if count >= _MOST_OPCODES:
            raise ValueError(f"a pickle of more than {_MOST_OPCODES:,} opcodes")
        try:
            takes, operands = opcode.stack_before, []
            if pickletools.markobject in takes:
                operands, stack, takes = stack, below.pop(), takes[: takes.index(pickletools.markobject)]
            operands = [stack.pop() for _ in takes][::-1] + operands
            match opcode.name:
                case "PROTO" if argument == 2:
                    pass
                case "NONE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE":
                    stack.append(argument)
                case "NEWTRUE" | "NEWFALSE":
                    stack.append(opcode.name == "NEWTRUE")
                case "EMPTY_LIST" | "APPEND" | "APPENDS":
                    stack.append(no_items)  # weights are in no list
                case "EMPTY_DICT":
                    stack.append({})
                case "EMPTY_TUPLE" | "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                    stack.append(tuple(operands))
                case "MARK":
                    below.append(stack)
                    stack = []
                case "BINPUT" | "LONG_BINPUT":
                    memo[argument] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(memo[argument])
                case "SETITEM" | "SETITEMS":
                    stack.append(_set_items(*operands))
                case "GLOBAL":
                    name = argument.replace(" ", ".")
                    what = "is not a function that makes dense tensors, and is not called"
                    check(name in _GLOBALS, f"Unsupported global: {printable(name)} {what}")
                    stack.append(_Global(name))
                case "BINPERSID":
                    match operands[0]:
                        case ("storage", _Global(name), str(key), str(), int(numel)) if name in _STORAGES:
                            stack.append(storage(key, _STORAGES[name], numel))
                        case _:
                            raise ValueError("a storage that is not described as by torch.save")
                case "REDUCE":
                    stack.append(_call(*operands))
                case "BUILD" if isinstance(operands[0], dict):
                    stack.append(operands[0])  # without the attribute _metadata of a state dict
                case "STOP":
                    return operands[0]
                case name:
                    raise ValueError(f"opcode {name}, which is not used in files of weights")
        except LookupError:
            raise ValueError("the pickle pops from an empty stack") from None
    raise ValueError("the pickle does not end")


def _set_items(container: object, *items: Any) -> object:
    """Add keys and values to a dictionary. Raises ValueError for a duplicate key, and for one that is not a string.

    Numbers can be chosen to have equal hashes, and the hash of nested tuples may take exponential time.
    """
    if not isinstance(container, dict) or len(items) % 2:
        raise ValueError(f"sets items of {type(container).__name__}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        check(isinstance(key, str), f"a key that is {type(key).__name__}")
        check(key not in container, f"{printable(key)} is a duplicate key")
        container[key] = value
    return container


def _call(function: object, arguments: object) -> object:
    """Return what a function of torch.save makes of its arguments. Raises ValueError."""
    match function, arguments:
        case _Global("collections.OrderedDict"), ():
            return {}
        case _Global("torch._utils._rebuild_parameter"), (Tensor() as data, *_):
            return data
        case _Global(name), (_Storage() as stored, int(offset), tuple(shape), tuple(strides), _, _) if name == _TENSOR:
            return _tensor(stored, offset, shape, strides)
    raise ValueError("a call that torch.save does not write for dense tensors")


def _tensor(stored: _Storage, offset: int, shape: tuple[Any, ...], strides: tuple[Any, ...]) -> Tensor:
    """Return a tensor that lies within its storage. Raises ValueError."""
    is_shape = len(shape) == len(strides) <= _MOST_DIMENSIONS
    is_shape = is_shape and all(type(n) is int and 0 <= n < 2**63 for n in (offset, *shape, *strides))
    check(is_shape and math.prod(shape) < 2**63, "a tensor with an invalid shape or strides")
    steps = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
    needed, numel = offset + (0 if 0 in shape else steps), stored.content.nbytes() // stored.dtype.itemsize
    check(needed <= numel, f"a tensor needs {needed} elements of its storage, which has {numel}")
    return torch.empty(0, dtype=stored.dtype).set_(stored.content, offset, shape, strides)
