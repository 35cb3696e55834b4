"""Checkpoints made to harm (tests/hostile_checkpoints.py): each ends in a CheckpointError that names the file, quickly and in little memory.

What each error says, and that it takes little memory, is in tests/messages/hostile_models.txt.
"""

import resource
from contextlib import suppress
from pathlib import Path
from random import Random

import hostile_checkpoints as hostile
import pytest
import torch
from hostile_checkpoints import pickled
from safetensors.torch import load_file, save_file

from uwaga._base.errors import CheckpointError
from uwaga.models import load
from uwaga.models.checkpoints import torch_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hostile.write_model(tmp_path / "model")


def message(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    return str(caught.value)


@pytest.mark.parametrize("case", hostile.LYING)
def test_a_header_that_lies_is_refused(folder: Path, case: str) -> None:
    hostile.LYING[case](folder)
    path = folder / "model.safetensors"
    assert message(folder).startswith(f"{path} is not a valid safetensors file: Error while deserializing header: ")


def test_a_file_cut_anywhere_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in range(0, len(whole), 211):
        path.write_bytes(whole[:size])
        assert message(folder).startswith(f"{path} is not a valid safetensors file: ")


def test_names_cannot_write_to_a_terminal_or_fill_it(folder: Path) -> None:
    names = ["\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "x" * 5000, *(f"n{n}" for n in range(1000))]
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {name: torch.zeros(1) for name in names}, folder / "model.safetensors")
    said = message(folder)
    assert said.isascii()
    assert said.replace("\n", "").isprintable()
    assert len(said) < 20_000
    assert said.endswith(f"\n  and {len(names) - 200} more")


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_pickle_runs_nothing(folder: Path, tmp_path: Path, is_plain: bool) -> None:
    trace = tmp_path / "trace"
    path = pickled(folder, {"a": hostile.Runs(Path.touch, trace)}, is_plain=is_plain)
    assert message(folder).startswith(f"{path} cannot be read as weights: ")
    assert not trace.exists()


def test_weights_that_repeat_numbers_come_to_no_more_than_a_few_times_the_file(folder: Path) -> None:
    """With sizes that config.json describes: a kilobyte of file would be gigabytes of model."""
    hostile.described(folder, vocab_size=2**22)
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] = torch.zeros(1, 1).expand(2**22, 8)
    path = pickled(folder, weights)
    size = path.stat().st_size
    said = f"{path} has {size} bytes; its weights, as views of the same bytes, have more than {4 * size + 2**26}"
    assert message(folder) == said


def test_a_pickle_cut_anywhere_is_refused(folder: Path) -> None:
    path = pickled(folder, load_file(folder / "model.safetensors"))
    whole = path.read_bytes()
    cuts = (whole[:size] for size in range(0, len(whole) - 1, len(whole) // 20))
    for content in (*cuts, b"PK\x03\x04", b"\x80\x02."):
        path.write_bytes(content)
        assert message(folder).startswith(f"{path} cannot be read as weights: ")


def test_the_pickle_is_that_of_the_archives_folder(tmp_path: Path) -> None:
    """And not the first of that name, which is what was checked once where PyTorch read the other one."""
    records = {**hostile.one_number(1, "archive/inner/"), **hostile.one_number(666), "archive/version": b"3\n"}
    path = hostile.archive(records, tmp_path)
    assert torch_files.read(path)["a"].tolist() == torch.load(path, weights_only=True)["a"].tolist() == [666.0]


def dense_weights() -> dict[str, torch.Tensor]:
    """Views, shared and transposed weights, parameters, and all dtypes that are read."""
    base = torch.arange(24, dtype=torch.float32)
    dtypes = [
        torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool,
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
        for name, tensor in expected.items():
            described = [(x.dtype, x.shape, x.stride(), x.storage_offset()) for x in (result[name], tensor)]
            assert described[0] == described[1]
            assert torch.equal(bits(result[name]), bits(tensor))
            assert not result[name].requires_grad
    torch.save(dict(model.named_parameters(remove_duplicate=False)), path)
    result = torch_files.read(path)
    assert result["0.weight"].data_ptr() == result["2.weight"].data_ptr()


def test_a_weight_that_is_written_to_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    path = hostile.archive({"archive/a": b"unaligned", **hostile.one_number(1)}, tmp_path)
    before = path.read_bytes()
    for content in (before, None):
        if content is None:
            torch.save({"a": torch.ones(1)}, path)
            before = path.read_bytes()
        torch_files.read(path)["a"].fill_(2)
        assert path.read_bytes() == before
        assert torch_files.read(path)["a"].tolist() == [1.0]


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


def loaded(path: Path, content: bytes) -> dict[str, torch.Tensor] | None:
    """What torch.load gives of a file with this content; None: an error."""
    path.write_bytes(content)
    try:
        return torch.load(path, weights_only=True, mmap=True)
    except Exception:  # noqa: BLE001  # of every kind
        return None


@pytest.mark.stress
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")  # of pickletools
def test_mutated_files_give_errors_or_what_torch_load_gives(tmp_path: Path) -> None:
    """In less than a GiB. PyTorch refuses some files that are read here, such as one whose number of disks is changed."""
    path, random = tmp_path / "weights.bin", Random(0)
    torch.save(dense_weights(), path)
    good = path.read_bytes()
    before, read = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {}
    for content in (mutated(good, random) for _ in range(2000)):
        path.write_bytes(content)
        with suppress(CheckpointError):
            read[content] = {name: x.clone() for name, x in torch_files.read(path).items()}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
    assert 200 < len(read) < 1800
    compared = 0
    for content, weights in read.items():
        if (expected := loaded(path, content)) is None:
            continue
        compared += 1
        assert [(name, x.dtype, x.shape) for name, x in weights.items()] == [
            (name, x.dtype, x.shape) for name, x in expected.items()
        ]
        assert all(torch.equal(bits(x), bits(expected[name])) for name, x in weights.items())
    assert compared > 200
