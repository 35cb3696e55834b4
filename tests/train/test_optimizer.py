"""AdamW, gradient clipping, saving and loading the optimizer state, and the learning rate schedule."""

import pytest
import torch
from torch import nn

from uwaga.train.config import OptimizerConfig, ScheduleConfig
from uwaga.train.step import Optimizer, lr_ratio


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def backward(net: nn.Module, number: int) -> None:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))
    net(x).square().sum().backward()


def test_it_equals_adamw_of_pytorch_with_weight_decay_of_matrices_only() -> None:
    net, peer = model(), model()
    ours = Optimizer(net, OptimizerConfig(lr=0.1, weight_decay=0.5, max_grad_norm=1.0))
    matrices, rest = ([w for w in peer.parameters() if (w.dim() > 1) == is_matrix] for is_matrix in (True, False))
    theirs = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.5}, {"params": rest, "weight_decay": 0.0}], lr=0.1, betas=(0.9, 0.95)
    )
    for step, share in enumerate((0.5, 1.0, 0.25)):
        backward(net, step)
        backward(peer, step)
        expected = nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        for group in theirs.param_groups:
            group["lr"] = 0.1 * share
        theirs.step()
        theirs.zero_grad()
        torch.testing.assert_close(ours.step(share), expected)
    for a, b in zip(net.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(a, b)
        assert a.grad is None


def test_max_grad_norm_of_zero_does_not_clip() -> None:
    net = model()
    ours = Optimizer(net, OptimizerConfig(max_grad_norm=0.0))
    backward(net, 0)
    expected = torch.stack([w.grad.norm() for w in net.parameters() if w.grad is not None]).norm()
    torch.testing.assert_close(ours.step(1.0), expected)


# The learning rate schedule.


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kind": "cosine", "steps": 3, "warmup_steps": 1, "final_lr_ratio": 0.2}, [1.0, 0.6, 0.2]),
        ({"kind": "linear", "steps": 3, "warmup_steps": 1, "final_lr_ratio": 0.2}, [1.0, 0.6, 0.2]),
        ({"kind": "constant", "steps": 4, "warmup_steps": 2}, [0.5, 1.0, 1.0, 1.0]),
        ({"kind": "linear", "steps": 3, "final_lr_ratio": 0.0}, [1.0, 0.5, 0.0]),
        ({"kind": "cosine", "steps": 4, "warmup_steps": 4}, [0.25, 0.5, 0.75, 1.0]),
        *(({"kind": kind, "steps": 1}, [1.0]) for kind in ("cosine", "linear", "constant")),
    ],
)
def test_the_rates_of_a_schedule(settings: dict[str, object], expected: list[float]) -> None:
    schedule = ScheduleConfig(**settings)  # type: ignore[arg-type]
    assert [lr_ratio(step, schedule) for step in range(schedule.steps)] == pytest.approx(expected)
