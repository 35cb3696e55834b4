"""Figures are drawn without a display, and the numbers are the same every time."""

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'uwaga[plots]'")

import matplotlib

matplotlib.use("agg")
