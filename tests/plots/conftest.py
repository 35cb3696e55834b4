"""Figures are drawn without a display, and the numbers are the same every time."""

import pytest
import torch

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'uwaga[plots]'")

import matplotlib

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)
