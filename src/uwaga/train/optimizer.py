"""AdamW over a model's weights, and its state by the names of these weights."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from uwaga.train.distributed import own, spread_like, whole
from uwaga.train.sections import OptimizerConfig

_KINDS = ("exp_avg", "exp_avg_sq")  # PyTorch's names of the two means


class Moment(NamedTuple):
    """One mean of one weight."""

    name: str  # exp_avg/layers.0...
    shape: tuple[int, ...]


class _Group(NamedTuple):
    """Weights that decay alike; the tensors are those that this process has."""

    decay: float
    weights: list[Tensor]  # may be distributed: their gradients are
    own: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    counts: list[Tensor]  # () float32 each: steps taken, as PyTorch counts them


class Optimizer:
    """AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) with clipping by the global norm.

    Weights decay where they are matrices: norms and biases do not. PyTorch's own function, without the class around it,
    which would import its compiler, some seconds, and look at every weight anew in each step.

    Args:
        model: its parameters are changed; they may be distributed.
        config: of the optimizer.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self._config = config
        self._named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._weights: list[Tensor] = list(self._named.values())
        self._state = {
            f"{kind}/{name}": torch.zeros_like(weight, memory_format=torch.preserve_format)
            for kind in _KINDS
            for name, weight in self._named.items()
        }
        self._groups = self._grouped(0)

    @torch.no_grad()
    def step(self, share: float) -> Tensor:
        """Change the weights at this share of the learning rate, and forget the gradients.

        Returns:
            () the norm of the gradient before it was clipped.
        """
        norm, (first, second) = self._clipped(), self._config.betas
        for group in self._groups:
            adamw(
                group.own,
                [own(_gradient(weight)) for weight in group.weights],
                group.means,
                group.squares,
                [],
                group.counts,
                fused=True,
                amsgrad=False,
                beta1=first,
                beta2=second,
                lr=self._config.lr * share,
                weight_decay=group.decay,
                eps=self._config.eps,
                maximize=False,
            )
        for weight in self._weights:
            weight.grad = None
        return norm

    def _clipped(self) -> Tensor:
        gradients = [_gradient(weight) for weight in self._weights]
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        if self._config.max_grad_norm:
            # As clip_grad_norm_ does, with a norm that every process has.
            factor = torch.clamp(self._config.max_grad_norm / (norm + 1e-6), max=1.0)
            if norm.device.type == "cpu" and factor.item() == 1.0:  # where reading it waits for nobody
                return norm
            torch._foreach_mul_(list(map(own, gradients)), factor)
        return norm

    def _grouped(self, steps: int) -> list[_Group]:
        found = []
        for decay, is_matrix in ((self._config.weight_decay, True), (0.0, False)):
            named = {name: weight for name, weight in self._named.items() if (weight.dim() > 1) == is_matrix}
            parts = [[own(self._state[f"{kind}/{name}"]) for name in named] for kind in _KINDS]
            weights: list[Tensor] = list(named.values())
            mine = [own(weight.detach()) for weight in weights]
            counts = [torch.tensor(float(steps), device=each.device) for each in mine]
            found.append(_Group(decay, weights, mine, parts[0], parts[1], counts))
        return [group for group in found if group.weights]

    # Its state.

    def moments(self) -> Iterator[Moment]:
        """What `state` has, in its order."""
        for name, value in self._state.items():
            yield Moment(name, tuple(value.shape))

    def state(self, *, wanted: bool = True) -> dict[str, Tensor]:
        """The means by names, whole, on the CPU; every process must ask, and those that do not want it get nothing."""
        found: dict[str, Tensor] = {}
        for name, value in self._state.items():
            all_of_it = whole(value)
            if wanted:
                found[name] = all_of_it.detach().cpu()
        return found

    def load(self, state: Mapping[str, Tensor], steps: int) -> None:
        """Go on after so many steps with the means that `state` gave."""
        self._state = {name: spread_like(state[name], value) for name, value in self._state.items()}
        self._groups = self._grouped(steps)


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None, "every weight has a part in the loss"
    return weight.grad
