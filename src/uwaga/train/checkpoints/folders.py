"""The folders of a run: their names, which is the last and which the best, and which of them may go."""

import os
import re
from pathlib import Path

from uwaga._base import durable, untrusted
from uwaga._base.durable import atomic_replace, fsync
from uwaga._base.errors import CheckpointError

LAST, BEST = "last", "best"
STATE = "training.json"
_NAME = re.compile(r"step-([0-9]{6,12})")
# Folders that no reader takes for checkpoints: those that are being written, and those that are being removed.
_UNFINISHED, _GOING = ".unfinished", ".going"
_TAKEN = re.compile(rf"\.{_NAME.pattern}({re.escape(_UNFINISHED)}|{re.escape(_GOING)})")
# The files of a checkpoint. A folder with any other is not removed: something in it is somebody's.
_FILES = re.compile(
    rf"{re.escape(durable.MARK_FILE)}|{re.escape(STATE)}|config\.toml|config\.json|(model|optimizer)\.safetensors"
    r"|(target_)?tokenizer(_config)?\.json"
)


def name(step: int) -> str:
    """
    >>> name(123)
    'step-000123'
    """
    return f"step-{step:06d}"


def unfinished(out: Path, step: int) -> Path:
    """Where a checkpoint is written before it takes its name."""
    return out / f".{name(step)}{_UNFINISHED}"


def begin(out: Path, step: int) -> Path:
    """The unfinished folder. Raises PathConflictError."""
    folder = unfinished(out, step)
    durable.create_marked_folder(folder)
    return folder


def drop(out: Path, step: int) -> None:
    """Remove the unfinished folder."""
    durable.remove_folder(unfinished(out, step), _FILES)


def finish(out: Path, step: int) -> Path:
    """Give the unfinished folder its name: all its files and the name itself are on the disk afterwards.

    Raises PathConflictError: there is a folder of that name which is not a checkpoint, or has files of somebody else.
    """
    written, final = unfinished(out, step), out / name(step)
    for file in written.iterdir():
        fsync(file)
    # Of a run that was stopped before it was the last one.
    if os.path.lexists(final) and not _remove(final):
        raise durable.PathConflictError(final, "it has other files than those of a checkpoint; move it away")
    fsync(written)
    durable.rename_folder(written, final)
    durable.unmark_folder(final)
    fsync(out)
    return final


def point(out: Path, which: str, step: int) -> None:
    """Say that this is the last, or the best, checkpoint."""
    with atomic_replace(out / which) as file:
        file.write(f"{name(step)}\n".encode())


def pointed(out: Path, which: str) -> Path | None:
    """The last, or the best, checkpoint; None where there is none. Raises CheckpointError."""
    found = named(out, which)
    if found is not None and not (out / found).is_dir():
        raise CheckpointError(f"{out / which} names {found}, and there is no such folder in {out}")
    return None if found is None else out / found


def named(out: Path, which: str) -> str | None:
    """The name in that file; None where there is no file. Raises CheckpointError: it is not the name of a checkpoint."""
    file = out / which
    try:
        with untrusted.open_regular(file) as opened:
            text = opened.read(64)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    found = text.decode("ascii", "replace").strip()
    if not _NAME.fullmatch(found):
        raise CheckpointError(f"{file} must name a checkpoint such as {name(100)}, not {found!a}")
    return found


def steps(out: Path) -> list[int]:
    """Of all checkpoints there are, rising."""
    found = [_NAME.fullmatch(path.name) for path in out.iterdir()] if out.is_dir() else []
    return sorted(int(match[1]) for match in found if match)


def prune(out: Path, last: int, keep: int, best: int | None) -> None:
    """Remove all checkpoints up to `last` but so many of the last ones, the best, and those with files of somebody else."""
    there = [step for step in steps(out) if step <= last]
    for step in there[: max(len(there) - keep, 0)]:
        if step != best:
            _remove(out / name(step))


def clear(out: Path) -> None:
    """Remove what a process that was killed left half written or half removed."""
    for path in out.glob(".step-*"):
        if _TAKEN.fullmatch(path.name):
            durable.remove_folder(path, _FILES)
    durable.remove_temporary(out, LAST, BEST)


def _remove(folder: Path) -> bool:
    """By another name first, so that no folder with a checkpoint's name lacks a file; False: it is not ours alone."""
    if not durable.contains_only(folder, _FILES) or not (folder / STATE).exists():
        return False
    going = folder.with_name(f".{folder.name}{_GOING}")
    durable.mark_folder(folder)
    durable.rename_folder(folder, going)
    return durable.remove_folder(going, _FILES)
