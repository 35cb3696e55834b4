"""TensorBoard, where it is asked for."""

from collections.abc import Mapping
from pathlib import Path

from uwaga.train.errors import TrainingError


class Board:
    """Scalars for TensorBoard, in a folder of the run.

    Args:
        out: the run's folder.
        step: what was told of later steps is forgotten: a training goes on from here.

    Raises:
        TrainingError: tensorboard is not installed.
    """

    def __init__(self, out: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TrainingError("run.tensorboard needs tensorboard: pip install 'uwaga[train]'") from error
        self._writer = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
