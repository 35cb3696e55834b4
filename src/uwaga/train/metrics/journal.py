"""metrics.jsonl: one line for everything that was measured, in the order of the steps.

    {"step": 10, "kind": "train", "loss": 3.1, "lr": 0.001, "grad_norm": 0.7, "tokens": 40960, "wall": {...}}
    {"step": 250, "kind": "validation", "loss": 2.4}

A line is a function of the configuration and the data but for "wall", which has what clocks say. A training that goes on
from a checkpoint cuts the file to what it was then.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from uwaga._base import durable, untrusted
from uwaga._base.untrusted import TextFileError
from uwaga.train.errors import TrainingError

FILE = "metrics.jsonl"
_FIRST = b'{"step": '  # what every line begins with


class Journal:
    """The file of a run, open at its end.

    Args:
        out: the run's folder.
        size: what to keep of it, in bytes.

    Raises:
        TrainingError: the file is shorter, not one of ours, or cannot be read.
    """

    def __init__(self, out: Path, size: int = 0) -> None:
        path = out / FILE
        try:
            there = untrusted.stat_regular(path).st_size if os.path.lexists(path) else 0
        except OSError as error:
            raise TrainingError(f"{path} cannot be read: {error.strerror}") from error
        if there < size:
            raise TrainingError(
                f"{path} has {there} bytes, and had {size} when the checkpoint was written: the curve up to there is lost"
            )
        try:
            # Without a buffer, which a full disk would keep from being closed.
            self._file: IO[bytes] = durable.open_append(path, _is_ours, size=size)
        except durable.PathConflictError as error:
            raise TrainingError(f"{path} {error.strerror}") from error

    def write(self, step: int, kind: str, found: Mapping[str, Any], wall: Mapping[str, Any] | None = None) -> None:
        """A line; the next process can read it."""
        line = {"step": step, "kind": kind, **found, **({} if wall is None else {"wall": wall})}
        left = memoryview((json.dumps(line, ensure_ascii=False) + "\n").encode())
        while left:
            left = left[self._file.write(left) or 0 :]

    def sync(self) -> int:
        """Its bytes, all of them on the disk."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def _is_ours(first: bytes) -> bool:
    """By the first bytes of a file; a process that is killed may leave fewer."""
    return _FIRST.startswith(first[: len(_FIRST)])


def curve(out: Path, kind: str) -> dict[int, float]:
    """The losses of a run by their steps; kind: "train" or "validation". Raises TrainingError: lines that are not such."""
    losses: dict[int, float] = {}
    try:
        for place, text, _ in untrusted.read_lines(out / FILE):
            match _parsed(text):
                case {"kind": str(found), "step": int(step), "loss": int() | float() as loss} if found == kind:
                    losses[step] = loss
                case {"kind": str(found)} if found != kind:
                    pass
                case _:
                    raise TrainingError(f"{place}: is no line of metrics")
    except TextFileError as error:
        raise TrainingError(str(error)) from error
    return losses


def _parsed(text: str) -> Any:
    try:
        return untrusted.parse_json(text, strict=False)  # a loss may be NaN
    except (ValueError, RecursionError):
        return None
