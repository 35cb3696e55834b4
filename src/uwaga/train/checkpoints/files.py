"""One checkpoint's files: written all at once, and read with every name and shape checked."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from uwaga._base import durable
from uwaga._base.errors import CheckpointError
from uwaga.models import accounting, checkpoints, families, safetensors_files, weight_files
from uwaga.models.json_files import printable
from uwaga.train.checkpoints import folders
from uwaga.train.checkpoints.state import State
from uwaga.train.errors import TrainingError
from uwaga.train.optimizer import Moment

OPTIMIZER, CONFIG = "optimizer.safetensors", "config.toml"


class Parts(NamedTuple):
    """What a checkpoint is made of."""

    model: nn.Module  # whole, wherever
    optimizer: Mapping[str, Tensor]
    state: State
    config: str
    save_tokenizers: Callable[[Path], object]


def write(out: Path, parts: Parts) -> Path:
    """The new checkpoint's folder; it is there whole, or not at all. Raises TrainingError."""
    step = parts.state.step
    try:
        folder = folders.begin(out, step)
        try:
            checkpoints.save(parts.model, folder)
            parts.save_tokenizers(folder)
            with durable.create_file(folder / OPTIMIZER) as file:
                save_file(dict(parts.optimizer), file.name)
            with durable.create_file(folder / CONFIG) as file:
                file.write(parts.config.encode())
            parts.state.write(folder)
            return folders.finish(out, step)
        except BaseException:
            with suppress(OSError):
                folders.drop(out, step)  # a full disk has better use for the space
            raise
    except durable.PathConflictError as error:
        raise TrainingError(f"{error.filename} {error.strerror}") from error
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TrainingError(f"the checkpoint of step {step} cannot be written to {out}: {why}") from error


def read_model(folder: Path, model: nn.Module) -> None:
    """The weights into a model of the same shapes. Raises CheckpointError."""
    config: Any = model.config
    table = families.of(config.model_type, str(folder)).table(config)
    if not (folder / weight_files.SINGLE).is_file():  # a pickle in its place is not what training wrote
        raise CheckpointError(f"there is no {folder / weight_files.SINGLE}")
    matched = accounting.match(table, weight_files.find(folder), model.state_dict())
    model.load_state_dict(accounting.read(matched, torch.float32, allow_nonfinite=False))


def read_optimizer(folder: Path, moments: Iterable[Moment]) -> dict[str, Tensor]:
    """The means by name. Raises CheckpointError: other ones than these, or numbers that are none."""
    path = folder / OPTIMIZER
    stored, get = safetensors_files.read(path)
    _compare(path, {name: each.shape for name, each in stored.items()}, {each.name: each.shape for each in moments})
    found = {}
    for name, each in stored.items():
        if each.dtype != "float32":
            raise CheckpointError(f"{path}: {printable(name)} is {each.dtype}, and must be float32")
        found[name] = get(name).clone()
        if not bool(found[name].isfinite().all()):
            raise CheckpointError(f"{path}: {printable(name)} holds nan or infinity")
    return found


def _compare(path: Path, found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    lines = [f"  missing    {name} {shape}" for name, shape in wanted.items() if name not in found]
    lines += [f"  unexpected {printable(name)} {shape}" for name, shape in found.items() if name not in wanted]
    lines += [
        f"  misshapen  {name} {found[name]} must be {shape}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if lines:
        more = [f"  and {len(lines) - 20} more"] if len(lines) > 20 else []
        raise CheckpointError("\n".join([f"{path} is not of this configuration's model", *lines[:20], *more]))
