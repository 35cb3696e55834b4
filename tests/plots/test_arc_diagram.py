"""Arcs join each query with what it reads, thicker for more weight."""

from itertools import pairwise

import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from uwaga import plots
from uwaga.maps.map import AttentionMap

TOKENS = ["a", "b$", "$c"]
WEIGHTS = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.1, 0.4], [0.3, 0.01, 0.69]])


def lines(figure: Figure) -> PathCollection:
    """The arcs; what is not filled."""
    return next(x for x in figure.axes[0].collections if x.get_paths() and not len(x.get_facecolor()))


def dots(figure: Figure) -> PathCollection:
    return next(x for x in figure.axes[0].collections if len(x.get_facecolor()))


def ends(figure: Figure) -> list[tuple[int, int]]:
    return [(round(path.vertices[0][0]), round(path.vertices[-1][0])) for path in lines(figure).get_paths()]


def test_an_arc_for_every_weight_that_is_large_enough_the_strongest_last() -> None:
    """Those that look back are above, those that look ahead below; a weight on itself is a dot; labels are no formulas."""
    figure = plots.arcs(WEIGHTS, TOKENS, threshold=0.05)
    assert ends(figure) == [(2, 0), (1, 2), (1, 0)]
    back, ahead, near = (path.vertices[:, 1] for path in lines(figure).get_paths())
    assert back.max() > 0 > ahead.max()
    assert back[1] > near[1]
    widths = lines(figure).get_linewidths()
    assert list(widths) == sorted(widths)
    assert [round(x) for x, _ in dots(figure).get_offsets()] == [1, 2, 0]
    sizes = dots(figure).get_sizes()
    assert sizes[1] / sizes[2] == pytest.approx(0.69)
    for shown in (figure, plots.arcs(WEIGHTS * 0.01, TOKENS)):  # of which the second has weights too small to show
        assert [text.get_text() for text in shown.axes[0].texts] == TOKENS
        assert not any(text.get_parse_math() for text in shown.axes[0].texts)


@pytest.mark.parametrize("tokens", [12, 60])
def test_labels_keep_clear_of_each_other_and_of_the_arcs(tokens: int) -> None:
    names = [f"token{i}" for i in range(tokens)]
    figure = plots.arcs((torch.randn(tokens, tokens) * 3).softmax(-1), names)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert all(left.x1 <= right.x0 + 1 for left, right in pairwise(boxes))
    feet = {round(figure.axes[0].transData.transform(path.vertices[0])[1]) for path in lines(figure).get_paths()}
    assert len(feet) == 2
    assert min(feet) <= min(box.y0 for box in boxes)
    assert max(feet) >= max(box.y1 for box in boxes)


def test_a_head_of_a_map_is_picked() -> None:
    x = torch.randn(2, 3, 4)
    m = AttentionMap(x, x)
    widths = lines(plots.arcs(m, TOKENS, at=1, threshold=0.0)).get_linewidths()
    between = m[1][~torch.eye(3, dtype=torch.bool)]  # the weight on itself is a dot
    expected = (between / m[1].max()).sort().values
    torch.testing.assert_close((torch.tensor(widths) - 0.3) / 2.7, expected.double())
