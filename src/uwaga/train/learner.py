"""A model in training: with its loss and its optimizer, compiled, and in one process or over several."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from uwaga.train import distributed
from uwaga.train.checkpoints import files
from uwaga.train.config import Config
from uwaga.train.distributed import World
from uwaga.train.model import empty_model
from uwaga.train.objective import Objective
from uwaga.train.optimizer import Optimizer


class Learner:
    """What learns.

    Args:
        model: whole, on the CPU, the same in every process; it is taken over.
        config, world: of the training.
        fsdp: each process keeps its share of the weights, instead of all of them.

    Attributes:
        objective: the loss, for evaluation.
        module: the same as training calls it.
        optimizer: of the weights.
    """

    def __init__(self, model: nn.Module, config: Config, world: World, *, fsdp: bool = False) -> None:
        self._world, self._is_sharded = world, fsdp
        self._model = model.to(world.device)
        self.objective = Objective(self._model, config.optimizer.label_smoothing)
        if config.run.compile:
            _compile(self.objective, by_layer=fsdp)
        make = distributed.sharded if fsdp else distributed.replicated
        self.module = make(self.objective, world)
        self.optimizer = Optimizer(self._model, config.optimizer)

    def whole(self) -> nn.Module | None:
        """The model with all its weights, in the first process; None in the others, which must ask too."""
        if not self._is_sharded:
            return self._model if self._world.is_first else None
        gathered = {name: distributed.whole(weight).detach().cpu() for name, weight in self._model.state_dict().items()}
        if not self._world.is_first:
            return None
        with torch.device("meta"):
            copy = empty_model(cast(Any, self._model).config)
        copy.load_state_dict(gathered, assign=True)
        return copy

    def go_on(self, checkpoint: Path, steps: int) -> None:
        """With the optimizer's means of a checkpoint. Raises CheckpointError."""
        self.optimizer.load(files.read_optimizer(checkpoint, self.optimizer.moments()), steps)


def _compile(objective: Objective, *, by_layer: bool) -> None:
    """In place. FSDP2 gathers weights between layers, where one graph of all of them would have to be cut.

    The second batch of another size makes the graph anew for all sizes. Asked to do so at once, the compiler would take the
    scale of the scores for such a size too, which attention cannot check then.
    """
    if not by_layer:
        objective.compile()
        return
    for module in objective.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                layer.compile()
