"""Heat maps, grids of heads and head matrices show the values that are there, under the right labels."""

from itertools import pairwise

import numpy
import pytest
import torch
from matplotlib.figure import Figure

import uwaga
from uwaga import plots
from uwaga.inspect.heads.table import HeadTable
from uwaga.maps.derived import DifferenceMap
from uwaga.maps.map import AttentionMap
from uwaga.nn import MultiHeadAttention

TOKENS = ["[CLS]", "▁the", "$5", "cost$", "\n"]


def some_map(*batch: int, tokens: int = 5) -> AttentionMap:
    x = torch.randn(*batch, tokens, 4)
    return AttentionMap(x, x, mask=uwaga.Causal())


def drawn(figure: Figure) -> numpy.ndarray:
    return figure.axes[0].images[0].get_array().filled(numpy.nan)


def labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def ragged_map() -> AttentionMap:
    x = uwaga.Ragged.from_list([torch.randn(n, 2, 4) for n in (3, 5)])
    return AttentionMap(x, x)


@pytest.mark.parametrize(
    ("m", "at"),
    [(some_map(2, 3), (1, 2)), (ragged_map(), (1, 0)), (some_map(1, 1), ()), (torch.rand(1, 5, 5), ())],
    ids=["dense", "ragged", "of one head", "tensor of one head"],
)
def test_it_draws_the_weights_of_one_head(m: AttentionMap | torch.Tensor, at: tuple[int, ...]) -> None:
    figure = plots.heatmap(m, TOKENS, at=at)
    numpy.testing.assert_allclose(drawn(figure), m[at].double().numpy().reshape(5, 5))
    assert figure.axes[0].get_xlabel() == "key"
    assert figure.axes[0].get_ylabel() == "query"
    assert figure.axes[1].get_ylabel() == "weight"


def test_every_token_is_written_as_it_can_be_read() -> None:
    ax = plots.heatmap(some_map(), TOKENS).axes[0]
    expected = ["[CLS]", "the", "$5", "cost$", "\\n"]
    assert labels(ax.yaxis) == expected
    assert labels(ax.xaxis) == expected
    assert not any(label.get_parse_math() for label in ax.get_xticklabels())
    ax = plots.heatmap(torch.rand(2, 5), ["a", "b"], key_tokens=TOKENS).axes[0]
    assert (labels(ax.yaxis), labels(ax.xaxis)) == (["a", "b"], expected)


def test_many_tokens_are_thinned_until_they_do_not_overlap() -> None:
    tokens = [f"t{i}" for i in range(250)]
    figure = plots.heatmap(some_map(tokens=250), tokens)
    figure.draw_without_rendering()
    for axis, along in ((figure.axes[0].xaxis, "x"), (figure.axes[0].yaxis, "y")):
        shown = [label for label in axis.get_ticklabels() if label.get_text()]
        assert 20 < len(shown) < 250
        assert labels(axis)[1] == f"t{int(axis.get_ticklocs()[1])}"
        edges = sorted(
            (getattr(box, f"{along}0"), getattr(box, f"{along}1")) for box in (x.get_window_extent() for x in shown)
        )
        assert all(before[1] <= after[0] for before, after in pairwise(edges))


def test_a_large_map_is_drawn_from_its_pool_in_the_coordinates_of_its_tokens() -> None:
    m = some_map(1, tokens=300)
    figure = plots.heatmap(m, [str(i) for i in range(300)])
    numpy.testing.assert_allclose(drawn(figure), m.pool(256, 256).weights[0].double().numpy())
    assert figure.axes[0].images[0].get_extent() == [-0.5, 299.5, 299.5, -0.5]
    assert figure.axes[1].get_ylabel() == "weight on the keys of a cell"
    assert all(
        label == "" or float(label.replace("\N{MINUS SIGN}", "-")) % 1 == 0 for label in labels(figure.axes[0].xaxis)
    )


def test_large_maps_of_other_kinds_are_pooled_by_reading_them() -> None:
    left, right = some_map(2, tokens=1000), some_map(2, tokens=1000)
    result = drawn(plots.heatmap(DifferenceMap(left, right), at=1))
    edges = (torch.arange(257) * 1000 // 256).tolist()
    for i, j in ((0, 0), (119, 3), (255, 255)):
        place = (1, slice(*edges[i : i + 2]), slice(*edges[j : j + 2]))
        cell = (left[place] - right[place]).double()
        assert result[i, j] == pytest.approx(float(cell.sum(1).mean()), abs=1e-12)


def image_of(*rows: list[float]):
    return plots.heatmap(torch.tensor(rows)).axes[0].images[0]


def test_zero_is_white_and_the_largest_weight_is_darkest() -> None:
    image = plots.heatmap(some_map()).axes[0].images[0]
    assert image.norm.vmin == 0.0
    assert image.norm.vmax == pytest.approx(1.0)
    assert tuple(image.cmap(image.norm(0.0)))[:3] == (1.0, 1.0, 1.0)
    assert image_of([0.0, 0.0]).norm.vmax == 1.0
    below = image_of([0.0, -0.5], [0.2, 0.0])  # weights below zero have their own colour
    assert (below.norm.vmin, below.norm.vmax) == (-0.5, 0.5)
    red, _, blue, _ = below.cmap(below.norm(-0.5))
    assert red > blue
    assert min(below.cmap(below.norm(0.0))) > 0.99
    with_nan = image_of([0.25, torch.nan], [0.5, 0.0])
    assert with_nan.norm.vmax == 0.5
    assert with_nan.cmap.get_bad()[0] < 0.8


def test_a_heatmap_is_drawn_into_given_axes() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plots.heatmap(some_map(), ax=right) is figure
    assert [len(ax.images) for ax in (left, right)] == [0, 1]


def panels(figure) -> list:
    return [ax for ax in figure.axes if ax.images and ax.get_label() != "<colorbar>"]


def test_a_row_per_layer_and_a_column_per_head() -> None:
    maps = {("decoder", 0): some_map(2, 3), 1: some_map(2, 3)}
    result = panels(plots.head_grid(maps, sequence=1))
    assert len(result) == 6
    for at, ax in enumerate(result):
        m = list(maps.values())[at // 3]
        numpy.testing.assert_allclose(ax.images[0].get_array(), m[1, at % 3].double().numpy())
    assert [ax.get_title() for ax in result] == ["head 0", "head 1", "head 2", "", "", ""]
    assert [ax.get_ylabel() for ax in result] == ["decoder 0", "", "", "layer 1", "", ""]


def test_panels_of_any_number_kind_and_size() -> None:
    wrapped = panels(plots.head_grid(some_map(8)))
    assert [ax.get_title() for ax in wrapped] == [f"head {head}" for head in range(8)]
    assert wrapped[6].get_subplotspec().rowspan.start == 1
    assert len(panels(plots.head_grid([some_map(1), torch.rand(3, 5, 5)]))) == 4
    large = some_map(2, tokens=70)
    image = panels(plots.head_grid(large))[1].images[0].get_array()
    numpy.testing.assert_allclose(image, large.pool(64, 64).weights[1].double().numpy())
    assert panels(plots.head_grid(ragged_map(), sequence=1))[0].images[0].get_array().shape == (5, 5)


def test_all_panels_have_one_scale_on_which_small_weights_show() -> None:
    norms = [ax.images[0].norm for ax in panels(plots.head_grid(torch.tensor([[[0.1]], [[0.8]]])))]
    assert [norm.vmax for norm in norms] == pytest.approx([0.8, 0.8])
    assert [float(norm(0.2)) for norm in norms] == pytest.approx([0.5, 0.5])


TABLE = HeadTable(
    columns={
        "layer": ["a", "a", ("b", 0)],
        "head": [0, 1, 0],
        "sink": [0.1, 0.25, 0.9],
        "previous_token": [0.0, 1.0, 0.5],
    }
)


def test_it_draws_the_statistic_of_every_head() -> None:
    (ax,) = panels(plots.head_matrix(TABLE, "previous_token"))
    image = ax.images[0].get_array()
    numpy.testing.assert_allclose(image[:, 0], [0.0, 0.5])
    assert image.mask.tolist() == [[False, False], [False, True]] or numpy.isnan(image[1, 1])
    assert ax.get_title() == "previous token"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b 0"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")
    both = panels(plots.head_matrix(TABLE, ["sink", "previous_token"]))
    assert [ax.get_title() for ax in both] == ["sink", "previous token"]


def test_changed_heads_show_before_after_and_the_difference() -> None:
    recordings = []
    for letters in ("abc", "abd"):
        with uwaga.watch(layer := MultiHeadAttention(8, 2), tokens=list(letters)) as recording:
            layer(torch.randn(1, 3, 8))
        recordings.append(recording)
    figure = plots.changed_heads(*recordings, top=1)
    shown = [ax for ax in figure.axes if ax.get_title()]
    assert [labels(ax.yaxis) for ax in shown] == [list("abc"), list("abd"), list("abd")]
    head = int(shown[0].get_title()[len("encoder 0, head ")])
    assert [ax.get_title() for ax in shown[:2]] == [f"encoder 0, head {head}\nbefore", "after"]
    assert shown[2].get_title().startswith("after minus before\nchanged by 0.")
    dense = [recording.maps["encoder", 0][0, head].detach().double().numpy() for recording in recordings]
    results = [ax.images[0].get_array().filled(numpy.nan) for ax in shown]
    for one, expected in zip(results, (*dense, dense[1] - dense[0]), strict=True):
        numpy.testing.assert_allclose(one, expected, atol=1e-7)
