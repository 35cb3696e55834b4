"""Figures are drawn without a display, and the numbers are the same every time."""

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'uwaga[plots]'")

import matplotlib

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """For every test here."""
