"""The model as it is trained (with loss and optimizer, compiled, distributed), and one optimizer step."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from uwaga.models.transformer import Transformer
from uwaga.train import checkpoint, parallel, seeds
from uwaga.train.config import Config
from uwaga.train.data.batch import IGNORED, Batch, MicroBatch, moved
from uwaga.train.data.corpus import Split
from uwaga.train.objective import Objective
from uwaga.train.optimizer import Optimizer, lr_ratio
from uwaga.train.parallel import World


class TrainableModel:
    """A model with its loss and its optimizer, compiled and distributed as the configuration says.

    Args:
        model: with all weights, on the CPU, the same in every process; it is used in place.
        config, world: of the training run.
        fsdp: each process keeps a shard of the weights, instead of all of them.

    Attributes:
        objective: the model with its loss, for evaluation.
        module: the same, wrapped for training.
        optimizer: of the weights.
    """

    def __init__(self, model: Transformer, config: Config, world: World, *, fsdp: bool = False) -> None:
        self._world, self._is_sharded = world, fsdp
        self._model = model.to(world.device)
        self.objective = Objective(self._model, config.optimizer.label_smoothing)
        if config.run.compile:
            _compile(self.objective, by_layer=fsdp)
        wrap = parallel.shard if fsdp else parallel.replicate
        self.module = wrap(self.objective, world)
        self.optimizer = Optimizer(self._model, config.optimizer)

    def full_model(self) -> Transformer | None:
        """The model with all its weights, in the first process; None in the others, which must call this too."""
        if not self._is_sharded:
            return self._model if self._world.is_first else None
        gathered = {
            name: parallel.full_tensor(weight).detach().cpu() for name, weight in self._model.state_dict().items()
        }
        if not self._world.is_first:
            return None
        with torch.device("meta"):
            copy = Transformer(cast(Any, self._model).config)
        copy.load_state_dict(gathered, assign=True)
        return copy

    def load_optimizer(self, folder: Path, steps: int) -> None:
        """The optimizer state of a checkpoint, after so many steps. Raises CheckpointError."""
        self.optimizer.load(checkpoint.read_optimizer(folder, self.optimizer.moments()), steps)


def _compile(objective: Objective, *, by_layer: bool) -> None:
    """In place. With FSDP2 layer by layer: it gathers weights between layers, where a graph of the whole model would break.

    The second batch of another size recompiles the graph for all sizes. With dynamic=True from the start, the compiler would
    make the scale of the scores symbolic too, which attention cannot check then.
    """
    if not by_layer:
        objective.compile()
        return
    for module in objective.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                layer.compile()


class StepResult(NamedTuple):
    """What a step measured. Its tensors are on the device, where reading them waits for the computation."""

    step: int  # from 0
    loss: Tensor  # () float64, the mean over all labels of the step
    grad_norm: Tensor  # () before clipping
    local_losses: Tensor  # (micro-batches of this process,) float32, the sum over the labels of each
    lr: float
    tokens: int  # read by all processes
    micro_batches: Sequence[MicroBatch]  # of this process


class ObjectiveInputs(NamedTuple):
    """A batch as the arguments of `Objective.forward`."""

    arguments: tuple[Any, ...]
    scored: int  # labels that count
    tokens: int
    first_token: int  # see Batch


def objective_inputs(batch: Batch, device: torch.device) -> ObjectiveInputs:
    """A batch on the device, with the labels that count."""
    labels = batch.labels
    counted = (labels != IGNORED).nonzero().flatten()
    positions = None
    if len(counted) < len(labels):
        labels, positions = labels[counted], counted
    there = batch.to(device) if device.type != "cpu" else batch
    targets = (moved(labels, device), None if positions is None else moved(positions, device))
    return ObjectiveInputs((there.ids, there.decoder_ids, *targets), len(counted), batch.tokens, batch.first_token)


def without_labels(batch: Batch) -> Batch:
    """The same batch without a label, for a process that has no batch where the others have one."""
    return replace(batch, labels=torch.full_like(batch.labels, IGNORED))


class StepRunner:
    """Runs optimizer steps.

    Args:
        module: the objective, wrapped for training.
        optimizer: of its weights.
        data: the training split.
        config, world: of the training run.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer, data: Split, config: Config, world: World) -> None:
        self._module, self._optimizer, self._data = module, optimizer, data
        self._config, self._world = config, world

    def run(self, step: int) -> StepResult:
        """Step number `step`, from 0. The loss is the sum over all labels of the step, in whichever process, divided by their
        number; the gradient is that of this loss."""
        world, every = self._world, self._data.micro_batches(step)
        local = world.shard(every)
        inputs = [objective_inputs(world.part(self._data.batch(x)), world.device) for x in local]
        counts = torch.tensor([sum(each.scored for each in inputs), sum(each.tokens for each in inputs)])
        labels, tokens = world.all_reduce_sum(counts).tolist()

        # FSDP2 needs as many passes in every process.
        missing = -(-len(every) // world.data_size) - len(local)
        if missing:
            nothing = without_labels(world.part(self._data.batch(every[0])))
            inputs += [objective_inputs(nothing, world.device)] * missing
        losses = self._backward(step, [*local, *[every[0]] * missing], inputs, max(labels, 1))
        loss = world.all_reduce_sum(losses.double().sum()) / max(labels, 1)
        ratio = lr_ratio(step, self._config.schedule)
        norm = self._optimizer.step(ratio)
        return StepResult(step, loss, norm, losses, self._config.optimizer.lr * ratio, tokens, local)

    def _backward(
        self, step: int, micro_batches: Sequence[MicroBatch], inputs: Sequence[ObjectiveInputs], labels: int
    ) -> Tensor:
        """(micro-batches,) the sums of their losses; the weights get the gradient of the total divided by `labels`."""
        losses = []
        # DistributedDataParallel and FSDP2 average gradients over processes, and the sum is wanted.
        factor = self._world.size / labels
        for place, (micro_batch, each) in enumerate(zip(micro_batches, inputs, strict=True)):
            self._set_gradient_sync(place == len(inputs) - 1)
            seed = seeds.derive_seed("dropout", self._config.run.seed, step, micro_batch.number)
            seeds.set_seed(seed, self._world.device)
            with self._world.attention_of_parts(each.first_token):
                with self.autocast():
                    total = self._module(*each.arguments)
                (total * factor).backward()
            losses.append(total.detach())
        return torch.stack(losses)

    def autocast(self) -> Any:
        """A context of optimizer.dtype: in bfloat16 products of matrices are, sums and norms are not."""
        if self._config.optimizer.dtype == "float32":
            return nullcontext()
        return torch.autocast(self._world.device.type, torch.bfloat16)

    def _set_gradient_sync(self, is_last: bool) -> None:
        """Whether the next backward pass averages gradients over the processes: only the last one of a step does."""
        if isinstance(self._module, DistributedDataParallel):
            self._module.require_backward_grad_sync = is_last
        elif hasattr(self._module, "set_requires_gradient_sync"):
            cast(Any, self._module).set_requires_gradient_sync(is_last)
