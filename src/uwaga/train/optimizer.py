"""AdamW over a model's weights, and its state by the names of these weights."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uwaga.train.distributed import own, spread_like, whole
from uwaga.train.sections import OptimizerConfig

_KINDS = ("exp_avg", "exp_avg_sq")  # PyTorch's names of the two means


class Moment(NamedTuple):
    """One mean of one weight."""

    name: str  # exp_avg/layers.0...
    shape: tuple[int, ...]


class Optimizer:
    """AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) with clipping by the global norm.

    Weights decay where they are matrices: norms and biases do not.

    Args:
        model: its parameters are changed; they may be distributed.
        config: of the optimizer.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self._config = config
        self._named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        weights = list(self._named.values())
        groups = [
            {"params": [w for w in weights if w.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [w for w in weights if w.dim() <= 1], "weight_decay": 0.0},
        ]
        first, second = config.betas
        self._adam = torch.optim.AdamW(groups, lr=config.lr, betas=(first, second), eps=config.eps, fused=True)

    def step(self, share: float) -> Tensor:
        """Change the weights at this share of the learning rate, and forget the gradients.

        Returns:
            () the norm of the gradient before it was clipped.
        """
        norm = self._clipped()
        for group in self._adam.param_groups:
            group["lr"] = self._config.lr * share
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return norm

    def _clipped(self) -> Tensor:
        gradients = [weight.grad for weight in self._named.values() if weight.grad is not None]
        found = torch.nn.utils.get_total_norm(gradients)
        norm = whole(found)
        if self._config.clip:
            # As clip_grad_norm_ does, with a norm that every process has.
            factor = torch.clamp(self._config.clip / (norm + 1e-6), max=1.0)
            torch._foreach_mul_(list(map(own, gradients)), factor)
        return norm

    # Its state.

    def moments(self) -> Iterator[Moment]:
        """What `state` has, in its order."""
        for kind in _KINDS:
            for name, weight in self._named.items():
                yield Moment(f"{kind}/{name}", tuple(weight.shape))

    def state(self, *, wanted: bool = True) -> dict[str, Tensor]:
        """The means by names, whole, on the CPU; every process must ask, and those that do not want it get nothing."""
        found: dict[str, Tensor] = {}
        for kind in _KINDS:
            for name, weight in self._named.items():
                value = self._adam.state[weight].get(kind, torch.zeros_like(weight))
                all_of_it = whole(value)
                if wanted:
                    found[f"{kind}/{name}"] = all_of_it.detach().cpu()
        return found

    def load(self, state: Mapping[str, Tensor], steps: int) -> None:
        """Go on after so many steps with the means that `state` gave."""
        for name, weight in self._named.items():
            # As a fused step keeps it: a number per weight, beside it.
            count = torch.tensor(float(steps), device=weight.device)
            means = {kind: spread_like(state[f"{kind}/{name}"], weight) for kind in _KINDS}
            self._adam.state[weight] = {"step": count, **means}
