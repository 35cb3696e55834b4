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
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable

# The greatest number of opcodes of a pickle: a weight has about 40.
_MOST_OPCODES = 500_000
_MOST_DIMENSIONS = 64
_ZIP = b"PK"
_LOCAL_HEADER = struct.Struct("<4s22x2H")  # signature, lengths of the name and of the extra field
_LOCAL, _END = b"PK\3\4", b"PK\5\6"
_END_BYTES = 22  # without a comment
_DESCRIPTOR_BYTES = 24  # between two records
_STORAGES = {
    "torch.storage.UntypedStorage": torch.uint8,
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
    "torch.ComplexDoubleStorage": torch.complex128,
    "torch.ComplexFloatStorage": torch.complex64,
}
# Those without a class of storages: _rebuild_tensor_v3 has them as an argument. No quantized ones, which have a scale too.
_DTYPES = {str(x): x for x in vars(torch).values() if isinstance(x, torch.dtype) and not str(x).startswith("torch.q")}
_DICTIONARY = "collections.OrderedDict"
_PARAMETER = "torch._utils._rebuild_parameter"
_TENSORS = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")


class PickleError(ValueError):
    """The file is not one of torch.save, or has unsupported content; the message does not name the file."""


class _Global(NamedTuple):
    """A global name in a pickle; it is not imported."""

    name: str


class _Storage(NamedTuple):
    key: str
    dtype: torch.dtype
    numel: int
    content: torch.UntypedStorage


class _Mapped(mmap.mmap):
    """A file in memory. zipfile reads the archive's directory at the size that the file declares: reads are bounded here."""

    def read(self, size: int | None = None) -> bytes:
        left = len(self) - self.tell()
        size = left if size is None else min(size, left)
        if size > untrusted.JSON_BYTES:
            raise PickleError(f"a directory of more than {untrusted.JSON_BYTES} bytes")
        return super().read(size)


def read(path: Path) -> dict[str, Tensor]:
    """The dense tensors of a file by name; they share memory with it. Raises CheckpointError."""
    try:
        with untrusted.open_regular(path) as file:
            if file.read(len(_ZIP)) != _ZIP:
                raise PickleError(
                    "it is not a zip archive, and files from before PyTorch 1.6 are not read; load it with "
                    "torch.load(weights_only=True), and save it again with safetensors"
                )
            loaded = _load(_Mapped(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    # What zipfile and pickletools raise for a file that contradicts itself.
    except (ValueError, OverflowError, NotImplementedError, struct.error, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path} cannot be read as weights: {printable(str(error))}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path} must contain a dictionary of weights by name, not {_kind(loaded)}")
    strange = [name for name, x in loaded.items() if not isinstance(x, Tensor)]
    if strange:
        raise CheckpointError(
            f"{path} contains values that are not dense tensors: {', '.join(printable(name) for name in strange)}"
        )
    return loaded


def _load(file: _Mapped) -> object:
    """What the pickle of an archive describes. Raises PickleError, and what zipfile and pickletools raise."""
    records = _records(file)
    folder = next(iter(records), "").partition("/")[0]
    begin, size = records.get(f"{folder}/data.pkl", (0, 0))
    if not size:
        raise PickleError("the archive has no data.pkl")
    if size > untrusted.JSON_BYTES:
        raise PickleError(f"a pickle of more than {untrusted.JSON_BYTES} bytes")
    order, length = records.get(f"{folder}/byteorder", (0, 0))
    if length and file[order : order + min(length, 8)] != b"little":
        raise PickleError("its numbers are not little-endian; save it again on a little-endian machine")
    numbers = torch.frombuffer(file, dtype=torch.uint8).untyped_storage()
    storages: dict[str, _Storage] = {}

    def storage(key: str, dtype: torch.dtype, numel: int) -> _Storage:
        known = storages.get(key)
        if known is not None:
            if (known.dtype, known.numel) != (dtype, numel):
                raise PickleError(f"storage {printable(key)} has two types or sizes")
            return known
        if f"{folder}/data/{key}" not in records:
            raise PickleError(f"missing storage {printable(key)}")
        begin, held = records[f"{folder}/data/{key}"]
        size = numel * dtype.itemsize
        if not 0 <= size <= held:
            raise PickleError(f"storage {printable(key)} claims {size} bytes and has {held}")
        content = numbers[begin : begin + size]
        # torch.save aligns storages to 64 bytes; other programs that write archives do not.
        content = content if begin % 16 == 0 else content.clone()
        return storages.setdefault(key, _Storage(key, dtype, numel, content))

    return _interpret(file[begin : begin + size], storage)


def _records(file: _Mapped) -> dict[str, tuple[int, int]]:
    """Where the records of an archive begin, and their sizes, in the directory's order. Raises PickleError, and what zipfile raises."""
    if not file[-_END_BYTES:].startswith(_END):
        raise PickleError("it does not end with the directory of a zip archive")
    with zipfile.ZipFile(cast(BinaryIO, file)) as archive:
        entries, end = archive.infolist(), archive.start_dir
    if len({entry.filename.lower() for entry in entries}) < len(entries):
        raise PickleError("the archive has two records with the same name")
    results: dict[str, tuple[int, int]] = {}
    before = 0
    for entry in entries:
        name, at = printable(entry.filename), entry.header_offset
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size or entry.flag_bits & 1:
            raise PickleError(f"the record {name} is compressed or encrypted, which torch.save does not do")
        if not 0 <= at - before <= (_DESCRIPTOR_BYTES if results else 0) or at + _LOCAL_HEADER.size > end:
            raise PickleError(f"the record {name} does not follow the one before it; it may be part of another archive")
        signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(file, at)
        begin = at + _LOCAL_HEADER.size + name_bytes + extra_bytes
        before = begin + entry.file_size
        if signature != _LOCAL or before > end:
            raise PickleError(f"the record {name} has no header, or ends behind the file")
        results[entry.filename] = (begin, entry.file_size)
    return results


def _interpret(pickle: bytes, storage: Callable[[str, torch.dtype, int], _Storage]) -> object:
    """What a pickle describes; `storage` gives the storage of a key, type and number of elements.

    Raises:
        PickleError: something that torch.save does not write for dense tensors.
        ValueError: the pickle ends too early.
    """
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stack below each mark
    memo: dict[int, Any] = {}
    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(pickle)):
        if count >= _MOST_OPCODES:
            raise PickleError(f"a pickle of more than {_MOST_OPCODES:,} opcodes")
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
                    stack.append(list)  # weights are in no list: its items are left out
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
                    _set_items(*operands)
                    stack.append(operands[0])
                case "GLOBAL":
                    stack.append(_global(argument.replace(" ", ".")))
                case "BINPERSID":
                    stack.append(_stored(operands[0], storage))
                case "REDUCE":
                    stack.append(_call(*operands))
                case "BUILD":
                    # The attribute _metadata of a state dict, which is left out. A tensor's state could be another storage.
                    if not all(isinstance(each, dict) for each in operands):
                        raise PickleError(f"sets attributes of {_kind(operands[0])}")
                    stack.append(operands[0])
                case "STOP":
                    return operands[0]
                case name:
                    raise PickleError(f"opcode {name}, which is not used in files of weights")
        except LookupError:
            raise PickleError("the pickle pops from an empty stack") from None
    raise PickleError("the pickle does not end")


def _set_items(container: object, *items: Any) -> None:
    """Add keys and values to a dictionary. Raises PickleError: a duplicate key; one that is no string, since numbers can be chosen to hash
    alike, and the hash of nested tuples may take exponential time."""
    if not isinstance(container, dict) or len(items) % 2:
        raise PickleError(f"sets items of {_kind(container)}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str):
            raise PickleError(f"a key that is {_kind(key)}")
        if key in container:
            raise PickleError(f"{printable(key)} is a duplicate key")
        container[key] = value


def _global(name: str) -> _Global:
    if name not in (_DICTIONARY, _PARAMETER, *_TENSORS) and name not in _STORAGES and name not in _DTYPES:
        raise PickleError(
            f"Unsupported global: {printable(name)} is not a function that makes dense tensors, and is not called"
        )
    return _Global(name)


def _stored(described: object, storage: Callable[[str, torch.dtype, int], _Storage]) -> _Storage:
    """What is stored as ("storage", its type, its key, its device, its number of elements). Raises PickleError."""
    match described:
        case ("storage", _Global(name), str(key), str(), int(numel)) if name in _STORAGES:
            return storage(key, _STORAGES[name], numel)
    raise PickleError("a storage that is not described as by torch.save")


def _call(function: object, arguments: object) -> object:
    """What a function of torch.save makes of its arguments. Raises PickleError."""
    match function, arguments:
        case _Global(name), () if name == _DICTIONARY:
            return {}
        case _Global(name), (Tensor() as data, *_) if name == _PARAMETER:
            return data
        case _Global(name), (_Storage() as stored, int(offset), tuple(shape), tuple(strides), *others) if (
            name in _TENSORS
        ):
            # The others: requires_grad, hooks, in _rebuild_tensor_v3 the dtype, and which operations are still to be done.
            dtype, lazy = stored.dtype, others[2:]
            match lazy:
                case [_Global(of), *rest] if name.endswith("_v3") and of in _DTYPES:
                    dtype, lazy = _DTYPES[of], rest
            if lazy not in ([], [{}]):
                raise PickleError(
                    "a lazy conjugate or negative; call resolve_conj() and resolve_neg() before it is saved"
                )
            return _view(stored, dtype, offset, shape, strides)
        case _Global(name), _ if name not in _STORAGES and name not in _DTYPES:
            raise PickleError("a tensor that is not described as by torch.save")
    raise PickleError(f"calls {_kind(function)}")


def _view(
    stored: _Storage, dtype: torch.dtype, offset: int, shape: tuple[Any, ...], strides: tuple[Any, ...]
) -> Tensor:
    """A tensor that lies within its storage. Raises PickleError."""
    is_shape = len(shape) == len(strides) <= _MOST_DIMENSIONS
    is_shape = is_shape and all(type(n) is int and 0 <= n < 2**63 for n in (offset, *shape, *strides))
    if not is_shape or math.prod(shape) >= 2**63:
        raise PickleError("a tensor with an invalid shape or strides")
    steps = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
    needed = offset + (0 if 0 in shape else steps)
    numel = stored.content.nbytes() // dtype.itemsize
    if needed > numel:
        raise PickleError(f"a tensor needs {needed} elements of storage {printable(stored.key)}, which has {numel}")
    return torch.empty(0, dtype=dtype).set_(stored.content, offset, shape, strides)


def _kind(value: object) -> str:
    if isinstance(value, _Global):
        return printable(value.name)
    if isinstance(value, _Storage):
        return "storage"
    return value.__name__ if isinstance(value, type) else type(value).__name__
