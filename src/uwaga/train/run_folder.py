"""The folder of a training run: the names of its checkpoints, which is the last and which the best, and which are removed.

out/step-000123/    a checkpoint, complete: see uwaga.train.checkpoint
out/last, out/best  pointers: the names of two such folders
out/metrics.jsonl   see uwaga.train.metrics.logger
"""

import os
import re
from pathlib import Path

from uwaga._base import durable
from uwaga._base.durable import atomic_replace, fsync
from uwaga.models.checkpoints.directories import BEST, CHECKPOINT_NAME, LAST
from uwaga.models.checkpoints.directories import read_pointer as read_pointer
from uwaga.models.checkpoints.directories import read_pointer_name as read_pointer_name

STATE = "training.json"
# Suffixes of folders that are being written and that are being removed; no reader takes them for checkpoints.
_UNFINISHED, _REMOVED = ".unfinished", ".going"
_LEFTOVER = re.compile(rf"\.{CHECKPOINT_NAME.pattern}({re.escape(_UNFINISHED)}|{re.escape(_REMOVED)})")
# The files of a checkpoint. A folder with any other file is not removed: that file is not ours.
_FILES = re.compile(
    rf"{re.escape(durable.MARK_FILE)}|{re.escape(STATE)}|config\.toml|config\.json|(model|optimizer)\.safetensors"
    r"|(target_)?tokenizer(_config)?\.json"
)


def checkpoint_name(step: int) -> str:
    """
    >>> checkpoint_name(123)
    'step-000123'
    """
    return f"step-{step:06d}"


def unfinished_path(out: Path, step: int) -> Path:
    """The folder in which a checkpoint is written before it gets its name."""
    return out / f".{checkpoint_name(step)}{_UNFINISHED}"


def begin_checkpoint(out: Path, step: int) -> Path:
    """Create the unfinished folder and return it. Raises PathConflictError."""
    folder = unfinished_path(out, step)
    durable.create_marked_folder(folder)
    return folder


def discard_unfinished(out: Path, step: int) -> None:
    """Remove the unfinished folder."""
    durable.remove_folder(unfinished_path(out, step), _FILES)


def finish_checkpoint(out: Path, step: int) -> Path:
    """Rename the unfinished folder to its checkpoint's name; the files and the name are synced to the disk.

    Raises PathConflictError: a folder of that name exists that is no checkpoint, or has other files beside.
    """
    written, final = unfinished_path(out, step), out / checkpoint_name(step)
    for file in written.iterdir():
        fsync(file)
    # A run that was killed before it updated the pointers has left a checkpoint of this step.
    if os.path.lexists(final) and not _remove(final):
        raise durable.PathConflictError(final, "it has other files than those of a checkpoint; move it away")
    fsync(written)
    durable.rename_folder(written, final)
    durable.unmark_folder(final)
    fsync(out)
    return final


def write_pointer(out: Path, which: str, step: int) -> None:
    """Name the last or the best checkpoint; which: LAST or BEST."""
    with atomic_replace(out / which) as file:
        file.write(f"{checkpoint_name(step)}\n".encode())


def checkpoint_steps(out: Path) -> list[int]:
    """The steps of all checkpoints of a run, ascending."""
    results = [CHECKPOINT_NAME.fullmatch(path.name) for path in out.iterdir()] if out.is_dir() else []
    return sorted(int(match[1]) for match in results if match)


def prune(out: Path, last: int, keep: int, best: int | None) -> None:
    """Remove the checkpoints up to step `last`, except the newest `keep`, the best, and those with other files beside."""
    present = [step for step in checkpoint_steps(out) if step <= last]
    for step in present[: max(len(present) - keep, 0)]:
        if step != best:
            _remove(out / checkpoint_name(step))


def remove_leftovers(out: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    for path in out.glob(".step-*"):
        if _LEFTOVER.fullmatch(path.name):
            durable.remove_folder(path, _FILES)
    durable.remove_temporary(out, LAST, BEST)


def _remove(folder: Path) -> bool:
    """Whether the folder was removed: not if it holds other files. It is renamed first, so that a checkpoint's name always stands
    for a complete folder."""
    if not durable.contains_only(folder, _FILES) or not (folder / STATE).exists():
        return False
    removed = folder.with_name(f".{folder.name}{_REMOVED}")
    durable.mark_folder(folder)
    durable.rename_folder(folder, removed)
    return durable.remove_folder(removed, _FILES)
