"""One checkpoint: model, optimizer state, training state and configuration; written atomically, checked when it is read.

config.json, model.safetensors, tokenizer.json     what `uwaga.models.load` and transformers read
optimizer.safetensors, training.json, config.toml  what a run is resumed from
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from uwaga._base import durable, json_files, safetensors_files
from uwaga._base.durable import create_file
from uwaga._base.errors import CheckpointError
from uwaga._base.options import is_number
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import load_save, state_dict_check, weight_files
from uwaga.train import run_folder
from uwaga.train.errors import TrainingError
from uwaga.train.optimizer import Moment
from uwaga.train.run_folder import STATE

OPTIMIZER, CONFIG = "optimizer.safetensors", "config.toml"
_FORMAT = 1  # of training.json


@dataclass(frozen=True, kw_only=True)
class BestEvaluation:
    """The evaluation with the lowest validation loss so far."""

    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Progress of a run: training.json. It holds no generator state, since random numbers are functions of the seed and a name."""

    step: int  # number of optimizer steps taken
    tokens: int  # read so far
    seconds: float  # spent in steps
    best: BestEvaluation | None
    metrics: int  # size of metrics.jsonl in bytes
    seed: int
    data: str  # Corpus.digest

    def write(self, folder: Path) -> None:
        best = None if self.best is None else {"step": self.best.step, "loss": self.best.loss}
        result = {
            "format": _FORMAT, "step": self.step, "tokens": self.tokens, "seconds": self.seconds, "best": best,
            "metrics": self.metrics, "seed": self.seed, "data": self.data,
        }  # fmt: skip
        with create_file(folder / STATE) as file:
            file.write((json.dumps(result, indent=2) + "\n").encode())

    @staticmethod
    def read(folder: Path) -> "TrainingState":
        """From a checkpoint's folder. Raises CheckpointError."""
        path = folder / STATE
        fields = json_files.read(path)
        if _field(path, fields, "format", "a whole number", _is_count) != _FORMAT:
            raise CheckpointError(f"{path} has format {fields['format']}, and this version reads {_FORMAT}")
        best = _field(path, fields, "best", "null or an object", lambda x: x is None or isinstance(x, dict))
        return TrainingState(
            step=_count(path, fields, "step"),
            tokens=_count(path, fields, "tokens"),
            seconds=_number(path, fields, "seconds"),
            best=None
            if best is None
            else BestEvaluation(step=_count(path, best, "step"), loss=_number(path, best, "loss")),
            metrics=_count(path, fields, "metrics"),
            seed=_count(path, fields, "seed"),
            data=_field(path, fields, "data", "a string", lambda x: isinstance(x, str)),
        )


def _count(path: Path, fields: Mapping[str, Any], key: str) -> int:
    return int(_field(path, fields, key, "a whole number of at least 0", _is_count))


def _number(path: Path, fields: Mapping[str, Any], key: str) -> float:
    return float(_field(path, fields, key, "a finite number", is_number))


def _field(path: Path, fields: Mapping[str, Any], key: str, words: str, accepts: Callable[[Any], bool]) -> Any:
    if key not in fields or not accepts(fields[key]):
        value = printable(repr(fields[key])) if key in fields else "missing"
        raise CheckpointError(f"{path}: {key} must be {words}, and is {value}")
    return fields[key]


def _is_count(x: Any) -> bool:
    return type(x) is int and 0 <= x < 2**62


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
    table = load_save.family_of(config.model_type, str(folder)).table(config)
    if not (folder / weight_files.SINGLE).is_file():  # training writes no pickles: one in its place is not read
        raise CheckpointError(f"there is no {folder / weight_files.SINGLE}")
    matched = state_dict_check.match(table, weight_files.find(folder), model.state_dict())
    model.load_state_dict(state_dict_check.read(matched, torch.float32, allow_nonfinite=False))


def read_optimizer(folder: Path, moments: Iterable[Moment]) -> dict[str, Tensor]:
    """The optimizer's moments by name. Raises CheckpointError: other names or shapes than these, NaN or infinite values."""
    path = folder / OPTIMIZER
    stored, get = safetensors_files.read(path)
    _compare(path, {name: each.shape for name, each in stored.items()}, {each.name: each.shape for each in moments})
    results = {}
    for name, each in stored.items():
        if each.dtype != "float32":
            raise CheckpointError(f"{path}: {printable(name)} is {each.dtype}, and must be float32")
        results[name] = get(name).clone()
        if not bool(results[name].isfinite().all()):
            raise CheckpointError(f"{path}: {printable(name)} holds NaN or infinity")
    return results


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
