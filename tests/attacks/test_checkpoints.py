"""Checkpoints made to harm: each must end in a CheckpointError that names the file, quickly and in little memory.

What an attacker may want: to run code (pickles), to read other files (names in an index), to use up memory or time
(numbers that are claimed and not backed by bytes), to have one weight checked and another one used (duplicates,
overlaps), to write to the terminal (names in messages).
"""

import json
import mmap
import pickle
import resource
import statistics
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from tiny_transformer import tiny

from uwaga._base import json_files, untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models import load, save
from uwaga.models.checkpoints import torch_files, weight_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sizes = {"vocab_size": 20, "d_model": 8, "num_layers": 1, "num_heads": 2, "d_ff": 16, "max_position_embeddings": 10}
    save(tiny("bert", seed=0, **sizes, outputs=()), tmp_path / "model")
    load(tmp_path / "model")  # imports what the first load of a process imports, which `message` shall not measure
    return tmp_path / "model"


def message(folder: Path) -> str:
    """What loading says. It must not take more memory than the JSON it may read."""
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as caught:
            load(folder)
        assert tracemalloc.get_traced_memory()[1] < 2 * json_files.LARGEST
    finally:
        tracemalloc.stop()
    return str(caught.value)


def times_as_long(one: Callable[[], object], other: Callable[[], object]) -> float:
    """The processor's time of `one`, which may be refused, in that of `other`: medians of five, in turns."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(5):
        for value, call in zip(seconds, (one, other), strict=True):
            begun = time.process_time()
            with suppress(CheckpointError):
                call()
            value.append(time.process_time() - begun)
    return statistics.median(seconds[0]) / statistics.median(seconds[1])


# safetensors


def entry(begin: int, end: int, *shape: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape or [(end - begin) // 4]), "data_offsets": [begin, end]}


def write(folder: Path, header: dict | bytes, data: int = 8, length: int | None = None) -> Path:
    """A file with this header and as many bytes of data, that claims a header of this length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))
    return path


ONE = {"a": entry(0, 8)}
TWICE = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "a": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]}}'

# Header, bytes of data, and what the safetensors library says of them.
REFUSED_BY_LIBRARY = {
    "offsets beyond the file": (ONE, 4),
    "bytes outside of all tensors": (ONE, 12),
    "overlapping weights": ({"a": entry(0, 8), "b": entry(4, 12)}, 12),
    "a gap between weights": ({"a": entry(0, 4), "b": entry(8, 12)}, 12),
    "offsets that run backwards": ({"a": entry(8, 0, 2)}, 8),
    "a shape larger than its bytes": ({"a": entry(0, 8, 3)}, 8),
    "a shape whose product overflows": ({"a": entry(0, 8, 2**63, 2**63)}, 8),
    "a negative shape": ({"a": entry(0, 8, -2)}, 8),
    "an unknown dtype": ({"a": entry(0, 8, 2, dtype="F99")}, 8),
    "a weight that is no object": ({"a": 7}, 8),
    "metadata that is no text": ({"__metadata__": {"a": 1}} | ONE, 8),
}


@pytest.mark.parametrize("case", REFUSED_BY_LIBRARY)
def test_a_header_that_lies_is_refused(folder: Path, case: str) -> None:
    header, data = REFUSED_BY_LIBRARY[case]
    path = write(folder, header, data)
    assert message(folder).startswith(f"{path} is not a valid safetensors file: Error while deserializing header: ")


@pytest.mark.parametrize("length", [10**6, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_is_refused(folder: Path, length: int) -> None:
    path = write(folder, ONE, length=length)
    size = path.stat().st_size
    assert message(folder) == (
        f"{path} is not a valid safetensors file: its header claims {length} bytes, and the file has {size}"
    )


def test_a_giant_header_is_refused_before_it_is_read(folder: Path) -> None:
    path = write(folder, b"")
    length = json_files.LARGEST + 1
    with path.open("wb") as file:
        file.write(struct.pack("<Q", length))
        file.truncate(length + 16)  # holes: the file takes no room on the disk
    assert message(folder) == (
        f"{path} is not a valid safetensors file: its header of {length} bytes is longer than {json_files.LARGEST}"
    )


@pytest.mark.parametrize("content", [b"", b"1234567"])
def test_a_file_cut_short_is_refused(folder: Path, content: bytes) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(content)
    claimed = int.from_bytes(content, "little")
    assert message(folder) == (
        f"{path} is not a valid safetensors file: its header claims {claimed} bytes, and the file has {len(content)}"
    )


def test_a_file_that_is_replaced_while_it_is_opened_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header is checked by one open file, and the library opens another one."""
    path, other = folder / "model.safetensors", folder / "other"
    other.write_bytes(path.read_bytes())
    theirs = safetensors.safe_open

    def replaced(*given: object, **named: object) -> object:
        other.replace(path)
        return theirs(*given, **named)

    monkeypatch.setattr(safetensors, "safe_open", replaced)
    assert message(folder) == (f"{path} was replaced or written while it was opened; try again when nothing writes it")


def test_a_file_cut_anywhere_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in range(0, len(whole), 211):
        path.write_bytes(whole[:size])
        assert message(folder).startswith(f"{path} is not a valid safetensors file: ")


def test_two_weights_of_one_name_are_refused(folder: Path) -> None:
    """The library keeps the last one in silence."""
    path = write(folder, TWICE)
    assert message(folder) == f"the header of {path} is not valid JSON: a is a duplicate key"


HEADERS = {
    "deep nesting": (b'{"a":' + b"[" * 200_000, "is nested too deeply"),
    "no text": (
        b"\xff\xfe{}",
        "is not valid JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
    "a list": (b"[]", "must contain a JSON object, not list"),
    "not a number": (b'{"a": NaN}', "is not valid JSON: NaN is not a JSON number"),
    "nothing": (b"", "is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_is_no_plain_json_is_refused(folder: Path, case: str) -> None:
    header, reason = HEADERS[case]
    path = write(folder, header)
    assert message(folder) == f"the header of {path} {reason}"


def test_a_number_of_many_digits_is_refused(folder: Path) -> None:
    path = write(folder, b'{"a": ' + b"9" * 100_000 + b"}")
    assert message(folder).startswith(f"the header of {path} is not valid JSON: Exceeds the limit")


def test_dtypes_that_are_no_weights_are_named(folder: Path) -> None:
    header = {
        "embeddings.LayerNorm.weight": entry(0, 8, 8, dtype="F8_E4M3"),
        "embeddings.LayerNorm.bias": entry(8, 16, 16, dtype="F4"),
    }
    write(folder, header, 16)
    said = message(folder)
    assert "  wrong dtype  embeddings.LayerNorm.weight (8,) is F8_E4M3, not a floating dtype of weights" in said
    assert "  wrong dtype  embeddings.LayerNorm.bias (16,) is F4, not a floating dtype of weights" in said


def test_names_cannot_write_to_a_terminal_or_fill_it(folder: Path) -> None:
    names = ["\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "x" * 5000, *(f"n{n}" for n in range(1000))]
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {name: torch.zeros(1) for name in names}, folder / "model.safetensors")
    said = message(folder)
    assert said.isascii()
    assert said.replace("\n", "").isprintable()
    assert len(said) < 20_000
    assert said.endswith(f"\n  and {len(names) - 200} more")


def test_a_folder_in_place_of_a_file_is_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    assert message(folder).startswith(f"{folder} has no weights: ")


# The index of shards


def index(folder: Path, weight_map: object) -> Path:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": weight_map}))
    return path


@pytest.mark.parametrize(
    "name",
    [
        "../a.safetensors",
        "/etc/a.safetensors",
        "x/../a.safetensors",
        "..\\a.safetensors",
        "C:a.safetensors",
        "\\\\host\\a.safetensors",
        "..",
        "",
        "a.safetensors\0",
        "passwd",
    ],
)
def test_an_index_names_only_files_beside_itself(folder: Path, name: str) -> None:
    (folder.parent / "a.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    path = index(folder, {"embeddings.token_embedding.weight": name})
    assert message(folder) == f"{path} names {printable(name)!r}, which is not a plain name of a .safetensors file"


def test_an_index_of_files_that_are_not_there_is_refused(folder: Path) -> None:
    path = index(folder, {"a": "b.safetensors"})
    assert message(folder) == f"{path} names b.safetensors, which does not exist in its folder"


@pytest.mark.parametrize("weight_map", [None, [], {"a": 7}, {"a": ["a.safetensors"]}])
def test_an_index_without_a_map_is_refused(folder: Path, weight_map: object) -> None:
    path = index(folder, weight_map)
    assert message(folder) == f"{path} has no weight_map of weights to files"


def test_an_index_must_list_what_its_files_hold(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["more"] = torch.zeros(1)
    save_file(weights, folder / "model.safetensors")
    listed = dict.fromkeys([*weights, "none"], "a.safetensors")
    del listed["more"]
    path = index(folder, listed)
    assert message(folder) == (
        f"{path} does not match its files\n"
        "  none is listed in a.safetensors, which does not contain it\n"
        "  more is in the files and is not listed"
    )


def test_two_files_with_one_weight_are_refused(folder: Path) -> None:
    (folder / "b.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    names = list(load_file(folder / "model.safetensors"))
    path = index(folder, dict.fromkeys(names, "a.safetensors") | {names[0]: "b.safetensors"})
    assert message(folder) == f"{path} lists two files that both contain {', '.join(sorted(names))}"


# Pickles


class Runs:
    """What a hostile pickle is: an object that is made by calling anything at all."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.made_by = (function, arguments)

    def __reduce__(self):
        return self.made_by


def pickled(folder: Path, content: object, *, is_plain: bool = False) -> Path:
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    if is_plain:
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path)
    return path


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_pickle_runs_nothing(folder: Path, tmp_path: Path, is_plain: bool) -> None:
    trace = tmp_path / "trace"
    path = pickled(folder, {"a": Runs(Path.touch, trace)}, is_plain=is_plain)
    assert message(folder).startswith(f"{path} cannot be read as weights: ")
    assert not trace.exists()


def test_a_pickle_that_is_no_dictionary_of_weights_is_refused(folder: Path) -> None:
    path = pickled(folder, [torch.zeros(1)])
    assert message(folder) == f"{path} must contain a dictionary of weights by name, not list"
    torch.save({1: torch.zeros(1)}, path)
    assert message(folder) == f"{path} cannot be read as weights: a key that is int"


def test_what_is_no_dense_tensor_is_refused(folder: Path) -> None:
    path = pickled(folder, {"a": torch.zeros(2), "b": 6, "c": 7})
    assert message(folder) == f"{path} contains values that are not dense tensors: b, c"
    torch.save({"a": torch.eye(2).to_sparse()}, path)
    what = "Unsupported global: torch._utils._rebuild_sparse_tensor is not a function that makes dense tensors, and is not called"
    assert message(folder) == f"{path} cannot be read as weights: {what}"


def test_a_weight_that_claims_more_than_it_has_is_not_allocated(folder: Path) -> None:
    """A view may repeat one number a million million times."""
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] = torch.zeros(1).expand(10**6, 10**6)
    path = pickled(folder, weights)
    assert message(folder) == (
        f"{path} does not match the model of config.json\n"
        "  wrong shape  embeddings.word_embeddings.weight (1000000, 1000000) must be (20, 8)"
    )


def test_weights_that_repeat_numbers_come_to_no_more_than_a_few_times_the_file(folder: Path) -> None:
    """With sizes that config.json describes: a kilobyte of file would be gigabytes of model."""
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] = 2**22
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] = torch.zeros(1, 1).expand(2**22, 8)
    path = pickled(folder, weights)
    size = path.stat().st_size
    said = f"{path} has {size} bytes; its weights, as views of the same bytes, have more than {4 * size + 2**26}"
    assert message(folder) == said


@pytest.mark.timing
def test_integers_of_one_hash_as_keys_take_no_time(tmp_path: Path) -> None:
    keys = {(n + 1) * (2**61 - 1): None for n in range(500)}
    assert len(set(map(hash, keys))) == 1
    paths = []
    for name, multiple in (("many", 1), ("one", 2**61 - 1)):
        numbers = [(n + 1) * multiple for n in range(30_000)]
        paths.append(zipped(tmp_path / name, dictionary(b"\x8a\x0a" + n.to_bytes(10, "little") for n in numbers)))
    many, one = (lambda path=path: torch_files.read(path) for path in paths)
    assert times_as_long(one, many) < 10


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02."])
def test_a_broken_pickle_is_refused(folder: Path, content: bytes) -> None:
    path = pickled(folder, {})
    path.write_bytes(content)
    assert message(folder).startswith(f"{path} cannot be read as weights: ")


def test_a_pickle_cut_anywhere_is_refused(folder: Path) -> None:
    path = pickled(folder, load_file(folder / "model.safetensors"))
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, len(whole) // 20):
        path.write_bytes(whole[:size])
        assert message(folder).startswith(f"{path} cannot be read as weights: ")


def zipped(path: Path, pickled_bytes: bytes, *, compression: int = zipfile.ZIP_STORED, data: bytes = b"") -> Path:
    """A file as torch.save makes them, with this pickle and one storage."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in {
            "data.pkl": pickled_bytes,
            "byteorder": b"little",
            "data/0": data,
            "version": b"3\n",
        }.items():
            archive.writestr(f"archive/{name}", content)
    return path


def dictionary(keys: Iterable[bytes]) -> bytes:
    """The pickle of a dictionary with these keys, as opcodes, and None for each."""
    return b"\x80\x02}(" + b"".join(key + b"N" for key in keys) + b"u."


def tensor(storage: bytes, offset: bytes, shape: bytes, strides: bytes) -> bytes:
    """A dictionary with one weight, as opcodes."""
    view = storage + offset + shape + strides
    return b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n(" + view + b"\x89}tRs."


def storage(numel: bytes) -> bytes:
    """Storage "0" of float32."""
    text = b"".join(b"X" + struct.pack("<I", len(each)) + each for each in (b"0", b"cpu"))
    return b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + text + numel + b"tQ"


# Each tuple holds the one before it twice: its hash visits two to the power of 100 of them.
NESTED_TUPLE = b")" + b"q\0h\0\x86" * 100
# What each of these asks for, and what is said of it.
HOSTILE_PICKLES = {
    "a nested tuple as a key": (b"\x80\x02}" + NESTED_TUPLE + b"Ns.", "a key that is tuple"),
    "a nested tuple as a storage": (
        b"\x80\x02" + NESTED_TUPLE + b"Q.",
        "a storage that is not described as by torch.save",
    ),
    "a gigabyte of zeros": (
        b"\x80\x02cbuiltins\nbytearray\nJ\0\0\0\x40\x85R.",
        "Unsupported global: builtins.bytearray is not a function that makes dense tensors, and is not called",
    ),
    "a string that is not there": (
        b"\x80\x02X\xff\xff\xff\x7f.",
        "expected 2147483647 bytes in a unicodestring4, but only 1 remain",
    ),
    "steps without end": (b"\x80\x02" + b"N0" * 9, "opcode POP, which is not used in files of weights"),
    "lists without end": (b"\x80\x02" + b"]" * 500_001, "a pickle of more than 500,000 opcodes"),
    "two weights of one name": (b"\x80\x02}X\x01\x00\x00\x00aNsX\x01\x00\x00\x00aNs.", "a is a duplicate key"),
    "a storage larger than the file": (
        tensor(storage(b"J\0\0\0\x40"), b"K\0", b"K\1\x85", b"K\1\x85"),
        "storage 0 claims 4294967296 bytes and has 8",
    ),
    "a view behind its storage": (
        tensor(storage(b"K\2"), b"K\1", b"K\2\x85", b"K\1\x85"),
        "a tensor needs 3 elements of storage 0, which has 2",
    ),
    "a view before its storage": (
        tensor(storage(b"K\2"), b"J\xff\xff\xff\xff", b"K\2\x85", b"K\1\x85"),
        "a tensor with an invalid shape or strides",
    ),
    "a shape whose product overflows": (
        tensor(storage(b"K\2"), b"K\0", b"J\0\0\0\x40J\0\0\0\x40J\0\0\0\x40\x87", b"K\0K\0K\0\x87"),
        "a tensor with an invalid shape or strides",
    ),
    "more taken than put": (b"\x80\x02\x87.", "the pickle pops from an empty stack"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HOSTILE_PICKLES)
def test_a_hostile_pickle_is_refused_before_it_takes_memory(folder: Path, case: str) -> None:
    content, reason = HOSTILE_PICKLES[case]
    path = zipped(pickled(folder, {}), content, data=bytes(8))
    assert message(folder) == f"{path} cannot be read as weights: {reason}"


@pytest.mark.timing
@pytest.mark.parametrize("case", HOSTILE_PICKLES)
def test_a_hostile_pickle_takes_no_longer_than_a_good_one(tmp_path: Path, case: str) -> None:
    """Than a dictionary of as many bytes. It has two steps in six bytes, where one of them may have six: three times as many, and as
    much again for the clock."""
    content, _ = HOSTILE_PICKLES[case]
    good = dictionary(b"J" + struct.pack("<i", n) for n in range(len(content) // 6))
    paths = [zipped(tmp_path / str(n), each, data=bytes(8)) for n, each in enumerate((content, good))]
    hostile, other = (lambda path=path: torch_files.read(path) for path in paths)
    assert times_as_long(hostile, other) < 6


def test_a_compressed_pickle_is_not_unpacked(folder: Path) -> None:
    path = zipped(pickled(folder, {}), bytes(10**8), compression=zipfile.ZIP_DEFLATED)
    assert message(folder) == (
        f"{path} cannot be read as weights: the record archive/data.pkl is compressed or encrypted, "
        "which torch.save does not do"
    )


def archive(path: Path, records: dict[str, bytes]) -> bytes:
    """The bytes of a zip archive with these records, which is written to the path."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in records.items():
            file.writestr(name, content)
    return path.read_bytes()


def one_number(number: float, top: str = "archive/") -> dict[str, bytes]:
    """The records of a file with one weight of one element."""
    pickled_bytes = tensor(storage(b"K\1"), b"K\0", b"K\1\x85", b"K\1\x85")
    return {f"{top}data.pkl": pickled_bytes, f"{top}data/0": struct.pack("<f", number)}


def overlapping(path: Path) -> bytes:
    """A file whose directory gives one record twice, under two names of the same length."""
    content = archive(path, {"a/0": b"\0" * 8, "a/data.pkl": one_number(1)["archive/data.pkl"], "a/1": b"\0" * 8})
    at = content.rindex(b"PK\1\2")
    return content[: at + 42] + bytes(4) + content[at + 46 :]


def longer(path: Path) -> bytes:
    """A file whose directory gives the last record more bytes than there are before the directory."""
    content = archive(path, one_number(1))
    at = content.rindex(b"PK\1\2")
    return content[: at + 20] + struct.pack("<LL", 400, 400) + content[at + 28 :]


# What one parser of zip archives reads otherwise than another, and what is said of it.
HOSTILE_ARCHIVES: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "two archives": (
        lambda path: archive(path, one_number(1)) + archive(path, one_number(666)),
        "the record archive/data.pkl does not follow the one before it; it may be part of another archive",
    ),
    "an archive and something behind it": (
        lambda path: archive(path, one_number(1)) + b"more",
        "it does not end with the directory of a zip archive",
    ),
    "a record of the same name": (
        lambda path: archive(path, one_number(1) | {"archive/data/1": bytes(4)}).replace(b"data/1", b"data/0"),
        "the archive has two records with the same name",
    ),
    "a record of the same name in capitals": (
        lambda path: archive(path, one_number(1) | {"archive/DATA.PKL": one_number(666)["archive/data.pkl"]}),
        "the archive has two records with the same name",
    ),
    "records that overlap": (
        overlapping,
        "the record a/1 does not follow the one before it; it may be part of another archive",
    ),
    "a record that ends behind the directory": (longer, "the record archive/data/0 has no header, or ends behind the file"),
    "a record without a header": (
        lambda path: archive(path, one_number(1)).replace(b"PK\3\4", b"PK\3\5", 2).replace(b"PK\3\5", b"PK\3\4", 1),
        "the record archive/data/0 has no header, or ends behind the file",
    ),
    "another byte order": (
        lambda path: archive(path, one_number(1) | {"archive/byteorder": b"big"}),
        "its numbers are not little-endian; save it again on a little-endian machine",
    ),
    "a storage that is larger than its record": (
        lambda path: archive(path, {**one_number(1), "archive/data/0": b"\0\0\0", "archive/data/1": bytes(4000)}),
        "storage 0 claims 4 bytes and has 3",
    ),
    "a pickle in a folder in the folder alone": (
        lambda path: archive(path, one_number(1, "archive/inner/")),
        "the archive has no data.pkl",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE_ARCHIVES)
def test_an_archive_that_two_parsers_may_read_in_two_ways_is_refused(tmp_path: Path, case: str) -> None:
    make, reason = HOSTILE_ARCHIVES[case]
    path = tmp_path / "weights.bin"
    path.write_bytes(make(path))
    with pytest.raises(CheckpointError) as caught:
        torch_files.read(path)
    assert str(caught.value) == f"{path} cannot be read as weights: {reason}"


def test_the_pickle_is_that_of_the_archives_folder(tmp_path: Path) -> None:
    """And not the first of that name, which is what was checked once where PyTorch read the other one."""
    path = tmp_path / "weights.bin"
    archive(path, {**one_number(1, "archive/inner/"), **one_number(666), "archive/version": b"3\n"})
    assert torch_files.read(path)["a"].tolist() == torch.load(path, weights_only=True)["a"].tolist() == [666.0]


@pytest.mark.slow
def test_a_directory_of_any_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    content = archive(path, one_number(1))
    at = content.index(b"PK\1\2")
    size = untrusted.JSON_BYTES + 1
    path.write_bytes(content[:at] + bytes(size) + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, size, at, 0))
    with pytest.raises(CheckpointError) as caught:
        torch_files.read(path)
    assert (
        str(caught.value) == f"{path} cannot be read as weights: a directory of more than {untrusted.JSON_BYTES} bytes"
    )


def dense_weights() -> dict[str, torch.Tensor]:
    """Views, shared and transposed weights, parameters, and all dtypes that torch.save writes."""
    base = torch.arange(24, dtype=torch.float32)
    dtypes = [
        *(torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
        *(torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64),
    ]  # fmt: skip
    return {
        "view": base[3:15].view(3, 4),
        "transposed": base.view(4, 6).T,
        "every second": base[::2],
        "repeated": torch.ones(1).expand(3, 4),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "nothing": torch.empty(0, 3),
        "nothing behind": base[24:],
        "parameter": torch.nn.Parameter(base[:2].clone()),
        **{str(dtype): torch.arange(64, dtype=torch.uint8).remainder(2).view(dtype) for dtype in dtypes},
    }


def bits(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype).copy_(x.detach()).flatten().view(torch.uint8)


def test_tensors_of_pickles_are_what_torch_load_gives(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Embedding(4, 3))
    model[2].weight = model[0].weight
    for weights in (dense_weights(), model.state_dict(), dict(model.named_parameters(remove_duplicate=False)), {}):
        torch.save(weights, path)
        expected, result = torch.load(path, weights_only=True), torch_files.read(path)
        assert list(result) == list(expected)
        for name, each in expected.items():
            described = [(x.dtype, x.shape, x.stride(), x.storage_offset()) for x in (result[name], each)]
            assert described[0] == described[1]
            assert torch.equal(bits(result[name]), bits(each))
            assert not result[name].requires_grad
    torch.save(dict(model.named_parameters(remove_duplicate=False)), path)
    result = torch_files.read(path)
    assert result["0.weight"].data_ptr() == result["2.weight"].data_ptr()


def test_a_weight_that_is_written_to_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    before = archive(path, {"archive/a": b"unaligned", **one_number(1)})
    for content in (before, None):
        if content is None:
            torch.save({"a": torch.ones(1)}, path)
            before = path.read_bytes()
        torch_files.read(path)["a"].fill_(2)
        assert path.read_bytes() == before
        assert torch_files.read(path)["a"].tolist() == [1.0]


def test_a_lazy_conjugate_is_refused(folder: Path) -> None:
    path = pickled(folder, {"a": torch.ones(2, dtype=torch.complex64).conj()})
    assert message(folder) == (
        f"{path} cannot be read as weights: a lazy conjugate or negative; call resolve_conj() and resolve_neg() before it is saved"
    )


def mutated(good: bytes, random: Random) -> bytes:
    """A file with some bytes changed, cut, repeated or exchanged; where it is changed, often in its pickle or its directory."""
    content = bytearray(good)
    pickled_at, directory_at = good.index(b"\x80\x02}"), good.index(b"PK\1\2")
    place = random.choice([(0, len(good)), (pickled_at, pickled_at + 900), (directory_at, len(good))])
    at, other = random.randrange(*place), random.randrange(len(good) - 8)
    match random.choice(["bytes", "bytes", "bytes", "cut", "repeat", "exchange"]):
        case "cut":
            del content[at : at + random.randint(1, 64)]
        case "repeat":
            content[other:other] = content[at : at + random.randint(1, 200)]
        case "exchange":
            content[other : other + 4], content[at : at + 4] = content[at : at + 4], content[other : other + 4]
        case _:
            for _ in range(random.randint(1, 3)):
                content[random.randrange(*place)] = random.choice([0, 1, 255, random.randrange(256)])
    return bytes(content)


def loaded(
    path: Path, content: bytes, places: Iterable[tuple[int, int]] = (), other: bytes = b""
) -> dict[str, torch.Tensor] | None:
    """What torch.load gives of a file with this content, that has the bytes of the other one in these places; None: an error."""
    patched = bytearray(content)
    for begin, size in places:
        patched[begin : begin + size] = other[begin : begin + size]
    path.write_bytes(patched)
    try:
        return torch.load(path, weights_only=True, mmap=True)
    except Exception:  # noqa: BLE001  # of every kind
        return None


@pytest.mark.stress
def test_mutated_files_give_errors_or_what_torch_load_gives(tmp_path: Path) -> None:
    """In less than a GiB. Where PyTorch refuses a file that is read here, as one whose number of disks is changed, its weights are those
    of the good directory, with the pickle and the numbers that the mutated file has in their places; or without that pickle, as where
    it names a device that there is not."""
    path, random = tmp_path / "weights.bin", Random(0)
    torch.save(dense_weights(), path)
    good = path.read_bytes()
    with path.open("rb") as file, torch_files._Mapped(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        places = [place for name, place in torch_files._records(mapped).items() if "/data" in name]
    before, read = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {}
    for content in (mutated(good, random) for _ in range(2000)):
        path.write_bytes(content)
        with suppress(CheckpointError):
            read[content] = {name: x.clone() for name, x in torch_files.read(path).items()}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
    assert 200 < len(read) < 1800
    for content, weights in read.items():
        expected = (
            loaded(path, content) or loaded(path, good, places, content) or loaded(path, good, places[1:], content)
        )
        assert expected is not None
        assert [(name, x.dtype, x.shape) for name, x in weights.items()] == [
            (name, x.dtype, x.shape) for name, x in expected.items()
        ]
        assert all(torch.equal(bits(x), bits(expected[name])) for name, x in weights.items())


# config.json


def object_of(keys: Iterable[str]) -> str:
    return "{" + ", ".join(f'"{key}": 0' for key in keys) + "}"


KEYS = [f"key{number}" for number in range(200_000)]


def test_a_repeated_key_among_many_is_found(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(object_of([*KEYS, KEYS[-1]]))
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert str(caught.value) == f"{path} is not valid JSON: {KEYS[-1]} is a duplicate key"


@pytest.mark.timing
def test_a_repeated_key_among_many_takes_little_longer_than_another() -> None:
    """At most twice the time of the same keys without it."""
    repeated, once = (object_of(keys).encode() for keys in ([*KEYS, KEYS[-1]], [*KEYS, "another"]))
    ratio = times_as_long(lambda: json_files.parse(repeated, "a"), lambda: json_files.parse(once, "a"))
    assert ratio < 2


JSON_BOMBS = {
    "deep": ('{"a": ' + "[" * 150 + "]" * 150 + "}", "is nested too deeply"),
    "objects": ('{"a": [' + "{}," * 500_000 + "0]}", "is not valid JSON: more than 500,000 objects and lists"),
    "values": ('{"a": [' + "0," * 2_000_000 + "0]}", "is not valid JSON: more than 2,000,000 keys and values"),
    "infinite": ('{"a": 1e400}', "is not valid JSON: a number is beyond the largest float64"),
    "huge": ('{"a": 1' + "0" * 400 + "}", "is not valid JSON: a number is beyond the largest float64"),
    "surrogate": ('{"a": "\\ud800"}', "is not valid JSON: the string '\\ud800' has a lone surrogate"),
}


@pytest.mark.parametrize("case", JSON_BOMBS)
def test_json_is_bounded_in_depth_count_and_values(folder: Path, case: str) -> None:
    text, reason = JSON_BOMBS[case]
    path = folder / "config.json"
    path.write_text(text)
    assert message(folder) == f"{path} {reason}"


def describe(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_a_giant_model_is_not_built(folder: Path) -> None:
    describe(folder, hidden_size=2**28, intermediate_size=2**28, vocab_size=2**28, max_position_embeddings=2**28)
    assert f"embeddings.word_embeddings.weight (20, 8) must be ({2**28}, {2**28})" in message(folder)


def test_a_model_of_fifty_thousand_layers_is_not_built(folder: Path) -> None:
    path = describe(folder, num_hidden_layers=50_000)
    weights = folder / "model.safetensors"
    held = len(load_file(weights))
    assert message(folder) == f"{path} says 50000 layers, and {weights} has {held} weights in all"


def test_a_giant_config_is_not_read(folder: Path) -> None:
    path = folder / "config.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    assert message(folder) == f"{path} is longer than {json_files.LARGEST} bytes of JSON"


def test_a_key_that_is_there_twice_is_refused(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text('{"model_type": "bert", "model_type": "gpt2"}')
    assert message(folder) == f"{path} is not valid JSON: model_type is a duplicate key"


def test_finding_weights_reads_no_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert len(weight_files.find(folder).stored) == len(load_file(folder / "model.safetensors"))
