"""The folders of a run: their names, which is the last and which the best, and which of them may go."""

import re
import shutil
from pathlib import Path

from uwaga._base import reading
from uwaga._base.durable import replacing, sync
from uwaga._base.errors import CheckpointError

LAST, BEST = "last", "best"
_NAME = re.compile(r"step-([0-9]{6,12})")
# Folders that no reader takes for checkpoints: those that are being written, and those that are being removed.
_UNFINISHED, _GOING = ".unfinished", ".going"


def name(step: int) -> str:
    """
    >>> name(123)
    'step-000123'
    """
    return f"step-{step:06d}"


def unfinished(out: Path, step: int) -> Path:
    """Where a checkpoint is written before it takes its name."""
    return out / f".{name(step)}{_UNFINISHED}"


def finish(out: Path, step: int) -> Path:
    """Give the unfinished folder its name: all its files and the name itself are on the disk afterwards."""
    written, final = unfinished(out, step), out / name(step)
    for file in written.iterdir():
        sync(file)
    sync(written)
    if final.exists():  # of a run that was stopped before it was the last one
        _remove(final)
    written.rename(final)
    sync(out)
    return final


def point(out: Path, which: str, step: int) -> None:
    """Say that this is the last, or the best, checkpoint."""
    with replacing(out / which) as file:
        file.write(f"{name(step)}\n".encode())


def pointed(out: Path, which: str) -> Path | None:
    """The last, or the best, checkpoint; None where there is none. Raises CheckpointError."""
    file = out / which
    try:
        with reading.opened(file) as opened:
            text = opened.read(64)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    found = text.decode("ascii", "replace").strip()
    if not _NAME.fullmatch(found):
        raise CheckpointError(f"{file} must name a checkpoint such as {name(100)}, not {found!a}")
    if not (out / found).is_dir():
        raise CheckpointError(f"{file} names {found}, and there is no such folder in {out}")
    return out / found


def steps(out: Path) -> list[int]:
    """Of all checkpoints there are, rising."""
    found = [_NAME.fullmatch(path.name) for path in out.iterdir()] if out.is_dir() else []
    return sorted(int(match[1]) for match in found if match)


def prune(out: Path, last: int, keep: int, best: int | None) -> None:
    """Remove all checkpoints up to `last` but so many of the last ones, and the best."""
    there = [step for step in steps(out) if step <= last]
    for step in there[: max(len(there) - keep, 0)]:
        if step != best:
            _remove(out / name(step))


def clear(out: Path) -> None:
    """Remove what a process that was killed left half written or half removed."""
    for path in out.glob(".step-*"):
        if path.name.endswith((_UNFINISHED, _GOING)):
            shutil.rmtree(path)


def _remove(folder: Path) -> None:
    """By another name first, so that no folder with a checkpoint's name lacks a file."""
    going = folder.with_name(f".{folder.name}{_GOING}")
    folder.rename(going)
    shutil.rmtree(going)
