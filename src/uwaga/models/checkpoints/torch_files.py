"""Reading weights from a file of torch.save: its one zip directory and its pickle are interpreted here, and make the tensors.

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
_LOCAL_HEADER = struct.Struct("<4s22x2H")  # signature, lengths of the name and of the extra field
_DESCRIPTOR_BYTES = 24  # between two records
# No quantized ones, which have a scale too. Dtypes without a class of storages are an argument of _rebuild_tensor_v3.
_DTYPES = {str(x): x for x in vars(torch).values() if isinstance(x, torch.dtype) and not str(x).startswith("torch.q")}
_STORAGES = {
    **{f"torch.{x}Storage": getattr(torch, x.lower()) for x in ("Bool", "Short", "Int", "Long")},
    **{f"torch.{x}Storage": getattr(torch, x.lower()) for x in ("Half", "BFloat16", "Float", "Double")},
    **dict.fromkeys(("torch.ByteStorage", "torch.storage.UntypedStorage"), torch.uint8),
    "torch.CharStorage": torch.int8,
    "torch.ComplexFloatStorage": torch.complex64,
    "torch.ComplexDoubleStorage": torch.complex128,
}
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
_GLOBALS = {"collections.OrderedDict", "torch._utils._rebuild_parameter", *_TENSORS, *_STORAGES, *_DTYPES}


class _Global(NamedTuple):
    """A global name in a pickle; it is not imported."""

    name: str


class _Storage(NamedTuple):
    key: str
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
    storages: dict[str, _Storage] = {}

    def storage(key: str, dtype: torch.dtype, numel: int) -> _Storage:
        place, shown = records.get(f"{folder}/data/{key}"), printable(key)
        check(place, f"missing storage {shown}")
        (begin, held), size = place or (0, 0), numel * dtype.itemsize
        check(0 <= size <= held, f"storage {shown} claims {size} bytes and has {held}")
        if key not in storages:
            content = numbers[begin : begin + size]
            # torch.save aligns storages to 64 bytes; other programs that write archives do not.
            storages[key] = _Storage(key, dtype, content if begin % 16 == 0 else content.clone())
        found = storages[key]
        check((found.dtype, found.content.nbytes()) == (dtype, size), f"storage {shown} has two types or sizes")
        return found

    return _interpret(file[begin : begin + size], storage)


def _records(file: _Mapped) -> dict[str, tuple[int, int]]:
    """Return where the records of an archive begin, and their sizes, in the directory's order. Raises what zipfile raises."""
    is_at_end = file[-22:].startswith(b"PK\5\6")  # the end of the directory, without a comment
    check(is_at_end, "it does not end with the directory of a zip archive")
    with zipfile.ZipFile(cast(BinaryIO, file)) as archive:
        entries, end = archive.infolist(), archive.start_dir
    names = {entry.filename.lower() for entry in entries}
    check(len(names) == len(entries), "the archive has two records with the same name")
    results: dict[str, tuple[int, int]] = {}
    before = 0
    for entry in entries:
        name, at = f"the record {printable(entry.filename)}", entry.header_offset
        is_stored = entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size
        is_stored = is_stored and not entry.flag_bits & 1
        check(is_stored, f"{name} is compressed or encrypted, which torch.save does not do")
        follows = 0 <= at - before <= (_DESCRIPTOR_BYTES if results else 0) and at + _LOCAL_HEADER.size <= end
        check(follows, f"{name} does not follow the one before it; it may be part of another archive")
        signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(file, at)
        begin = at + _LOCAL_HEADER.size + name_bytes + extra_bytes
        before = begin + entry.file_size
        check(signature == b"PK\3\4" and before <= end, f"{name} has no header, or ends after the end of the file")
        results[entry.filename] = (begin, entry.file_size)
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
        case _Global(name), (_Storage() as stored, int(offset), tuple(shape), tuple(strides), _, _, *lazy) if (
            name in _TENSORS
        ):
            return _tensor(name, stored, offset, shape, strides, lazy)
    raise ValueError("a call that torch.save does not write for dense tensors")


def _tensor(
    name: str, stored: _Storage, offset: int, shape: tuple[Any, ...], strides: tuple[Any, ...], lazy: list[Any]
) -> Tensor:
    """Return a tensor that lies within its storage. Raises ValueError."""
    key, dtype, content = stored
    match lazy:  # in _rebuild_tensor_v3 the dtype, then which operations are still to be done
        case [_Global(of), *rest] if name.endswith("_v3") and of in _DTYPES:
            dtype, lazy = _DTYPES[of], rest
    plain = "a lazy conjugate or negative; call resolve_conj() and resolve_neg() before it is saved"
    check(lazy in ([], [{}]), plain)
    is_shape = len(shape) == len(strides) <= _MOST_DIMENSIONS
    is_shape = is_shape and all(type(n) is int and 0 <= n < 2**63 for n in (offset, *shape, *strides))
    check(is_shape and math.prod(shape) < 2**63, "a tensor with an invalid shape or strides")
    steps = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
    needed = offset + (0 if 0 in shape else steps)
    numel = content.nbytes() // dtype.itemsize
    check(needed <= numel, f"a tensor needs {needed} elements of storage {printable(key)}, which has {numel}")
    return torch.empty(0, dtype=dtype).set_(content, offset, shape, strides)
