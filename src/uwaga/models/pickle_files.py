"""One file of torch.save that holds weights by name: the zip archive of today, and the row of pickles of old versions.

torch.load(weights_only=True) runs nothing either, but it believes what a file says of its sizes, unpacks what is compressed,
and hashes whatever is a key. So the pickle is read here, by a machine that knows the opcodes which torch.save writes, makes
no object but plain ones and descriptions of tensors, and allows strings alone as keys. No tensor is made before its storage
was found in the file, and then it is mapped and not read.

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

# Opcodes of a pickle at most: a weight takes about 40.
_MOST_STEPS = 500_000
# The first two of the pickles that an old file begins with.
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_ZIP = b"PK"
_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128, "ComplexFloatStorage": torch.complex64,
}  # fmt: skip


class PickleError(ValueError):
    """A file that is not one of torch.save, or holds what is no weight; the message does not name the file."""


class _Global(NamedTuple):
    """A name that a pickle asks for; nothing is imported."""

    name: str


class _IntegerKey(NamedTuple):
    """A key of a dictionary that is an integer."""

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
        """In bytes, where each element is written out."""
        return math.prod(self.shape) * self.storage.dtype.itemsize

    @property
    def stop(self) -> int:
        """The first element of the storage behind all of the view."""
        if 0 in self.shape:
            return self.offset
        return self.offset + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)) + 1


@dataclass(frozen=True)
class _Other:
    """Something that is no weight: a sparse or quantised tensor, or an object with attributes."""

    kind: str


@dataclass(frozen=True, kw_only=True)
class _Extent:
    """Where in the file a storage's bytes are."""

    start: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What a file holds.

    Attributes:
        held: what is there, a dictionary where all is well: descriptions of dense tensors, and other things.
        kind: of that, in a word.
        read: one of the tensors; it shares memory with the file.
    """

    held: object
    kind: str
    read: Callable[[str], Tensor]


def read(path: Path) -> Opened:
    """What a file holds. Raises PickleError, OSError."""
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
        # An old file has its storages anywhere; a processor may not read what does not lie on a multiple of its size.
        storage = storage if begin % described.storage.dtype.itemsize == 0 else storage.clone()
        flat = storage.view(described.storage.dtype)
        return flat.as_strided(described.shape, described.strides, described.offset)

    return Opened(held=found, kind=_kind(found), read=tensor)


def _check(described: Described, extents: Mapping[str, _Extent]) -> None:
    storage = described.storage
    extent = extents.get(storage.key)
    if extent is None:
        raise PickleError(f"there is no storage {printable(storage.key)}")
    claimed = storage.numel * storage.dtype.itemsize
    if claimed > extent.size:
        raise PickleError(f"storage {printable(storage.key)} claims {claimed} bytes and has {extent.size}")
    if described.stop > storage.numel:
        raise PickleError(
            f"a tensor of {described.stop} elements of storage {printable(storage.key)}, which has {storage.numel}"
        )


# The zip archive


class _Bounded:
    """A file whose reads are bounded, so that no directory of an archive is believed in how long it is."""

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
            raise PickleError("the archive has two records of one name")
        top = next((name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")), None)
        if top is None:
            raise PickleError("the archive has no data.pkl")
        extents = {name.removeprefix(top): _extent(file, entry) for name, entry in entries.items()}
    order = extents.get("byteorder")
    if order is not None and _bytes(file, order) != sys.byteorder.encode():
        raise PickleError(f"its byte order is not {sys.byteorder}")
    machine = _Machine(_bytes(file, extents["data.pkl"]))
    found = machine.run()
    return found, {name.removeprefix("data/"): each for name, each in extents.items() if name.startswith("data/")}


def _extent(file: BinaryIO, entry: zipfile.ZipInfo) -> _Extent:
    """Where a record's bytes are: behind its own header, whose name may be padded so that they lie on a multiple of 64."""
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
        raise PickleError(f"the record {printable(entry.filename)} ends behind the file")
    return extent


def _bytes(file: BinaryIO, extent: _Extent) -> bytes:
    if extent.size > untrusted.JSON_BYTES:
        raise PickleError(f"a pickle of {extent.size} bytes is longer than {untrusted.JSON_BYTES}")
    file.seek(extent.start)
    return file.read(extent.size)


# The row of pickles


def _read_old(file: BinaryIO) -> tuple[object, dict[str, _Extent]]:
    """Magic number, protocol, sizes of C's types, the object, the keys of its storages; then each storage: how many
    elements, in 8 bytes, and the elements."""
    machine = _Machine(file.read(untrusted.JSON_BYTES))
    if machine.run() != _MAGIC or machine.run() != _PROTOCOL:
        raise PickleError("it does not begin as files of torch.save do")
    sizes = machine.run()
    if not isinstance(sizes, dict) or sizes.get("little_endian") is not True or sys.byteorder != "little":
        raise PickleError("its byte order is not little")
    found, keys = machine.run(), machine.run()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise PickleError("it does not list its storages")
    extents, place, end = {}, machine.place, file.seek(0, 2)
    for key in keys:
        file.seek(place)
        (count,) = struct.unpack("<q", file.read(8))
        storage = machine.storages.get(key)
        if storage is None or not 0 <= count * storage.dtype.itemsize <= end - place - 8:
            raise PickleError(f"storage {printable(key)} claims {count} elements, which are not there")
        extents[key] = _Extent(start=place + 8, size=count * storage.dtype.itemsize)
        place += 8 + extents[key].size
    return found, extents


# The pickle


@dataclass
class _Machine:
    """Runs pickles of protocol 2, one after the other.

    Attributes:
        place: of the next byte.
        storages: those that were named, by their keys.
    """

    data: bytes
    place: int = 0
    storages: dict[str, _Storage] = field(default_factory=dict)
    _steps: int = 0

    def run(self) -> object:
        """The next pickle's object. Raises PickleError."""
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        while (code := self._take(1)) != pickle.STOP:
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise PickleError(f"a pickle of more than {_MOST_STEPS:,} steps")
            step = _STEPS.get(code)
            if step is None:
                raise PickleError(f"opcode 0x{code[0]:02x}, which files of weights do not have")
            step(self)
        return self._pop()

    def _take(self, size: int) -> bytes:
        found = self.data[self.place : self.place + size]
        if len(found) < size:
            raise PickleError("the pickle ends too early")
        self.place += size
        return found

    def _number(self, form: str) -> int:
        return cast(int, struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _push(self, value: object) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise PickleError("the pickle takes what it has not put")
        return self._stack.pop()

    def _since_mark(self) -> list[Any]:
        if not self._marks:
            raise PickleError("the pickle takes what it has not put")
        start = self._marks.pop()
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def _tuple(self, size: int) -> None:
        self._push(tuple(reversed([self._pop() for _ in range(size)])))

    def _line(self) -> str:
        end = self.data.find(b"\n", self.place, self.place + 200)
        if end < 0:
            raise PickleError("a name without an end")
        return self._take(end + 1 - self.place)[:-1].decode("ascii")

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
            raise PickleError("the pickle takes what it has not put")
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
            # Strings alone: the hash of a tuple of tuples takes time without end, and integers can be chosen to have one hash.
            name = _IntegerKey(hex(key)) if type(key) is int else key
            if type(name) is not str and type(name) is not _IntegerKey:
                raise PickleError(f"a key that is {_kind(key)}")
            if name in target:
                raise PickleError(f"{printable(str(key))} is a duplicate key")
            target[name] = value
        self._push(target)

    def _persistent(self) -> None:
        """("storage", its type, its key, its device, how many elements it has), and in old files whose view it is."""
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
                raise PickleError("a storage that is not described as torch.save does")

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise PickleError(f"calls {_kind(function)}")
        self._push(_made(function.name, arguments))

    def _build(self) -> None:
        """The attributes of an object: `_metadata` of a state dictionary, which nobody reads."""
        self._pop()
        target = self._pop()
        self._push(target if isinstance(target, dict | _Other) else _Other(_kind(target)))


def _made(name: str, arguments: tuple[Any, ...]) -> object:
    """What a call gives. Raises PickleError: a function that makes no data."""
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
                raise PickleError("a tensor whose shape and strides are no sizes")
            if math.prod(shape) >= 2**60:
                raise PickleError("a tensor whose shape and strides are no sizes")
            return Described(storage, offset, shape, strides)
        case "torch._utils._rebuild_parameter", (Described() as described, *_):
            return described
    if name in _NO_WEIGHTS:
        return _Other(name)
    raise PickleError(f"Unsupported global: {printable(name)} makes no weight, and nothing else is called")


# Functions of PyTorch that make tensors of other kinds, and parts of their arguments.
_NO_WEIGHTS = {
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


_Step = Callable[[_Machine], object]
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
    pickle.LONG1: _Machine._long,
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
    pickle.BINPERSID: _Machine._persistent,
    pickle.GLOBAL: _Machine._global,
    pickle.REDUCE: _Machine._reduce,
    pickle.BUILD: _Machine._build,
}
