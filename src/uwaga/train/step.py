"""The model as it is trained (with loss and optimizer, compiled, distributed), and one optimizer step."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from uwaga.models.transformer import Transformer
from uwaga.train import checkpoint, seeds
from uwaga.train.config import Config, OptimizerConfig, ScheduleConfig
from uwaga.train.corpus import MicroBatch, Split
from uwaga.train.model import Objective
from uwaga.train.parallel import World, distribute_like, full_tensor, local_tensor, replicate, set_gradient_sync, shard

_MOMENTS = ("exp_avg", "exp_avg_sq")  # PyTorch's names of the two moving averages of gradients


class StepResult(NamedTuple):
    """What a step measured. Its tensors are on the device, where reading them waits for the computation."""

    step: int  # from 0
    loss: Tensor  # () float64, the mean over all labels of the step
    grad_norm: Tensor  # () before clipping
    local_losses: Tensor  # (micro-batches of this process,) float32, the sum over the labels of each
    lr: float
    tokens: int  # read by all processes
    micro_batches: Sequence[MicroBatch]  # of this process


class TrainableModel:
    """A model with its loss and its optimizer, compiled and distributed as the configuration says.

    Args:
        model: with all weights, on the CPU, the same in every process; it is used in place.
        config, world: of the training run.
        fsdp: each process keeps a shard of the weights, instead of all of them.

    Attributes:
        model: as it was given.
        objective: the model with its loss, for evaluation.
        module: the same, wrapped for training.
        optimizer: of the weights.
        autocast: makes a context of optimizer.dtype for a forward pass.
    """

    def __init__(self, model: Transformer, config: Config, world: World, *, fsdp: bool = False) -> None:
        self._config, self._world, self._is_sharded = config, world, fsdp
        self.model: Transformer = model.to(world.device)
        self.objective = Objective(self.model, config.optimizer.label_smoothing)
        if config.run.compile:
            _compile(self.objective, by_layer=fsdp)
        self.module = (shard if fsdp else replicate)(self.objective, world)
        self.optimizer = Optimizer(self.model, config.optimizer)
        # In bfloat16 products of matrices are, sums and norms are not.
        is_float32 = config.optimizer.dtype == "float32"
        self.autocast = nullcontext if is_float32 else partial(torch.autocast, world.device.type, torch.bfloat16)

    def full_model(self) -> Transformer | None:
        """The model with all its weights, in the first process; None in the others, which must call this too."""
        if not self._is_sharded:
            return self.model if self._world.is_first else None
        gathered = {name: full_tensor(weight).detach().cpu() for name, weight in self.model.state_dict().items()}
        if not self._world.is_first:
            return None
        with torch.device("meta"):
            copy = Transformer(self.model.config)
        copy.load_state_dict(gathered, assign=True)
        return copy

    def load_optimizer(self, folder: Path, steps: int) -> None:
        """The optimizer state of a checkpoint, after so many steps. Raises CheckpointError."""
        self.optimizer.load(checkpoint.read_optimizer(folder, self.optimizer.shapes()), steps)

    def step(self, number: int, data: Split) -> StepResult:
        """Take optimizer step `number`, from 0, on the training split. The loss is the sum over all labels of the step, in whichever
        process, divided by their number; the gradient is that of this loss."""
        world, every = self._world, data.micro_batches(number)
        local = every[world.data_rank :: world.data_size]
        inputs, counts = [], torch.zeros(2, dtype=torch.int64)
        for micro_batch in local:
            batch = data.batch(micro_batch).part(world.context_rank, world.context)
            arguments, scored = batch.inputs(world.device)
            inputs.append((micro_batch.number, batch.first_token, arguments))
            counts += torch.tensor([scored, batch.tokens])
        labels, tokens = world.all_reduce_sum(counts).tolist()

        # FSDP2 needs as many passes in every process.
        if missing := -(-len(every) // world.data_size) - len(local):
            nothing = data.batch(every[0]).part(world.context_rank, world.context).without_labels()
            inputs += [(every[0].number, nothing.first_token, nothing.inputs(world.device)[0])] * missing
        losses = []
        # DistributedDataParallel and FSDP2 average gradients over processes, and the sum is wanted.
        factor = world.size / max(labels, 1)
        for place, (micro_number, first_token, arguments) in enumerate(inputs, start=1):
            seeds.set_seed(world.device, "dropout", self._config.run.seed, number, micro_number)
            set_gradient_sync(self.module, place == len(inputs))
            with world.attention_of_parts(first_token):
                with self.autocast():
                    total = self.module(*arguments)
                (total * factor).backward()
            losses.append(total.detach())
        local_losses = torch.stack(losses)
        loss = world.all_reduce_sum(local_losses.double().sum()) / max(labels, 1)
        ratio = lr_ratio(number, self._config.schedule)
        norm = self.optimizer.step(ratio)
        return StepResult(number, loss, norm, local_losses, self._config.optimizer.lr * ratio, tokens, local)


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


# The optimizer.


def lr_ratio(step: int, schedule: ScheduleConfig) -> float:
    """The learning rate of a step, counted from 0, divided by the full learning rate.

    It rises linearly over the warm-up steps and reaches 1 with the last of them; then it falls, by half a cosine or linearly,
    and reaches `final_lr_ratio` with the last step of all.

    >>> schedule = ScheduleConfig(steps=5, warmup_steps=2, kind="linear", final_lr_ratio=0.1)
    >>> [round(lr_ratio(step, schedule), 3) for step in range(5)]
    [0.5, 1.0, 0.7, 0.4, 0.1]
    """
    done = step + 1
    if done < schedule.warmup_steps:
        return done / schedule.warmup_steps
    if schedule.kind == "constant":
        return 1.0
    # Without a warm-up the first step is the one at the full rate.
    first = max(schedule.warmup_steps, 1)
    progress = (done - first) / max(schedule.steps - first, 1)
    left = 0.5 * (1.0 + math.cos(math.pi * progress)) if schedule.kind == "cosine" else 1.0 - progress
    return schedule.final_lr_ratio + (1.0 - schedule.final_lr_ratio) * left


class Optimizer:
    """AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) with clipping by the global norm.

    Matrices decay; norms and biases do not. This calls PyTorch's function without its optimizer class, which would import the
    compiler (seconds) and inspect every weight in each step.

    Args:
        model: its parameters are changed in place; they may be distributed.
        config: the section [optimizer].
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self._config = config
        self._named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._moments = {
            f"{moment}/{name}": torch.zeros_like(weight, memory_format=torch.preserve_format)
            for moment in _MOMENTS
            for name, weight in self._named.items()
        }
        self._updates = self._grouped(0)

    @torch.no_grad()
    def step(self, lr_ratio: float) -> Tensor:
        """Update the weights, at this ratio of the full learning rate, and drop the gradients.

        Returns:
            () the global norm of the gradient before it was clipped.
        """
        norm = self._clip_gradients()
        for weights, update in self._updates:
            update(grads=[local_tensor(_gradient(weight)) for weight in weights], lr=self._config.lr * lr_ratio)
        for weight in self._named.values():
            weight.grad = None
        return norm

    def _clip_gradients(self) -> Tensor:
        gradients = [_gradient(weight) for weight in self._named.values()]
        norm = full_tensor(torch.nn.utils.get_total_norm(gradients))
        if self._config.max_grad_norm:
            # As clip_grad_norm_ does, with a norm that every process has.
            factor = torch.clamp(self._config.max_grad_norm / (norm + 1e-6), max=1.0)
            if norm.device.type == "cpu" and factor.item() == 1.0:  # on a CPU, reading it does not wait for a device
                return norm
            torch._foreach_mul_(list(map(local_tensor, gradients)), factor)
        return norm

    def _grouped(self, steps: int) -> list[tuple[list[Tensor], Callable[..., None]]]:
        """Weights with one weight decay, which may be distributed, as their gradients are; and the function that updates their local
        parts. steps: that were taken."""
        groups: list[tuple[list[Tensor], Callable[..., None]]] = []
        for weight_decay, is_matrix in ((self._config.weight_decay, True), (0.0, False)):
            named = {name: weight for name, weight in self._named.items() if (weight.dim() > 1) == is_matrix}
            exp_avgs, exp_avg_sqs = (
                [local_tensor(self._moments[f"{moment}/{name}"]) for name in named] for moment in _MOMENTS
            )
            local = [local_tensor(weight.detach()) for weight in named.values()]
            update = partial(
                adamw,
                local,
                exp_avgs=exp_avgs,
                exp_avg_sqs=exp_avg_sqs,
                max_exp_avg_sqs=[],
                state_steps=[torch.tensor(float(steps), device=each.device) for each in local],
                fused=True,
                amsgrad=False,
                beta1=self._config.betas[0],
                beta2=self._config.betas[1],
                weight_decay=weight_decay,
                eps=self._config.eps,
                maximize=False,
            )
            if named:
                groups.append((list(named.values()), update))
        return groups

    # Its state.

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what `state` has, in its order, by names such as exp_avg/layers.0..."""
        return {name: tuple(value.shape) for name, value in self._moments.items()}

    def state(self, *, wanted: bool = True) -> dict[str, Tensor]:
        """The moments by name, gathered, on the CPU.

        Where tensors are distributed, every process must call this; with wanted=False it takes part and returns an empty dict.
        """
        results: dict[str, Tensor] = {}
        for name, value in self._moments.items():
            gathered = full_tensor(value)
            if wanted:
                results[name] = gathered.detach().cpu()
        return results

    def load(self, state: Mapping[str, Tensor], steps: int) -> None:
        """Continue after so many steps with the moments that `state` returned."""
        self._moments = {name: distribute_like(state[name], value) for name, value in self._moments.items()}
        self._updates = self._grouped(steps)


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None, "every weight has a part in the loss"
    return weight.grad
