"""Checkpoints made to harm: each must end in a CheckpointError that names the file, quickly and in little memory.

What an attacker may want: to run code (pickles), to read other files (names in an index), to use up memory or time
(numbers that are claimed and not backed by bytes), to have one weight checked and another one used (duplicates,
overlaps), to write to the terminal (names in messages).
"""

import json
import pickle
import statistics
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from uwaga._base import json_files
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models import BertConfig, BertModel, load, save
from uwaga.models.checkpoints import torch_files, weight_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, d_model=8, num_layers=1, num_heads=2, d_ff=16, max_position_embeddings=10, outputs=()
    )
    save(BertModel(config), tmp_path / "model")
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
            with suppress(CheckpointError, torch_files.PickleError):
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
    assert message(folder).startswith(f"{path} cannot be read with weights_only: ")
    assert not trace.exists()


def test_a_pickle_that_is_no_dictionary_of_weights_is_refused(folder: Path) -> None:
    path = pickled(folder, [torch.zeros(1)])
    assert message(folder) == f"{path} must contain a dictionary of weights by name, not list"
    torch.save({1: torch.zeros(1)}, path)
    assert message(folder) == f"{path} cannot be read with weights_only: a key that is int"


def test_what_is_no_dense_tensor_is_refused(folder: Path) -> None:
    path = pickled(folder, {"a": torch.zeros(2), "b": 6, "c": 7})
    assert message(folder) == f"{path} contains values that are not dense tensors: b, c"
    torch.save({"a": torch.eye(2).to_sparse()}, path)
    what = "Unsupported global: torch._utils._rebuild_sparse_tensor is not a function that makes dense tensors, and is not called"
    assert message(folder) == f"{path} cannot be read with weights_only: {what}"


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
    assert message(folder).startswith(f"{path} cannot be read with weights_only: ")


def test_a_pickle_cut_anywhere_is_refused(folder: Path) -> None:
    path = pickled(folder, load_file(folder / "model.safetensors"))
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, len(whole) // 20):
        path.write_bytes(whole[:size])
        assert message(folder).startswith(f"{path} cannot be read with weights_only: ")


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


def old(content: bytes) -> bytes:
    """What stands before the pickle in a file of old versions, and the pickle."""
    sizes = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    return b"".join(pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, sizes)) + content


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
    "a nested tuple as a key": (b"\x80\x02}" + NESTED_TUPLE + b"Ns.", "refers again to a value that is tuple"),
    "a nested tuple as a storage": (
        b"\x80\x02" + NESTED_TUPLE + b"Q.",
        "refers again to a value that is tuple",
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
    assert message(folder) == f"{path} cannot be read with weights_only: {reason}"


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


def test_a_nested_tuple_in_an_old_file_is_refused(folder: Path) -> None:
    path = pickled(folder, {})
    path.write_bytes(old(b"\x80\x02}" + NESTED_TUPLE + b"Ns." + pickle.dumps([], 2)))
    assert path.stat().st_size < 700
    assert message(folder) == f"{path} cannot be read with weights_only: refers again to a value that is tuple"


def test_a_compressed_pickle_is_not_unpacked(folder: Path) -> None:
    path = zipped(pickled(folder, {}), bytes(10**8), compression=zipfile.ZIP_DEFLATED)
    assert message(folder) == (
        f"{path} cannot be read with weights_only: the record archive/data.pkl is compressed or encrypted, "
        "which torch.save does not do"
    )


def test_a_storage_of_an_old_file_is_not_allocated_by_its_claim(folder: Path) -> None:
    path = pickled(folder, {})
    claim = storage(b"J\0\0\0\x40").replace(b"tQ", b"NtQ")
    weights = tensor(claim, b"K\0", b"K\1\x85", b"K\1\x85")
    path.write_bytes(old(weights) + pickle.dumps(["0"], 2) + struct.pack("<q", 2**30) + bytes(8))
    assert message(folder) == (
        f"{path} cannot be read with weights_only: storage 0 claims 4294967296 bytes, more than the file has"
    )


def test_tensors_of_pickles_are_what_torch_load_gives(tmp_path: Path) -> None:
    """Views, transposed weights, parameters and all dtypes, in both formats."""
    base = torch.arange(24, dtype=torch.float32)
    weights = {
        "view": base[3:15].view(3, 4),
        "transposed": base.view(4, 6).T,
        "scalar": torch.tensor(7, dtype=torch.int64),
        "nothing": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(base[:2].clone()),
        **{
            str(dtype): torch.ones(3, dtype=dtype)
            for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8)
        },
    }
    for is_zip in (True, False):
        path = tmp_path / f"{is_zip}.bin"
        torch.save(weights, path, _use_new_zipfile_serialization=is_zip)
        expected, weights_of_file = torch.load(path, weights_only=True), torch_files.read(path)
        assert list(weights_of_file) == list(expected)
        for name, each in expected.items():
            result = weights_of_file[name]
            assert result.dtype == each.dtype
            assert result.shape == each.shape
            assert torch.equal(result, each)


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


def test_a_model_of_a_hundred_million_layers_is_not_built(folder: Path) -> None:
    path = describe(folder, num_hidden_layers=10**8)
    weights = folder / "model.safetensors"
    held = len(load_file(weights))
    assert message(folder) == f"{path} says {10**8} layers, and {weights} has {held} weights in all"


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
