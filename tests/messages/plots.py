"""Calls of figures that raise."""

import numpy
import torch
from matplotlib.figure import Figure

from uwaga import AttentionMap, plots
from uwaga.inspect import CacheStudy, HeadTable, PatchGrid

WORDS = ["a", "b", "c"]
WEIGHTS = torch.eye(3)
MAP = AttentionMap(torch.eye(4).expand(2, 4, 4), torch.eye(4).expand(2, 4, 4))
MAPS = AttentionMap(torch.ones(2, 3, 5, 4), torch.ones(2, 3, 5, 4))
TABLE = HeadTable(columns={"layer": ["a"], "head": [0], "sink": [0.1], "previous_token": [0.0]})
MEANS = {name: torch.zeros(1, 3, 2) for name in ("kept", "forgotten", "limit", "error", "overlap")}
STUDY = CacheStudy(
    policies=["window"], budgets=[8, 16, 32], heads=[(1, 0), (1, 1)], prompts=[4], queries=4, levels=(), means=MEANS, quantiles={}
)  # fmt: skip
GRID = PatchGrid(rows=2, columns=3, special=("[CLS]", "[REG 0]"), patch_size=(8, 8))
PICTURE = numpy.zeros((16, 24, 3))


def patches(picture: numpy.ndarray = PICTURE, query: tuple[int, int] = (0, 0), **options: object) -> Figure:
    x = torch.ones(3, 8, 4)
    return plots.patch_attention(picture, AttentionMap(x, x), GRID, query, **options)
