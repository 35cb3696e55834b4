"""Finding and opening the files of a model's weights; weights are then read one at a time.

The files are model.safetensors, or shards listed in model.safetensors.index.json; else pytorch_model.bin, or its shards. One file
next to an index that lists other files is an error: one of the two is left from another model, and nothing says which. All are
untrusted: opening checks the sizes that a file declares before memory of such a size is allocated.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from torch import Tensor

from uwaga._base import safetensors_files, untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.safetensors_files import Stored
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import torch_files

SINGLE, SHARDED = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_SHARDED = "pytorch_model.bin", "pytorch_model.bin.index.json"

# The bytes of all weights of a torch.save file are at most MOST_VIEWS * its size + MOST_BESIDE: tied weights share bytes (T5
# has its embedding four times), but a view with stride 0 could have any size.
MOST_VIEWS, MOST_BESIDE = 4, 2**26


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of one model, in one file or several."""

    path: Path  # for messages: the file of the weights, or the index of the shards
    stored: Mapping[str, Stored]
    read: Callable[[str], Tensor]  # reads one weight by name; the result may share memory with the file


def find(folder: Path) -> Weights:
    """Return the weights in a folder; files are tried in the order of transformers. Raises CheckpointError."""
    for name, open_one in ((SINGLE, safetensors_files.read), (PICKLED, _read_torch_file)):
        index = folder / f"{name}.index.json"
        if _is_there(index):
            return _sharded(index, name, open_one)
        if _is_there(folder / name):
            stored, read = open_one(folder / name)
            return Weights(path=folder / name, stored=stored, read=read)
    names = f"{SINGLE}, {SHARDED}, {PICKLED} or {PICKLED_SHARDED}"
    raise CheckpointError(f"{folder} has no weights: there is no {names}")


def _is_there(path: Path) -> bool:
    """Return whether the path exists and is not a directory. A broken link counts, so that it is an error."""
    return os.path.lexists(path) and not path.is_dir()


Opened = tuple[Mapping[str, Stored], Callable[[str], Tensor]]


def check_no_shards(folder: Path) -> None:
    """Raise CheckpointError if the folder has an index that lists other files than model.safetensors."""
    index = folder / SHARDED
    if _is_there(index) and set(_weight_map(index).values()) != {SINGLE}:
        raise CheckpointError(
            f"{folder} has {SHARDED} of a model in several files; remove it and these files, or give another directory"
        )


def _weight_map(index: Path) -> dict[str, str]:
    """Return the files of weights by name. Raises CheckpointError."""
    files_by_name = untrusted.read_json(index).get("weight_map")
    if not isinstance(files_by_name, dict) or not all(isinstance(file, str) for file in files_by_name.values()):
        raise CheckpointError(f"{index} has no weight_map of weights to files")
    return files_by_name


def _sharded(index: Path, single: str, open_one: Callable[[Path], Opened]) -> Weights:
    """Return the weights that an index lists; `single` is the name of the file that would have all weights."""
    file_of = _weight_map(index)
    files = sorted(set(file_of.values()))
    for rule in _broken_rules(index, single, files):
        raise CheckpointError(f"{index} {rule}")
    stored: dict[str, Stored] = {}
    readers: dict[str, Callable[[str], Tensor]] = {}
    twice: list[str] = []
    for found, read in [open_one(index.parent / file) for file in files]:
        twice += sorted(stored.keys() & found.keys())
        stored |= found
        readers |= dict.fromkeys(found, read)
    absent = sorted(file_of.keys() - stored.keys())
    unlisted = sorted(stored.keys() - file_of.keys())
    if twice or absent or unlisted:
        lines = [f"  {printable(name)} is listed in {file_of[name]}, which does not contain it" for name in absent]
        lines += [f"  {printable(name)} is in two files" for name in twice]
        lines += [f"  {printable(name)} is in the files and is not listed" for name in unlisted]
        raise CheckpointError("\n".join([f"{index} does not match its files", *lines]))
    return Weights(path=index, stored=stored, read=lambda name: readers[name](name))


def _broken_rules(index: Path, single: str, files: list[str]) -> Iterator[str]:
    if files != [single] and _is_there(index.parent / single):
        both = "they may be of two models; remove the one that is not meant"
        yield f"lists other files than {single}, which is in its folder too: {both}"
    for file in files:
        suffix, is_plain = Path(single).suffix, PurePosixPath(file).name == file == PureWindowsPath(file).name
        if not (is_plain and file.isprintable() and file.endswith(suffix)):
            yield f"names {printable(file)!r}, which is not a plain name of a {suffix} file"
        if not (index.parent / file).is_file():
            yield f"names {file}, which does not exist in its folder"


def _read_torch_file(path: Path) -> Opened:
    """Open a file of torch.save. Raises CheckpointError."""
    tensors = torch_files.read(path)
    stored = {
        name: Stored(shape=tuple(x.shape), dtype=str(x.dtype).removeprefix("torch."), file=path.name)
        for name, x in tensors.items()
    }
    size = path.stat().st_size
    most = MOST_VIEWS * size + MOST_BESIDE
    left = {name: x.nbytes for name, x in tensors.items()}
    taken = 0

    def tensor(name: str) -> Tensor:
        nonlocal taken
        taken += left.pop(name, 0)
        if taken > most:
            raise CheckpointError(
                f"{path} has {size} bytes; its weights, as views of the same bytes, have more than {most}"
            )
        return tensors[name]

    return stored, tensor
