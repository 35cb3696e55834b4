"""Reading weights from a file of torch.save: the zip archive of current versions, and the sequence of pickles of old ones.

torch.load(weights_only=True) runs no code of the file either, but it trusts the sizes that the file declares, decompresses
records, and hashes keys of any type. So this module interprets the pickle itself: it supports only the opcodes that torch.save
writes, makes only plain objects and descriptions of tensors, and allows only strings as keys (integers become strings). A tensor
is made after its storage has been found in the file, which is memory-mapped.

The formats: PyTorch's `torch/serialization.py`, and Python's `pickletools`.
"""

import math
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from uwaga._base import untrusted
from uwaga._base.terminal import printable

# The greatest number of opcodes of a pickle: a weight has about 40.
_MOST_STEPS = 500_000
# The first two pickles of an old file.
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_ZIP = b"PK"
_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128, "ComplexFloatStorage": torch.complex64,
}  # fmt: skip


class PickleError(ValueError):
    """The file is not one of torch.save, or has unsupported content; the message does not name the file."""


class _Global(NamedTuple):
    """A global name in a pickle; it is not imported."""

    name: str


class _IntegerKey(NamedTuple):
    """A dictionary key that is an integer in the file."""

    digits: str


class _Storage(NamedTuple):
    key: str
    dtype: torch.dtype
    numel: int


class Described(NamedTuple):
    """A tensor as the pickle describes it: a view of a storage."""

    storage: _Storage
    offset: int  # in elements, as the strides
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        """The size in bytes as a contiguous tensor."""
        return math.prod(self.shape) * self.storage.dtype.itemsize

    @property
    def stop(self) -> int:
        """One more than the index of the view's last element in the storage."""
        if 0 in self.shape:
            return self.offset
        return self.offset + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)) + 1


@dataclass(frozen=True)
class _Other:
    """A value that is not a dense tensor: a sparse or quantised tensor, or an object with attributes."""

    kind: str


@dataclass(frozen=True, kw_only=True)
class _Extent:
    """The byte range of a record or storage in the file."""

    start: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The content of a file.

    Attributes:
        held: the unpickled object, a dictionary in valid files; its values are descriptions of dense tensors, or others.
        kind: the name of its type.
        read: gives the tensor of a name; it shares memory with the file.
    """

    held: object
    kind: str
    read: Callable[[str], Tensor]


def read(path: Path) -> Opened:
    """Read a file. Raises PickleError, OSError."""
    with untrusted.open_regular(path) as file:
        is_zip = file.read(2) == _ZIP
        file.seek(0)
        try:
            found, extents = _read_zip(file) if is_zip else _read_old(file)
        except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error) as error:
            raise PickleError(str(error)) from error
        bytes_of_file = np.memmap(file, np.uint8, mode="c") if file.seek(0, 2) else np.empty(0, np.uint8)
    held: dict[str, Any] = found if isinstance(found, dict) else {}
    for described in held.values():
        if isinstance(described, Described):
            _check(described, extents)

    def tensor(name: str) -> Tensor:
        described = cast(Described, held[name])
        extent = extents[described.storage.key]
        begin = extent.start
        count = described.storage.numel * described.storage.dtype.itemsize
        storage = torch.from_numpy(bytes_of_file[begin : begin + count])
        # Storages of old files are not aligned, and PyTorch requires aligned data: copied then.
        storage = storage if begin % described.storage.dtype.itemsize == 0 else storage.clone()
        flat = storage.view(described.storage.dtype)
        return flat.as_strided(described.shape, described.strides, described.offset)

    return Opened(held=found, kind=_kind(found), read=tensor)


def _check(described: Described, extents: Mapping[str, _Extent]) -> None:
    storage = described.storage
    extent = extents.get(storage.key)
    if extent is None:
        raise PickleError(f"missing storage {printable(storage.key)}")
    claimed = storage.numel * storage.dtype.itemsize
    if claimed > extent.size:
        raise PickleError(f"storage {printable(storage.key)} claims {claimed} bytes and has {extent.size}")
    if described.stop > storage.numel:
        raise PickleError(
            f"a tensor needs {described.stop} elements of storage {printable(storage.key)}, which has {storage.numel}"
        )


# The zip archive


class _Bounded:
    """A file with a bound on each read: zipfile reads the archive's directory at the size that the file declares."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        most = untrusted.JSON_BYTES
        found = self._file.read(size if 0 <= size <= most else most + 1)
        if len(found) > most:
            raise PickleError(f"a directory of more than {most} bytes")
        return found

    def seekable(self) -> bool:
        return True


def _read_zip(file: BinaryIO) -> tuple[object, dict[str, _Extent]]:
    with zipfile.ZipFile(cast(BinaryIO, _Bounded(file))) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise PickleError("the archive has two records with the same name")
        top = next((name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")), None)
        if top is None:
            raise PickleError("the archive has no data.pkl")
        extents = {name.removeprefix(top): _extent(file, entry) for name, entry in entries.items()}
    order = extents.get("byteorder")
    if order is not None and _bytes(file, order) != sys.byteorder.encode():
        raise PickleError(f"its byte order is not {sys.byteorder}")
    interpreter = _Interpreter(_bytes(file, extents["data.pkl"]))
    found = interpreter.run()
    return found, {name.removeprefix("data/"): each for name, each in extents.items() if name.startswith("data/")}


def _extent(file: BinaryIO, entry: zipfile.ZipInfo) -> _Extent:
    """The byte range of a record: after its local header, whose extra field pads it to a multiple of 64."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size or entry.flag_bits & 1:
        raise PickleError(
            f"the record {printable(entry.filename)} is compressed or encrypted, which torch.save does not do"
        )
    file.seek(entry.header_offset)
    header = file.read(30)
    if header[:4] != b"PK\3\4" or len(header) < 30:
        raise PickleError(f"the record {printable(entry.filename)} has no header")
    name, extra = struct.unpack("<HH", header[26:30])
    extent = _Extent(start=entry.header_offset + 30 + name + extra, size=entry.file_size)
    if extent.start + extent.size > file.seek(0, 2):
        raise PickleError(f"the record {printable(entry.filename)} ends after the end of the file")
    return extent


def _bytes(file: BinaryIO, extent: _Extent) -> bytes:
    if extent.size > untrusted.JSON_BYTES:
        raise PickleError(f"a pickle of {extent.size} bytes is longer than {untrusted.JSON_BYTES}")
    file.seek(extent.start)
    return file.read(extent.size)


# The sequence of pickles


def _read_old(file: BinaryIO) -> tuple[object, dict[str, _Extent]]:
    """Pickles: magic number, protocol, sizes of C types, the object, the keys of its storages. Then for each storage the
    number of elements, in 8 bytes, and the elements."""
    interpreter = _Interpreter(file.read(untrusted.JSON_BYTES))
    if interpreter.run() != _MAGIC or interpreter.run() != _PROTOCOL:
        raise PickleError("it does not have the magic number and the protocol of torch.save")
    sizes = interpreter.run()
    if not isinstance(sizes, dict) or sizes.get("little_endian") is not True or sys.byteorder != "little":
        raise PickleError("its byte order is not little")
    found, keys = interpreter.run(), interpreter.run()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise PickleError("it has no list of storages")
    extents, place, end = {}, interpreter.position, file.seek(0, 2)
    for key in keys:
        file.seek(place)
        (count,) = struct.unpack("<q", file.read(8))
        storage = interpreter.storages.get(key)
        if storage is None or not 0 <= count * storage.dtype.itemsize <= end - place - 8:
            raise PickleError(f"storage {printable(key)} claims {count} elements, more than the file has")
        extents[key] = _Extent(start=place + 8, size=count * storage.dtype.itemsize)
        place += 8 + extents[key].size
    return found, extents


# The pickle


@dataclass
class _Interpreter:
    """Interprets pickles of protocol 2, one after another.

    Attributes:
        position: of the next byte.
        storages: those that the pickles refer to, by key.
    """

    data: bytes
    position: int = 0
    storages: dict[str, _Storage] = field(default_factory=dict)
    _steps: int = 0

    def run(self) -> object:
        """The object of the next pickle. Raises PickleError."""
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        while (code := self._take(1)) != pickle.STOP:
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise PickleError(f"a pickle of more than {_MOST_STEPS:,} steps")
            step = _STEPS.get(code)
            if step is None:
                raise PickleError(f"opcode 0x{code[0]:02x}, which is not used in files of weights")
            step(self)
        return self._pop()

    def _take(self, size: int) -> bytes:
        found = self.data[self.position : self.position + size]
        if len(found) < size:
            raise PickleError("the pickle ends too early")
        self.position += size
        return found

    def _number(self, form: str) -> int:
        return cast(int, struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _push(self, value: object) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise PickleError("the pickle pops from an empty stack or reads an unset memo")
        return self._stack.pop()

    def _since_mark(self) -> list[Any]:
        if not self._marks:
            raise PickleError("the pickle pops from an empty stack or reads an unset memo")
        start = self._marks.pop()
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def _tuple(self, size: int) -> None:
        self._push(tuple(reversed([self._pop() for _ in range(size)])))

    def _line(self) -> str:
        end = self.data.find(b"\n", self.position, self.position + 200)
        if end < 0:
            raise PickleError("a name without a line end")
        return self._take(end + 1 - self.position)[:-1].decode("ascii")

    def _global(self) -> None:
        self._push(_Global(f"{self._line()}.{self._line()}"))

    def _long(self) -> None:
        self._push(pickle.decode_long(self._take(self._number("<B"))))

    def _put(self, number: int) -> None:
        value = self._pop()
        self._memo[number] = value
        self._push(value)

    def _get(self, number: int) -> None:
        if number not in self._memo:
            raise PickleError("the pickle pops from an empty stack or reads an unset memo")
        self._push(self._memo[number])

    def _append(self, items: list[Any]) -> None:
        target = self._pop()
        if not isinstance(target, list):
            raise PickleError(f"appends to {_kind(target)}")
        target += items
        self._push(target)

    def _set(self, items: list[Any]) -> None:
        target = self._pop()
        if not isinstance(target, dict) or len(items) % 2:
            raise PickleError(f"sets items of {_kind(target)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Only strings: hashing nested tuples can take exponential time, and integers can be chosen to collide.
            name = _IntegerKey(hex(key)) if type(key) is int else key
            if type(name) is not str and type(name) is not _IntegerKey:
                raise PickleError(f"a key that is {_kind(key)}")
            if name in target:
                raise PickleError(f"{printable(str(key))} is a duplicate key")
            target[name] = value
        self._push(target)

    def _persistent(self) -> None:
        """("storage", its type, its key, its device, its number of elements), and in old files a view, which must be None."""
        match self._pop():
            case ("storage", _Global(name), str(key), str(), int(numel), *view) if view in ([], [None]):
                dtype = _STORAGES.get(name.removeprefix("torch."))
                if dtype is None:
                    raise PickleError(f"a storage of type {printable(name)}")
                if not 0 <= numel < 2**60:
                    raise PickleError(f"storage {printable(key)} claims {printable(str(numel))} elements")
                self._push(self.storages.setdefault(key, _Storage(key, dtype, numel)))
                if self.storages[key] != (key, dtype, numel):
                    raise PickleError(f"storage {printable(key)} has two types or sizes")
            case _:
                raise PickleError("a storage that is not described as by torch.save")

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise PickleError(f"calls {_kind(function)}")
        self._push(_made(function.name, arguments))

    def _build(self) -> None:
        """Sets the attributes of an object: only `_metadata` of a state dict, which is not used."""
        self._pop()
        target = self._pop()
        self._push(target if isinstance(target, dict | _Other) else _Other(_kind(target)))


def _made(name: str, arguments: tuple[Any, ...]) -> object:
    """The result of a call. Raises PickleError: a function that is not supported."""
    match name, arguments:
        case "collections.OrderedDict", ():
            return {}
        case "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor", (
            _Storage() as storage, int(offset), tuple(shape), tuple(strides), *_,
        ):  # fmt: skip
            sizes = (offset, *shape, *strides)
            if (
                len(shape) != len(strides)
                or len(shape) > 64
                or not all(type(n) is int and 0 <= n < 2**60 for n in sizes)
            ):
                raise PickleError("a tensor with an invalid shape or strides")
            if math.prod(shape) >= 2**60:
                raise PickleError("a tensor with an invalid shape or strides")
            return Described(storage, offset, shape, strides)
        case "torch._utils._rebuild_parameter", (Described() as described, *_):
            return described
    if name in _NOT_DENSE:
        return _Other(name)
    raise PickleError(
        f"Unsupported global: {printable(name)} is not a function that makes dense tensors, and is not called"
    )


# Functions of PyTorch that make tensors other than dense ones, and their arguments.
_NOT_DENSE = {
    "torch.Size", "torch.device", "torch.serialization._get_layout", "torch._utils._rebuild_sparse_tensor",
    "torch._utils._rebuild_qtensor", "torch._utils._rebuild_meta_tensor_no_storage", "torch._utils._rebuild_nested_tensor",
    "torch._utils._rebuild_tensor_v3",
}  # fmt: skip


def _kind(value: object) -> str:
    match value:
        case _Global(name) | _Other(name):
            return printable(name)
        case Described():
            return "Tensor"
    return type(value).__name__


_Step = Callable[[_Interpreter], object]
_STEPS: dict[bytes, _Step] = {
    pickle.PROTO: lambda m: m._take(1),
    pickle.NONE: lambda m: m._push(None),
    pickle.NEWTRUE: lambda m: m._push(True),
    pickle.NEWFALSE: lambda m: m._push(False),
    pickle.EMPTY_TUPLE: lambda m: m._push(()),
    pickle.EMPTY_LIST: lambda m: m._push([]),
    pickle.EMPTY_DICT: lambda m: m._push({}),
    pickle.BININT: lambda m: m._push(m._number("<i")),
    pickle.BININT1: lambda m: m._push(m._number("<B")),
    pickle.BININT2: lambda m: m._push(m._number("<H")),
    pickle.LONG1: _Interpreter._long,
    pickle.BINFLOAT: lambda m: m._push(struct.unpack(">d", m._take(8))[0]),
    pickle.BINUNICODE: lambda m: m._push(m._take(m._number("<I")).decode("utf-8")),
    pickle.MARK: lambda m: m._marks.append(len(m._stack)),
    pickle.TUPLE: lambda m: m._push(tuple(m._since_mark())),
    pickle.TUPLE1: lambda m: m._tuple(1),
    pickle.TUPLE2: lambda m: m._tuple(2),
    pickle.TUPLE3: lambda m: m._tuple(3),
    pickle.BINPUT: lambda m: m._put(m._number("<B")),
    pickle.LONG_BINPUT: lambda m: m._put(m._number("<I")),
    pickle.BINGET: lambda m: m._get(m._number("<B")),
    pickle.LONG_BINGET: lambda m: m._get(m._number("<I")),
    pickle.APPEND: lambda m: m._append([m._pop()]),
    pickle.APPENDS: lambda m: m._append(m._since_mark()),
    pickle.SETITEM: lambda m: m._set(list(reversed([m._pop(), m._pop()]))),
    pickle.SETITEMS: lambda m: m._set(m._since_mark()),
    pickle.BINPERSID: _Interpreter._persistent,
    pickle.GLOBAL: _Interpreter._global,
    pickle.REDUCE: _Interpreter._reduce,
    pickle.BUILD: _Interpreter._build,
}
