"""What the tests of models share: checkpoints that transformers wrote, one thread, the derived tolerance (DESIGN.md)."""

from collections.abc import Callable

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """For every test here."""


@pytest.fixture(scope="session")
def transformers():
    """The oracle."""
    return pytest.importorskip("transformers", reason="transformers is not installed: the extra `test` brings it")


@pytest.fixture(scope="session")
def randomize() -> Callable[[nn.Module], nn.Module]:
    """Every parameter drawn anew: transformers starts biases at 0 and norms at 1, which would hide that two are swapped."""

    def draw(model: nn.Module) -> nn.Module:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        return model.eval()

    return draw
