"""Calls of figures that raise."""

from pathlib import Path

import numpy
import torch
from matplotlib.figure import Figure

from uwaga import AttentionMap, Recording, plots
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


def animated(folder: Path, maps: object, **options: object) -> None:
    try:
        plots.animate(maps, folder / "a.gif", **options)
    finally:
        assert not list(folder.iterdir())


CALLS = {
    "uwaga.plots: unknown name": lambda: plots.heat_map,
    "animate: no maps": lambda folder: animated(folder, []),
    "animate: layers of one map": lambda folder: animated(folder, MAP, at=0),
    "animate: queries of several maps": lambda folder: animated(folder, [MAP], over="queries"),
    "animate: over something else": lambda folder: animated(folder, [MAP], over="time"),
    "animate: no seconds": lambda folder: animated(folder, [MAP], seconds=0),
    "animate: maps of different sizes": lambda folder: animated(folder, [MAP, AttentionMap(torch.ones(2, 3, 4), torch.ones(2, 3, 4))], at=0),
    "animate: a head past the end": lambda folder: animated(folder, [MAP], at=7),
    "animate: too many frames": lambda folder: animated(folder, [MAP] * 1001, at=0),
    "animate: an empty recording": lambda folder: animated(folder, Recording()),
    "animate: a kind that a recording lacks": lambda folder: animated(folder, Recording(), kind="cross"),
    "arcs: unknown layout": lambda: plots.arcs(WEIGHTS, WORDS, layout="ring"),
    "arcs: labels of fewer queries": lambda: plots.arcs(WEIGHTS, WORDS[:2]),
    "arcs: a line with more keys": lambda: plots.arcs(WEIGHTS[:2], WORDS[:2]),
    "arcs: labels of fewer keys": lambda: plots.arcs(WEIGHTS[:2], WORDS[:2], layout="columns"),
    "arcs: too many tokens": lambda: plots.arcs(torch.zeros(129, 129), WORDS),
    "arcs: several matrices": lambda: plots.arcs(WEIGHTS.expand(2, 3, 3), WORDS),
    "cache_budgets: unknown statistic": lambda: plots.cache_budgets(STUDY, statistic="loss"),
    "cache_budgets: by something else": lambda: plots.cache_budgets(STUDY, by="time"),
    "cache_budgets: another head": lambda: plots.cache_budgets(STUDY, heads=[(0, 9)]),
    "cache_budgets: a head without a layer": lambda: plots.cache_budgets(STUDY, heads=[9]),
    "cache_budgets: no heads": lambda: plots.cache_budgets(STUDY, heads=[]),
    "changed_heads: no top": lambda: plots.changed_heads({("a", 0): MAP}, {("a", 0): MAP}, top=0),
    "head_grid: no maps": lambda: plots.head_grid([]),
    "head_grid: one matrix": lambda: plots.head_grid(torch.rand(5, 5)),
    "head_matrix: two statistics on one pair of axes": lambda: plots.head_matrix(TABLE, ["sink", "previous_token"], ax=Figure().add_subplot()),
    "head_matrix: unknown statistic": lambda: plots.head_matrix(TABLE, "peak"),
    "heatmap: labels of fewer queries": lambda: plots.heatmap(MAPS, WORDS, at=(0, 0)),
    "heatmap: labels of fewer keys": lambda: plots.heatmap(MAPS, key_tokens=WORDS, at=(0, 0)),
    "heatmap: one index of two": lambda: plots.heatmap(MAPS, at=0),
    "heatmap: three indices of two": lambda: plots.heatmap(MAPS, at=(0, 0, 0)),
    "heatmap: unknown pooling": lambda: plots.heatmap(MAPS, at=(0, 0), pooling="mean"),
    "heatmap: gamma 0": lambda: plots.heatmap(MAPS, at=(0, 0), gamma=0.0),
    "patch_attention: numbers below 0": lambda: patches(PICTURE - 1),
    "patch_attention: seven colours": lambda: patches(numpy.zeros((16, 24, 7))),
    "patch_attention: another head": lambda: patches(heads=[3]),
    "patch_attention: no heads": lambda: patches(heads=[]),
    "patch_attention: another patch": lambda: patches(query=(2, 0)),
}  # fmt: skip
