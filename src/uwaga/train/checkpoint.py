"""The folder of a training run: its checkpoints, which is the last and which the best, and which are removed.

out/step-000123/    a checkpoint, complete, and checked when it is read:
                      config.json, model.safetensors, tokenizer.json     what `uwaga.models.load` and transformers read
                      optimizer.safetensors, training.json, config.toml  what a run is resumed from
out/last, out/best  pointers: the names of two such folders
out/metrics.jsonl   see uwaga.train.logger
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from uwaga._base import durable, safetensors_files, untrusted
from uwaga._base.durable import atomic_replace, create_file, fsync
from uwaga._base.errors import CheckpointError
from uwaga._base.options import Count, OptionError, Real, Text, options, read
from uwaga.models.checkpoints import load_save, tables, weight_files
from uwaga.models.checkpoints.directories import BEST, CHECKPOINT_NAME, LAST, read_pointer
from uwaga.models.families import family_of
from uwaga.train.errors import TrainingError

OPTIMIZER, CONFIG, STATE = "optimizer.safetensors", "config.toml", "training.json"
# Suffixes of folders that are being written and that are being removed; no reader takes them for checkpoints.
_UNFINISHED, _REMOVED = ".unfinished", ".going"
_LEFTOVER = re.compile(rf"\.{CHECKPOINT_NAME.pattern}({re.escape(_UNFINISHED)}|{re.escape(_REMOVED)})")
# The files of a checkpoint. A folder with any other file is not removed: that file is not ours.
_FILES = re.compile(
    rf"{re.escape(durable.MARK_FILE)}|{re.escape(STATE)}|config\.toml|config\.json|(model|optimizer)\.safetensors"
    r"|(target_)?tokenizer(_config)?\.json"
)


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

    @staticmethod
    def read(folder: Path) -> "TrainingState":
        """Read the state of a checkpoint's folder. Raises CheckpointError."""
        path = folder / STATE
        try:
            return read(TrainingState, untrusted.read_json(path))
        except OptionError as error:
            raise CheckpointError(f"{path}: {error}") from error


def write(
    out: Path,
    model: nn.Module,
    optimizer: Mapping[str, Tensor],
    state: TrainingState,
    config: str,
    save_tokenizers: Callable[[Path], object],
) -> None:
    """Write a checkpoint, whose folder appears complete or not at all. Raises TrainingError.

    Args:
        out: the run's folder.
        model: with all its weights, on any device.
        optimizer: its moments by name.
        config: the text of config.toml.
        save_tokenizers: writes the tokenizers into a folder.
    """
    try:
        with new_checkpoint(out, state.step) as folder:
            load_save.save(model, folder)
            save_tokenizers(folder)
            with create_file(folder / OPTIMIZER) as file:
                file.close()  # on Windows, save_file may not replace a file that is open
                save_file(dict(optimizer), file.name)
            for name, text in ((CONFIG, config), (STATE, json.dumps(asdict(state), indent=2) + "\n")):
                with create_file(folder / name) as file:
                    file.write(text.encode())
    except durable.PathConflictError as error:
        raise TrainingError(f"{error.filename} {error.strerror}") from error
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TrainingError(f"the checkpoint of step {state.step} cannot be written to {out}: {why}") from error


def read_model(folder: Path, model: nn.Module) -> None:
    """Load a checkpoint's weights into a model of the same shapes. Raises CheckpointError."""
    config: Any = model.config
    table = family_of(config.model_type, str(folder)).table(config, model.state_dict())
    if not (folder / weight_files.SINGLE).is_file():  # training writes no pickles: one in its place is not read
        raise CheckpointError(f"there is no {folder / weight_files.SINGLE}")
    read = tables.reader(table, weight_files.find(folder), model.state_dict(), torch.float32)
    model.load_state_dict(read())


def read_optimizer(folder: Path, moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the optimizer's moments by name, in the shapes of these. Raises CheckpointError: other names or shapes,
    NaN or infinite values."""
    path = folder / OPTIMIZER
    stored, get = safetensors_files.read(path)
    rows = [tables.WeightMapping(name, (name,)) for name in moments]
    table = tables.Table(rows, bare=partial(_present_name, moments=moments))
    return tables.reader(table, weight_files.Weights(path=path, stored=stored, read=get), moments, torch.float32)()


def _present_name(name: str, moments: Mapping[str, object]) -> str:
    """Return what a moment of a file is called now. Version 0.1 left out which part of the model a weight is in:
    layers.0, not decoder.layers.0."""
    moment, _, weight = name.partition("/")
    found = [present for present in moments if present.startswith(f"{moment}/") and present.endswith(f".{weight}")]
    return found[0] if name not in moments and len(found) == 1 else name


# The folders of checkpoints.


def checkpoint_name(step: int) -> str:
    """Return the name of a checkpoint's folder.

    >>> checkpoint_name(123)
    'step-000123'
    """
    return f"step-{step:06d}"


@contextmanager
def new_checkpoint(out: Path, step: int) -> Iterator[Path]:
    """Give a folder to write a checkpoint into, which gets its name at the end. The files and the name are synced to
    the disk. After an error the folder is removed. Raises PathConflictError: a folder of that name exists that is no
    checkpoint, or has other files next to it."""
    final = out / checkpoint_name(step)
    folder = out / f".{final.name}{_UNFINISHED}"
    durable.create_marked_folder(folder)
    try:
        yield folder
        for file in folder.iterdir():
            fsync(file)
        # A run that was killed before it updated the pointers has left a checkpoint of this step.
        if os.path.lexists(final) and not _remove(final):
            raise durable.PathConflictError(final, "it has other files than those of a checkpoint; move it away")
        fsync(folder)
        durable.rename_folder(folder, final)
        durable.unmark_folder(final)
        fsync(out)
    except BaseException:
        with suppress(OSError):
            durable.remove_folder(folder, _FILES)  # which frees its space on a full disk
        raise


def update_pointers(out: Path, state: TrainingState, keep: int) -> None:
    """Name the last and the best checkpoint, and remove those that are no longer kept. Up to the last one, the newest
    `keep`, the best, and those with other files in them are kept."""
    best = state.best.step if state.best is not None and (out / checkpoint_name(state.best.step)).is_dir() else None
    for which, step in ((LAST, state.step), (BEST, best)):
        if step is not None:
            with atomic_replace(out / which) as file:
                file.write(f"{checkpoint_name(step)}\n".encode())
    # A checkpoint after the last one is of an interrupted run: the resumed run replaces it when it gets there.
    present = [step for step in checkpoint_steps(out) if step <= state.step]
    for step in present[: max(len(present) - keep, 0)]:
        if state.best is None or step != state.best.step:
            _remove(out / checkpoint_name(step))


def last_checkpoint_text(out: Path) -> str:
    """Return the end of a message: which checkpoint a run can be resumed from."""
    result = read_pointer(out, LAST)
    return "there is no checkpoint yet" if result is None else f"the last good checkpoint is {result}"


def checkpoint_steps(out: Path) -> list[int]:
    """Return the steps of all checkpoints of a run, ascending."""
    results = [CHECKPOINT_NAME.fullmatch(path.name) for path in out.iterdir()] if out.is_dir() else []
    return sorted(int(match[1]) for match in results if match)


def remove_leftovers(out: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    for path in out.glob(".step-*"):
        if _LEFTOVER.fullmatch(path.name):
            durable.remove_folder(path, _FILES)
    durable.remove_temporary(out, LAST, BEST)


def _remove(folder: Path) -> bool:
    """Remove a folder, and return whether it was removed: not if it holds other files. It is renamed first, so that a
    checkpoint's name always stands for a complete folder."""
    if not durable.contains_only(folder, _FILES) or not (folder / STATE).exists():
        return False
    removed = folder.with_name(f".{folder.name}{_REMOVED}")
    durable.mark_folder(folder)
    durable.rename_folder(folder, removed)
    return durable.remove_folder(removed, _FILES)
