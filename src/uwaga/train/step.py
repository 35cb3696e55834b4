"""One step of training: the micro-batches of a step forward and backward, and the weights changed."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from uwaga.train import schedule, seeds
from uwaga.train.config import Config
from uwaga.train.data.batch import IGNORED, Batch, Micro
from uwaga.train.data.corpus import Split
from uwaga.train.distributed import World
from uwaga.train.optimizer import Optimizer


class Taken(NamedTuple):
    """A step that was taken; its tensors are on the device, where reading them would wait for it."""

    step: int  # from 0
    loss: Tensor  # () float64, the mean over all labels of the step
    norm: Tensor  # () of the gradient, before clipping
    own: Tensor  # (micro-batches of this process,) float32, their sums
    rate: float  # learning rate
    tokens: int  # read by all processes
    micros: Sequence[Micro]  # of this process


class Given(NamedTuple):
    """A batch as the objective takes it."""

    arguments: tuple[Any, ...]
    scored: int
    tokens: int


def given(batch: Batch, device: torch.device) -> Given:
    """On the device, with the labels that count."""
    labels = batch.labels
    counted = (labels != IGNORED).nonzero().flatten()
    places = None
    if len(counted) < len(labels):
        labels, places = labels[counted], counted
    on = batch.to(device) if device.type != "cpu" else batch
    moved = (labels.to(device), None if places is None else places.to(device))
    return Given((on.ids, on.decoder_ids, *moved), len(counted), batch.tokens)


def blank(batch: Batch) -> Batch:
    """The same without a label: for a process that has no batch where others have."""
    return Batch(ids=batch.ids, decoder_ids=batch.decoder_ids, labels=torch.full_like(batch.labels, IGNORED))


class Steps:
    """Takes steps.

    Args:
        module: the objective, as it is distributed and compiled.
        optimizer: of its weights.
        data: the training side.
        config, world: of the training.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer, data: Split, config: Config, world: World) -> None:
        self._module, self._optimizer, self._data = module, optimizer, data
        self._config, self._world = config, world

    def take(self, step: int) -> Taken:
        """Step number `step`, from 0: the loss is the sum over all labels of the step by their number, whichever process
        has them, and so is its gradient."""
        world, every = self._world, self._data.step(step)
        micros = world.share(every)
        ready = [given(self._data.batch(micro), world.device) for micro in micros]
        counts = torch.tensor([sum(each.scored for each in ready), sum(each.tokens for each in ready)])
        labels, tokens = world.total(counts).tolist()

        # FSDP2 asks everybody for as many passes.
        missing = -(-len(every) // world.size) - len(micros)
        ready += [given(blank(self._data.batch(every[0])), world.device)] * missing
        sums = self._backward(step, [*micros, *[every[0]] * missing], ready, max(labels, 1))
        loss = world.total(sums.double().sum()) / max(labels, 1)
        share = schedule.share(step, self._config.schedule)
        norm = self._optimizer.step(share)
        return Taken(step, loss, norm, sums, self._config.optimizer.lr * share, tokens, micros)

    def _backward(self, step: int, micros: Sequence[Micro], ready: Sequence[Given], labels: int) -> Tensor:
        """The sums of the micro-batches' losses, with the gradient of their mean in the weights."""
        sums = []
        # DistributedDataParallel and FSDP2 give the mean over processes, and the sum is wanted.
        factor = self._world.size / labels
        for place, (micro, each) in enumerate(zip(micros, ready, strict=True)):
            self._sync(place == len(ready) - 1)
            seeds.set_seed(seeds.seed("dropout", self._config.run.seed, step, micro.number), self._world.device)
            with self.arithmetic():
                total = self._module(*each.arguments)
            (total * factor).backward()
            sums.append(total.detach())
        return torch.stack(sums)

    def arithmetic(self) -> Any:
        """float32, or bfloat16 where that loses little: products of matrices, not sums and norms."""
        if self._config.optimizer.dtype == "float32":
            return nullcontext()
        return torch.autocast(self._world.device.type, torch.bfloat16)

    def _sync(self, is_last: bool) -> None:
        """Whether the next backward pass shares its gradients: once a step is enough."""
        if isinstance(self._module, DistributedDataParallel):
            self._module.require_backward_grad_sync = is_last
        elif hasattr(self._module, "set_requires_gradient_sync"):
            cast(Any, self._module).set_requires_gradient_sync(is_last)
