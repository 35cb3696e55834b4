"""AdamW over a model's weights, with its state by the names of these weights, and the learning rate schedule."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from uwaga.train.config import OptimizerConfig, ScheduleConfig
from uwaga.train.parallel import distribute_like, full_tensor, local_tensor

_MOMENTS = ("exp_avg", "exp_avg_sq")  # PyTorch's names of the two moving averages


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


class Moment(NamedTuple):
    """One moving average of one weight's gradients."""

    name: str  # exp_avg/layers.0...
    shape: tuple[int, ...]


class _ParameterGroup(NamedTuple):
    """Weights with one weight decay; all tensors but `weights` are local to this process."""

    weight_decay: float
    weights: list[Tensor]  # may be distributed: their gradients are
    local_weights: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    steps: list[Tensor]  # () float32 each: steps taken, as PyTorch counts them


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
        self._weights: list[Tensor] = list(self._named.values())
        self._state = {
            f"{moment}/{name}": torch.zeros_like(weight, memory_format=torch.preserve_format)
            for moment in _MOMENTS
            for name, weight in self._named.items()
        }
        self._groups = self._grouped(0)

    @torch.no_grad()
    def step(self, lr_ratio: float) -> Tensor:
        """Update the weights, at this ratio of the full learning rate, and drop the gradients.

        Returns:
            () the global norm of the gradient before it was clipped.
        """
        norm, (beta1, beta2) = self._clip_gradients(), self._config.betas
        for group in self._groups:
            adamw(
                group.local_weights,
                [local_tensor(_gradient(weight)) for weight in group.weights],
                group.exp_avgs,
                group.exp_avg_sqs,
                [],
                group.steps,
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=self._config.lr * lr_ratio,
                weight_decay=group.weight_decay,
                eps=self._config.eps,
                maximize=False,
            )
        for weight in self._weights:
            weight.grad = None
        return norm

    def _clip_gradients(self) -> Tensor:
        gradients = [_gradient(weight) for weight in self._weights]
        norm = full_tensor(torch.nn.utils.get_total_norm(gradients))
        if self._config.max_grad_norm:
            # As clip_grad_norm_ does, with a norm that every process has.
            factor = torch.clamp(self._config.max_grad_norm / (norm + 1e-6), max=1.0)
            if norm.device.type == "cpu" and factor.item() == 1.0:  # on a CPU, reading it does not wait for a device
                return norm
            torch._foreach_mul_(list(map(local_tensor, gradients)), factor)
        return norm

    def _grouped(self, steps: int) -> list[_ParameterGroup]:
        values = []
        for weight_decay, is_matrix in ((self._config.weight_decay, True), (0.0, False)):
            named = {name: weight for name, weight in self._named.items() if (weight.dim() > 1) == is_matrix}
            moments = [[local_tensor(self._state[f"{moment}/{name}"]) for name in named] for moment in _MOMENTS]
            weights: list[Tensor] = list(named.values())
            local = [local_tensor(weight.detach()) for weight in weights]
            counts = [torch.tensor(float(steps), device=each.device) for each in local]
            values.append(_ParameterGroup(weight_decay, weights, local, moments[0], moments[1], counts))
        return [group for group in values if group.weights]

    # Its state.

    def moments(self) -> Iterator[Moment]:
        """Names and shapes of what `state` has, in its order."""
        for name, value in self._state.items():
            yield Moment(name, tuple(value.shape))

    def state(self, *, wanted: bool = True) -> dict[str, Tensor]:
        """The moments by name, gathered, on the CPU.

        Where tensors are distributed, every process must call this; with wanted=False it takes part and returns an empty dict.
        """
        results: dict[str, Tensor] = {}
        for name, value in self._state.items():
            gathered = full_tensor(value)
            if wanted:
                results[name] = gathered.detach().cpu()
        return results

    def load(self, state: Mapping[str, Tensor], steps: int) -> None:
        """Continue after so many steps with the moments that `state` returned."""
        self._state = {name: distribute_like(state[name], value) for name, value in self._state.items()}
        self._groups = self._grouped(steps)


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None, "every weight has a part in the loss"
    return weight.grad
