"""Reading weights from a file of torch.save, by torch.load(weights_only=True).

That runs no code of the file, but it trusts it in other ways: it unpacks compressed records, hashes keys of any type, calls
bytearray(n) and Tensor(n), and reads a storage that is larger than its record on into the next one. So the archive's directory and
the opcodes of the pickle are checked first, without running them; what is left is what torch.save writes for dense tensors.

The formats: PyTorch's `torch/serialization.py`, and Python's `pickletools`.
"""

import io
import math
import pickletools
import zipfile
from enum import Enum
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
# The first two pickles of a file from before PyTorch 1.6: pickles one after another, then the bytes of the storages.
_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_ZIP = b"PK"
_OPCODES = {
    "PROTO", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT", "BININT",
    "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "MARK", "TUPLE",
    "TUPLE1", "TUPLE2", "TUPLE3", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "APPEND", "APPENDS",
    "SETITEM", "SETITEMS", "BINPERSID", "GLOBAL", "REDUCE", "BUILD", "STOP",
}  # fmt: skip
# Bytes of an element, by the names of storages.
_STORAGES = {
    f"torch.{name}Storage": size
    for size, names in {
        1: ("Char", "Byte", "Bool"), 2: ("Half", "BFloat16", "Short"), 4: ("Float", "Int"),
        8: ("Double", "Long", "ComplexFloat"), 16: ("ComplexDouble",),
    }.items()
    for name in names
}  # fmt: skip
_DICTIONARY = "collections.OrderedDict"
_TENSORS = {f"torch._utils.{name}" for name in ("_rebuild_tensor_v2", "_rebuild_tensor", "_rebuild_parameter")}


class PickleError(ValueError):
    """The file is not one of torch.save, or has unsupported content; the message does not name the file."""


class _Global(NamedTuple):
    """A global name in a pickle; it is not imported."""

    name: str


class _Storage(NamedTuple):
    key: str
    numel: int
    itemsize: int


class _Kind(Enum):
    """What an opcode makes, where it is not a string, a number or a tuple of these."""

    MARK = "mark"
    TENSOR = "Tensor"
    TUPLE = "tuple"
    LIST = "list"


class _Dictionary(set[str]):
    """The keys of a dictionary that a pickle makes."""


def read(path: Path) -> dict[str, Tensor]:
    """The dense tensors of a file by name; they share memory with it. Raises CheckpointError."""
    try:
        with untrusted.open_regular(path) as file:
            is_zip = file.read(2) == _ZIP
            file.seek(0)
            if is_zip:
                _check_archive(file)
            else:
                _check_old(file, path.stat().st_size)
        loaded = torch.load(path, weights_only=True, mmap=is_zip, map_location="cpu")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except PickleError as error:
        raise CheckpointError(f"{path} cannot be read with weights_only: {error}") from error
    # torch.load raises errors of every kind for a file that contradicts itself.
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read with weights_only: {printable(str(error))}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path} must contain a dictionary of weights by name, not {type(loaded).__name__}")
    strange = [name for name, x in loaded.items() if not isinstance(x, Tensor) or x.dim() > _MOST_DIMENSIONS]
    if strange:
        raise CheckpointError(
            f"{path} contains values that are not dense tensors: {', '.join(printable(name) for name in strange)}"
        )
    return {name: x.detach() for name, x in loaded.items()}


class _Bounded:
    """A file with a bound on each read: zipfile reads the archive's directory at the size that the file declares."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        most = untrusted.JSON_BYTES
        content = self._file.read(size if 0 <= size <= most else most + 1)
        if len(content) > most:
            raise PickleError(f"a directory or pickle of more than {most} bytes")
        return content

    def seekable(self) -> bool:
        return True


def _check_archive(file: BinaryIO) -> None:
    """The records of a zip archive, and its pickle. Raises PickleError, and what zipfile raises."""
    with zipfile.ZipFile(cast(BinaryIO, _Bounded(file))) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise PickleError("the archive has two records with the same name")
        top = next((name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")), None)
        if top is None:
            raise PickleError("the archive has no data.pkl")
        for name, entry in entries.items():
            is_stored = entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size
            if not is_stored or entry.flag_bits & 1:
                raise PickleError(
                    f"the record {printable(name)} is compressed or encrypted, which torch.save does not do"
                )
            # torch.load reads all records but those of numbers whole.
            if not name.startswith(f"{top}data/") and entry.file_size > untrusted.JSON_BYTES:
                raise PickleError(f"the record {printable(name)} has more than {untrusted.JSON_BYTES} bytes")
        storages = _check_pickle(io.BytesIO(archive.read(f"{top}data.pkl")))
    for key, size in storages.items():
        record = entries.get(f"{top}data/{key}")
        if record is None:
            raise PickleError(f"missing storage {printable(key)}")
        if size > record.file_size:
            raise PickleError(f"storage {printable(key)} claims {size} bytes and has {record.file_size}")


def _check_old(file: BinaryIO, size: int) -> None:
    """The pickles of a file of so many bytes from before PyTorch 1.6: magic number, protocol, sizes of C types, the object, the keys of
    its storages. Raises PickleError."""
    beginning = io.BytesIO(file.read(untrusted.JSON_BYTES))
    if beginning.read(len(_MAGIC)) != _MAGIC:
        raise PickleError("it does not have the magic number of torch.save")
    for _ in range(4):
        for key, claimed in _check_pickle(beginning).items():
            if claimed > size:
                raise PickleError(f"storage {printable(key)} claims {claimed} bytes, more than the file has")


def _check_pickle(file: BinaryIO) -> dict[str, int]:
    """Walk the opcodes of the next pickle of a file as torch.load will, with the kinds of the values on its stack.

    Returns:
        the size in bytes of each storage by its key.

    Raises:
        PickleError: something that torch.save does not write for dense tensors.
        ValueError: the pickle ends too early.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    storages: dict[str, int] = {}
    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        name = opcode.name
        if count >= _MOST_OPCODES:
            raise PickleError(f"a pickle of more than {_MOST_OPCODES:,} opcodes")
        if name not in _OPCODES or (name == "PROTO" and argument != 2):
            raise PickleError(f"opcode {name}, which is not used in files of weights")
        operands = _pop(stack, opcode) if opcode.stack_before else []
        match name:
            case "BINPUT" | "LONG_BINPUT":
                (memo[argument],) = stack[-1:] or [_Kind.MARK]
            case "BINGET" | "LONG_BINGET":
                stack.append(_again(memo.get(argument, _Kind.MARK)))
            case "MARK":
                stack.append(_Kind.MARK)
            case "GLOBAL":
                stack.append(_global(argument.replace(" ", ".")))
            case "NEWTRUE" | "NEWFALSE":
                stack.append(name == "NEWTRUE")
            case "EMPTY_TUPLE" | "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(operands) if all(map(_is_plain, operands)) else _Kind.TUPLE)
            case "EMPTY_LIST" | "APPEND" | "APPENDS":
                stack.append(_Kind.LIST)
            case "EMPTY_DICT":
                stack.append(_Dictionary())
            case "SETITEM" | "SETITEMS":
                _add_keys(operands[0], operands[1::2])
                stack.append(operands[0])
            case "BINPERSID":
                stored = _storage(operands[0])
                size = stored.numel * stored.itemsize
                if storages.setdefault(stored.key, size) != size:
                    raise PickleError(f"storage {printable(stored.key)} has two sizes")
                stack.append(stored)
            case "REDUCE":
                if not isinstance(operands[0], _Global) or operands[0].name in _STORAGES:
                    raise PickleError(f"calls {_kind(operands[0])}")
                if operands[0].name in _TENSORS:
                    _check_view(operands[0].name, operands[1])
                    stack.append(_Kind.TENSOR)
                else:
                    stack.append(_Dictionary())
            case "BUILD":
                # The attribute _metadata of a state dict; a tensor's state could be another storage.
                if not all(isinstance(each, _Dictionary) for each in operands):
                    raise PickleError(f"sets attributes of {_kind(operands[0])}")
                stack.append(operands[0])
            case _:
                stack += [argument] * len(opcode.stack_after)
    return storages


def _pop(stack: list[Any], opcode: pickletools.OpcodeInfo) -> list[Any]:
    """Take what an opcode takes from the stack: without its mark, from bottom to top."""
    before, items = opcode.stack_before, []
    if pickletools.markobject in before:
        start = next((n for n in reversed(range(len(stack))) if stack[n] is _Kind.MARK), 0)
        items = stack[start + 1 :]
        del stack[start + 1 :]
        before = before[:-1]
    start = len(stack) - len(before)
    if start < 0:
        raise PickleError("the pickle pops from an empty stack")
    operands = stack[start:] + items
    del stack[start:]
    if operands.count(_Kind.MARK) != opcode.stack_before.count(pickletools.markobject):
        raise PickleError("the pickle pops from an empty stack")
    return [each for each in operands if each is not _Kind.MARK]


def _add_keys(dictionary: object, keys: list[Any]) -> None:
    """Note the keys that are set. Raises PickleError: two of one name; one that is no string: integers can be chosen to hash alike."""
    if not isinstance(dictionary, _Dictionary):
        raise PickleError(f"sets items of {_kind(dictionary)}")
    for key in keys:
        if not isinstance(key, str):
            raise PickleError(f"a key that is {_kind(key)}")
        if key in dictionary:
            raise PickleError(f"{printable(key)} is a duplicate key")
        dictionary.add(key)


def _again(value: object) -> object:
    """A value that the pickle refers to another time. Raises PickleError: a container, since containers in containers, each of them
    twice, take exponential time to be hashed or printed."""
    if not isinstance(value, str | _Global) and value is not _Kind.TENSOR:
        raise PickleError(f"refers again to a value that is {_kind(value)}")
    return value


def _global(name: str) -> _Global:
    if name not in _TENSORS and name not in _STORAGES and name != _DICTIONARY:
        raise PickleError(
            f"Unsupported global: {printable(name)} is not a function that makes dense tensors, and is not called"
        )
    return _Global(name)


def _storage(described: object) -> _Storage:
    """What is stored as ("storage", its type, its key, its device, its number of elements), and in old files a view, which must be
    None."""
    match described:
        case ("storage", _Global(name), str(key), str(), int(numel), *view) if view in ([], [None]):
            if name in _STORAGES:
                return _Storage(key, numel, _STORAGES[name])
    raise PickleError("a storage that is not described as by torch.save")


def _check_view(function: str, arguments: object) -> None:
    """That a tensor is a view of its storage: PyTorch would enlarge the storage of an old file. Raises PickleError."""
    match arguments:
        case (_Storage() as stored, int(offset), tuple(shape), tuple(strides), *_):
            is_shape = len(shape) == len(strides) <= _MOST_DIMENSIONS and min((offset, *shape, *strides)) >= 0
            if not is_shape or math.prod(shape) >= 2**63:
                raise PickleError("a tensor with an invalid shape or strides")
            needed = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
            if 0 not in shape and needed > stored.numel:
                raise PickleError(
                    f"a tensor needs {needed} elements of storage {printable(stored.key)}, which has {stored.numel}"
                )
        case (_Kind.TENSOR, *_) if function.endswith("_rebuild_parameter"):
            pass
        case _:
            raise PickleError("a tensor that is not described as by torch.save")


def _is_plain(value: object) -> bool:
    """Whether a tuple keeps this value: what describes a storage or a tensor."""
    if isinstance(value, tuple) and not isinstance(value, _Global | _Storage):
        return all(isinstance(each, int) for each in value)
    return isinstance(value, str | int | _Global | _Storage | _Dictionary | None) or value is _Kind.TENSOR


def _kind(value: object) -> str:
    match value:
        case _Global(name):
            return printable(name)
        case _Kind():
            return str(value.value)
        case _Dictionary():
            return "dict"
    return type(value).__name__
