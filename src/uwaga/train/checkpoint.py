"""One checkpoint: model, optimizer state, training state and configuration; written atomically, checked when it is read.

config.json, model.safetensors, tokenizer.json     what `uwaga.models.load` and transformers read
optimizer.safetensors, training.json, config.toml  what a run is resumed from
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from uwaga._base import durable, json_files, safetensors_files
from uwaga._base.durable import create_file
from uwaga._base.errors import CheckpointError
from uwaga._base.options import Count, OptionError, Real, Text, options, read
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import load_save, tables, weight_files
from uwaga.models.families import family_of
from uwaga.train import run_folder
from uwaga.train.errors import TrainingError
from uwaga.train.optimizer import Moment
from uwaga.train.run_folder import STATE

OPTIMIZER, CONFIG = "optimizer.safetensors", "config.toml"


@options
class BestEvaluation:
    """The evaluation with the lowest validation loss so far."""

    step: Count
    loss: Real


@options
class TrainingState:
    """Progress of a run: training.json. It holds no generator state, since random numbers are functions of the seed and a name."""

    format: Literal[1] = 1
    step: Count  # number of optimizer steps taken
    tokens: Count  # read so far
    seconds: Real  # spent in steps
    best: BestEvaluation | None
    metrics: Count  # size of metrics.jsonl in bytes
    seed: Count
    data: Text  # Corpus.digest

    def write(self, folder: Path) -> None:
        with create_file(folder / STATE) as file:
            file.write((json.dumps(asdict(self), indent=2) + "\n").encode())

    @staticmethod
    def read(folder: Path) -> "TrainingState":
        """From a checkpoint's folder. Raises CheckpointError."""
        path = folder / STATE
        try:
            return read(TrainingState, json_files.read(path))
        except OptionError as error:
            raise CheckpointError(f"{path}: {error}") from error


class CheckpointParts(NamedTuple):
    """What a checkpoint is written from."""

    model: nn.Module  # with all its weights, on any device
    optimizer: Mapping[str, Tensor]
    state: TrainingState
    config: str
    save_tokenizers: Callable[[Path], object]


def write(out: Path, parts: CheckpointParts) -> Path:
    """Write a checkpoint and return its folder, which appears complete or not at all. Raises TrainingError."""
    step = parts.state.step
    try:
        folder = run_folder.begin_checkpoint(out, step)
        try:
            load_save.save(parts.model, folder)
            parts.save_tokenizers(folder)
            with durable.create_file(folder / OPTIMIZER) as file:
                file.close()  # on Windows, save_file may not replace a file that is open
                save_file(dict(parts.optimizer), file.name)
            with durable.create_file(folder / CONFIG) as file:
                file.write(parts.config.encode())
            parts.state.write(folder)
            return run_folder.finish_checkpoint(out, step)
        except BaseException:
            with suppress(OSError):
                run_folder.discard_unfinished(out, step)  # which frees its space on a full disk
            raise
    except durable.PathConflictError as error:
        raise TrainingError(f"{error.filename} {error.strerror}") from error
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TrainingError(f"the checkpoint of step {step} cannot be written to {out}: {why}") from error


def read_model(folder: Path, model: nn.Module) -> None:
    """Load a checkpoint's weights into a model of the same shapes. Raises CheckpointError."""
    config: Any = model.config
    table = family_of(config.model_type, str(folder)).table(config, model.state_dict())
    if not (folder / weight_files.SINGLE).is_file():  # training writes no pickles: one in its place is not read
        raise CheckpointError(f"there is no {folder / weight_files.SINGLE}")
    read = tables.reader(table, weight_files.find(folder), model.state_dict(), torch.float32)
    model.load_state_dict(read())


def read_optimizer(folder: Path, moments: Iterable[Moment]) -> dict[str, Tensor]:
    """The optimizer's moments by name. Raises CheckpointError: other names or shapes than these, NaN or infinite values."""
    path = folder / OPTIMIZER
    files, get = safetensors_files.read(path)
    wanted = {each.name: each.shape for each in moments}
    file_names = {_present_name(name, wanted): name for name in files}
    stored = {name: files[of_file] for name, of_file in file_names.items()}
    _compare(path, {name: each.shape for name, each in stored.items()}, wanted)
    results = {}
    for name, each in stored.items():
        if each.dtype != "float32":
            raise CheckpointError(f"{path}: {printable(name)} is {each.dtype}, and must be float32")
        results[name] = get(file_names[name]).clone()
        if not bool(results[name].isfinite().all()):
            raise CheckpointError(f"{path}: {printable(name)} holds NaN or infinity")
    return results


def _present_name(name: str, wanted: Collection[str]) -> str:
    """What a moment of a file is called now. Version 0.1 left out which part of the model a weight is in: layers.0, not decoder.layers.0."""
    moment, _, weight = name.partition("/")
    found = [each for each in wanted if each.startswith(f"{moment}/") and each.endswith(f".{weight}")]
    return found[0] if name not in wanted and len(found) == 1 else name


def _compare(path: Path, shapes: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    lines = [f"  missing      {name} {shape}" for name, shape in wanted.items() if name not in shapes]
    lines += [f"  unexpected   {printable(name)} {shape}" for name, shape in shapes.items() if name not in wanted]
    lines += [
        f"  wrong shape  {name} {shapes[name]} must be {shape}"
        for name, shape in wanted.items()
        if name in shapes and shapes[name] != shape
    ]
    if lines:
        more = [f"  and {len(lines) - 20} more"] if len(lines) > 20 else []
        raise CheckpointError("\n".join([f"{path} is not of this configuration's model", *lines[:20], *more]))
