"""What stops a training: numbers that are none. The message says where to look, and what to go on from."""

import math
from collections.abc import Sequence
from pathlib import Path

from uwaga.train.checkpoints import folders
from uwaga.train.data.batch import Micro
from uwaga.train.distributed import World
from uwaga.train.errors import TrainingError
from uwaga.train.step import Taken

_MOST_ROWS = 12


def check(pending: Sequence[Taken], world: World, out: Path) -> None:
    """The losses and gradients of these steps are numbers. All processes must ask. Raises TrainingError."""
    for taken in pending:
        loss, norm = taken.loss.item(), taken.norm.item()
        if math.isfinite(loss) and math.isfinite(norm):
            continue
        if not math.isfinite(loss):
            what = f"the loss is {loss}"
            own = [
                micro for micro, each in zip(taken.micros, taken.own.tolist(), strict=False) if not math.isfinite(each)
            ]
        else:
            what, own = f"the norm of the gradient is {norm}, and the loss {loss:.4f}", list(taken.micros)
        micros = sorted((micro for each in world.all(own) for micro in each), key=lambda micro: micro.number)
        where = "; ".join(map(_described, micros))
        raise TrainingError(f"step {taken.step + 1}: {what}, of {where}; {last_good(out)}")


def last_good(out: Path) -> str:
    """What there is to go on from, in words."""
    found = folders.pointed(out, folders.LAST)
    return "there is no checkpoint yet" if found is None else f"the last good checkpoint is {found}"


def _described(micro: Micro) -> str:
    rows = ", ".join(map(str, micro.rows[:_MOST_ROWS]))
    more = f" and {len(micro.rows) - _MOST_ROWS} more" if len(micro.rows) > _MOST_ROWS else ""
    return f"micro-batch {micro.number} (rows {rows}{more} of epoch {micro.epoch})"
