"""Losses of caches are drawn by their budget, under the right names."""

import numpy
import torch
from matplotlib.figure import Figure

from uwaga.inspect import CacheStudy
from uwaga.plots import cache_budgets

NAMES = ("kept", "forgotten", "limit", "error", "overlap")


def study(policies: list[str], heads: int = 2) -> CacheStudy:
    generator = torch.Generator().manual_seed(0)
    means = {name: torch.rand(len(policies), 3, heads, generator=generator, dtype=torch.float64) for name in NAMES}
    return CacheStudy(
        policies=policies, budgets=[8, 16, 32], heads=[(1, head) for head in range(heads)], prompts=[4], queries=4, levels=(),
        means=means, quantiles={},
    )  # fmt: skip


def lines(figure: Figure, panel: int) -> dict[str, numpy.ndarray]:
    return {line.get_label(): line.get_xydata() for line in figure.axes[panel].lines}


def test_a_line_for_each_policy_and_a_panel_for_each_head() -> None:
    result = study(["window", "oracle", "h2o"])
    figure = cache_budgets(result, "error", heads=[(1, 1), (1, 0)])
    assert [ax.get_title() for ax in figure.axes] == ["layer 1, head 1", "layer 1, head 0"]
    assert set(lines(figure, 0)) == {"window", "h2o", "oracle"}
    for policy, points in lines(figure, 0).items():
        numpy.testing.assert_array_equal(points[:, 0], [8, 16, 32])
        numpy.testing.assert_array_equal(points[:, 1], result.mean("error", policy)[:, 1])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["window", "h2o", "oracle"]
    assert figure.get_supxlabel() == "budget of keys"
    assert figure.get_supylabel() == "error of the output"


def test_by_the_keys_that_were_read_with_heads_as_those_of_json() -> None:
    result = study(["snap_kv"])
    figure = cache_budgets(result, "forgotten", by="kept", heads=[[1, 1], [1, 0]])
    assert [ax.get_title() for ax in figure.axes] == ["layer 1, head 1", "layer 1, head 0"]
    numpy.testing.assert_array_equal(lines(figure, 0)["snap_kv"][:, 0], result.mean("kept", "snap_kv")[:, 1])
    assert figure.get_supxlabel() == "keys read"


def test_every_line_is_inside_the_panels() -> None:
    result = study(["window", "oracle"])
    result.means["error"][1, 0, 1] = 7.0
    figure = cache_budgets(result, "error", heads=[(1, 0), (1, 1)])
    low, high = figure.axes[0].get_ylim()
    assert (low, high > 7) == (0, True)


def test_the_heads_that_lose_the_most_come_first() -> None:
    result = study(["window"], heads=20)
    figure = cache_budgets(result)
    lost = result.means["forgotten"].mean((0, 1))
    expected = [f"layer 1, head {int(head)}" for head in lost.argsort(descending=True)[:12]]
    assert [ax.get_title() for ax in figure.axes] == expected
