"""Checkpoints made to harm. Each function of ATTACKS changes the directory of a good model, which `write_model` writes.

What an attacker may want: to run code (pickles), to read other files (names in an index), to use up memory or time
(numbers that are claimed and not backed by bytes), to have one weight checked and another one used (duplicates,
overlaps), to write to the terminal (names in messages).
"""

import atexit
import json
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import torch
from safetensors.torch import load_file, save_file
from tiny_transformer import tiny

from uwaga._base import untrusted
from uwaga.models import load, save

Spoil = Callable[[Path], object]
WEIGHTS = "model.safetensors"


@cache
def _good_model() -> Path:
    """Save a model and load it, so that later loads import nothing: some tests measure their memory."""
    folder = Path(mkdtemp(prefix="uwaga-hostile-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sizes = {"vocab_size": 20, "d_model": 8, "num_layers": 1, "num_heads": 2, "d_ff": 16, "max_position_embeddings": 10}
    save(tiny("bert", seed=0, **sizes, outputs=()), folder)
    load(folder)
    return folder


def write_model(folder: Path) -> Path:
    return shutil.copytree(_good_model(), folder)


# safetensors


def entry(begin: int, end: int, *shape: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape or [(end - begin) // 4]), "data_offsets": [begin, end]}


def headed(header: dict | bytes, data: int = 8, length: int | None = None) -> Spoil:
    """A file with this header and as many bytes of data, that claims a header of this length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)
    return lambda folder: (folder / WEIGHTS).write_bytes(content)


def giant(name: str, size: int, folder: Path, *, begin: bytes = b"") -> None:
    """A file with holes: it takes no room on the disk."""
    with (folder / name).open("wb") as file:
        file.write(begin)
        file.truncate(size)


def as_folder(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()


ONE = {"a": entry(0, 8)}
TWICE = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "a": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]}}'
# What the safetensors library refuses, in its own words.
LYING = {
    "offsets beyond the file": headed(ONE, 4),
    "overlapping weights": headed({"a": entry(0, 8), "b": entry(4, 12)}, 12),
    "a gap between weights": headed({"a": entry(0, 4), "b": entry(8, 12)}, 12),
    "a shape whose product overflows": headed({"a": entry(0, 8, 2**63, 2**63)}),
    "an unknown dtype": headed({"a": entry(0, 8, 2, dtype="F99")}),
    "metadata that is no text": headed({"__metadata__": {"a": 1}} | ONE),
}
_UNSERVED = {
    "embeddings.LayerNorm.weight": entry(0, 8, 8, dtype="F8_E4M3"),
    "embeddings.LayerNorm.bias": entry(8, 16, 16, dtype="F4"),
}
_LARGEST_HEADER = untrusted.JSON_BYTES + 1
HEADERS = {
    **{f"claimed to be {length} bytes": headed(ONE, length=length) for length in (10**6, 2**63, 2**64 - 1)},
    "longer than is read": partial(giant, WEIGHTS, _LARGEST_HEADER + 16, begin=struct.pack("<Q", _LARGEST_HEADER)),
    "not there": lambda folder: (folder / WEIGHTS).write_bytes(b""),
    "cut within its length": lambda folder: (folder / WEIGHTS).write_bytes(b"1234567"),
    "two weights of one name": headed(TWICE),  # of which the library keeps the last one in silence
    "deep nesting": headed(b'{"a":' + b"[" * 200_000),
    "no text": headed(b"\xff\xfe{}"),
    "a list": headed(b"[]"),
    "not a number": headed(b'{"a": NaN}'),
    "nothing": headed(b""),
    "a number of many digits": headed(b'{"a": ' + b"9" * 100_000 + b"}"),
    "dtypes that are no weights": headed(_UNSERVED, 16),
    "a folder in place of the file": as_folder,
}

# The index of shards


def indexed(weight_map: object, folder: Path) -> None:
    (folder.parent / "a.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _other_weights(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    weight_map = dict.fromkeys([*weights, "none"], "a.safetensors")
    save_file(weights | {"more": torch.zeros(1)}, folder / WEIGHTS)
    indexed(weight_map, folder)


def _in_two_files(folder: Path) -> None:
    (folder / "b.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    names = list(load_file(folder / WEIGHTS))
    indexed(dict.fromkeys(names, "a.safetensors") | {names[0]: "b.safetensors"}, folder)


_NOT_BESIDE = (
    "../a.safetensors", "/etc/a.safetensors", "x/../a.safetensors", "..\\a.safetensors", "C:a.safetensors", "\\\\host\\a.safetensors",
    "..", "", "a.safetensors\0", "passwd",
)  # fmt: skip
INDICES = {
    **{f"the file {name!r}": partial(indexed, {"embeddings.token_embedding.weight": name}) for name in _NOT_BESIDE},
    "a file that is not there": partial(indexed, {"a": "b.safetensors"}),
    **{f"the map {value!r}": partial(indexed, value) for value in (None, [], {"a": 7}, {"a": ["a.safetensors"]})},
    "other weights than its files": _other_weights,
    "two files with one weight": _in_two_files,
}

# Pickles


class Runs:
    """What a hostile pickle is: an object that is made by calling anything at all."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.made_by = (function, arguments)

    def __reduce__(self):
        return self.made_by


def pickled(folder: Path, content: object, *, is_plain: bool = False) -> Path:
    """The content in place of the weights; `bytes` are the file itself."""
    (folder / WEIGHTS).unlink(missing_ok=True)
    path = folder / "pytorch_model.bin"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif is_plain:
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path)
    return path


def archive(records: dict[str, bytes], folder: Path, *, compression: int = zipfile.ZIP_STORED) -> Path:
    """A zip archive with these records, in place of the weights."""
    path = pickled(folder, b"")
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in records.items():
            file.writestr(name, content)
    return path


def zipped(
    pickled_bytes: bytes, *, data: bytes = bytes(8), compression: int = zipfile.ZIP_STORED
) -> Callable[[Path], Path]:
    """A file as torch.save makes them, with this pickle and one storage."""
    records = {"data.pkl": pickled_bytes, "byteorder": b"little", "data/0": data, "version": b"3\n"}
    return partial(archive, {f"archive/{name}": content for name, content in records.items()}, compression=compression)


def tensor(storage: bytes, offset: bytes, shape: bytes, strides: bytes) -> bytes:
    """A dictionary with one weight, as opcodes."""
    view = storage + offset + shape + strides
    return b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n(" + view + b"\x89}tRs."


def storage(numel: bytes) -> bytes:
    """Storage "0" of float32."""
    text = b"".join(b"X" + struct.pack("<I", len(part)) + part for part in (b"0", b"cpu"))
    return b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + text + numel + b"tQ"


# Each tuple holds the one before it twice: its hash visits two to the power of 100 of them.
NESTED_TUPLE = b")" + b"q\0h\0\x86" * 100
# By what each of these asks for.
PICKLES = {
    "a nested tuple as a key": b"\x80\x02}" + NESTED_TUPLE + b"Ns.",
    "a number as a key": b"\x80\x02}K\1Ns.",  # many numbers may have one hash
    "a nested tuple as a storage": b"\x80\x02" + NESTED_TUPLE + b"Q.",
    "a gigabyte of zeros": b"\x80\x02cbuiltins\nbytearray\nJ\0\0\0\x40\x85R.",
    "a string that is not there": b"\x80\x02X\xff\xff\xff\x7f.",
    "steps without end": b"\x80\x02" + b"N0" * 9,
    "lists without end": b"\x80\x02" + b"]" * 500_001,
    "two weights of one name": b"\x80\x02}X\x01\x00\x00\x00aNsX\x01\x00\x00\x00aNs.",
    "a storage larger than the file": tensor(storage(b"J\0\0\0\x40"), b"K\0", b"K\1\x85", b"K\1\x85"),
    "a view behind its storage": tensor(storage(b"K\2"), b"K\1", b"K\2\x85", b"K\1\x85"),
    "a view before its storage": tensor(storage(b"K\2"), b"J\xff\xff\xff\xff", b"K\2\x85", b"K\1\x85"),
    "a shape whose product overflows": tensor(
        storage(b"K\2"), b"K\0", b"J\0\0\0\x40J\0\0\0\x40J\0\0\0\x40\x87", b"K\0K\0K\0\x87"
    ),
    "more taken than put": b"\x80\x02\x87.",
}


def one_number(number: float, top: str = "archive/") -> dict[str, bytes]:
    """The records of a file with one weight of one element."""
    pickled_bytes = tensor(storage(b"K\1"), b"K\0", b"K\1\x85", b"K\1\x85")
    return {f"{top}data.pkl": pickled_bytes, f"{top}data/0": struct.pack("<f", number)}


def changed(records: dict[str, bytes], change: Callable[[bytes], bytes], folder: Path) -> None:
    """An archive with these records, and its bytes changed."""
    path = archive(records, folder)
    path.write_bytes(change(path.read_bytes()))


def _overlapping(content: bytes) -> bytes:
    """The directory gives the record before the last twice, under two names of the same length."""
    at = content.rindex(b"PK\1\2")
    return content[: at + 42] + bytes(4) + content[at + 46 :]


def _longer(content: bytes) -> bytes:
    """The directory gives the last record more bytes than there are before the directory."""
    at = content.rindex(b"PK\1\2")
    return content[: at + 20] + struct.pack("<LL", 400, 400) + content[at + 28 :]


def _long_directory(content: bytes) -> bytes:
    at, size = content.index(b"PK\1\2"), untrusted.JSON_BYTES + 1
    return content[:at] + bytes(size) + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, size, at, 0)


_PICKLE = one_number(1)["archive/data.pkl"]
# Archives that claim more than they have, or what torch.save does not write.
ARCHIVES: dict[str, Spoil] = {
    "records that overlap": partial(changed, {"a/0": bytes(8), "a/data.pkl": _PICKLE, "a/1": bytes(8)}, _overlapping),
    "a record that ends behind the directory": partial(changed, one_number(1), _longer),
    "another byte order": partial(archive, one_number(1) | {"archive/byteorder": b"big"}),
    "a storage that is larger than its record": partial(
        archive, {**one_number(1), "archive/data/0": b"\0\0\0", "archive/data/1": bytes(4000)}
    ),
    "a pickle in a folder in the folder alone": partial(archive, one_number(1, "archive/inner/")),
    "a directory of any size": partial(changed, one_number(1), _long_directory),
    "a compressed pickle": zipped(bytes(10**8), compression=zipfile.ZIP_DEFLATED),
}


def _repeated(folder: Path) -> None:
    """A view may repeat one number a million million times."""
    weights = load_file(folder / WEIGHTS)
    pickled(folder, weights | {"embeddings.word_embeddings.weight": torch.zeros(1).expand(10**6, 10**6)})


CONTENTS: dict[str, Spoil] = {
    "a list": lambda folder: pickled(folder, [torch.zeros(1)]),
    "a key that is a number": lambda folder: pickled(folder, {1: torch.zeros(1)}),
    "numbers": lambda folder: pickled(folder, {"a": torch.zeros(2), "b": 6, "c": 7}),
    "a sparse tensor": lambda folder: pickled(folder, {"a": torch.eye(2).to_sparse()}),
    "a lazy conjugate": lambda folder: pickled(folder, {"a": torch.ones(2, dtype=torch.complex64).conj()}),
    "a weight that claims more than it has": _repeated,
}

# config.json


def configured(text: str) -> Spoil:
    return lambda folder: (folder / "config.json").write_text(text)


def described(folder: Path, /, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


_KEYS = [f"key{number}" for number in range(50_000)]
_HUGE = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings"), 2**28)
CONFIGURATIONS = {
    "a repeated key among many": configured("{" + ", ".join(f'"{key}": 0' for key in [*_KEYS, _KEYS[0]]) + "}"),
    "deep": configured('{"a": ' + "[" * 150 + "]" * 150 + "}"),
    "objects": configured('{"a": [' + "{}," * 500_000 + "0]}"),
    "values": configured('{"a": [' + "0," * 2_000_000 + "0]}"),
    "infinite": configured('{"a": 1e400}'),
    "huge": configured('{"a": 1' + "0" * 400 + "}"),
    "surrogate": configured('{"a": "\\ud800"}'),
    "giant": partial(giant, "config.json", 2**40),
    "a model of fifty thousand layers": partial(described, num_hidden_layers=50_000),
    "a giant model": partial(described, **_HUGE),
}

ATTACKS: dict[str, Spoil] = {
    f"{what}: {name}": spoil
    for what, table in {
        "header": HEADERS,
        "index": INDICES,
        "pickle": {name: zipped(content) for name, content in PICKLES.items()},
        "archive": ARCHIVES,
        "pickled": CONTENTS,
        "config.json": CONFIGURATIONS,
    }.items()
    for name, spoil in table.items()
}
