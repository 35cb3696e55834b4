"""What of a training is neither a weight nor a mean of gradients: training.json."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uwaga._base.durable import create_file
from uwaga._base.errors import CheckpointError
from uwaga.models import json_files
from uwaga.models.settings import is_number
from uwaga.train.checkpoints.folders import STATE

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Best:
    """The evaluation with the lowest loss so far."""

    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a training is. Random numbers need no place here: each is a function of the seed and of what it is for."""

    step: int  # steps that are taken
    tokens: int  # that were read
    seconds: float  # of training
    best: Best | None
    metrics: int  # bytes of metrics.jsonl
    seed: int
    data: str  # Corpus.digest

    def write(self, folder: Path) -> None:
        best = None if self.best is None else {"step": self.best.step, "loss": self.best.loss}
        found = {
            "format": _FORMAT, "step": self.step, "tokens": self.tokens, "seconds": self.seconds, "best": best,
            "metrics": self.metrics, "seed": self.seed, "data": self.data,
        }  # fmt: skip
        with create_file(folder / STATE) as file:
            file.write((json.dumps(found, indent=2) + "\n").encode())

    @staticmethod
    def read(folder: Path) -> "State":
        """Raises CheckpointError."""
        path = folder / STATE
        found = json_files.read(path)
        if _field(path, found, "format", "a whole number", _is_count) != _FORMAT:
            raise CheckpointError(f"{path} has format {found['format']}, and this version reads {_FORMAT}")
        best = _field(path, found, "best", "null or an object", lambda x: x is None or isinstance(x, dict))
        return State(
            step=_count(path, found, "step"),
            tokens=_count(path, found, "tokens"),
            seconds=_number(path, found, "seconds"),
            best=None if best is None else Best(step=_count(path, best, "step"), loss=_number(path, best, "loss")),
            metrics=_count(path, found, "metrics"),
            seed=_count(path, found, "seed"),
            data=_field(path, found, "data", "a string", lambda x: isinstance(x, str)),
        )


def _count(path: Path, found: Mapping[str, Any], key: str) -> int:
    return int(_field(path, found, key, "a whole number of at least 0", _is_count))


def _number(path: Path, found: Mapping[str, Any], key: str) -> float:
    return float(_field(path, found, key, "a finite number", is_number))


def _field(path: Path, found: Mapping[str, Any], key: str, words: str, accepts: Callable[[Any], bool]) -> Any:
    if key not in found or not accepts(found[key]):
        said = json_files.printable(repr(found[key])) if key in found else "missing"
        raise CheckpointError(f"{path}: {key} must be {words}, and is {said}")
    return found[key]


def _is_count(x: Any) -> bool:
    return type(x) is int and 0 <= x < 2**62
