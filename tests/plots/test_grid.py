"""Grids show every head of every layer."""

import numpy
import pytest
import torch

import uwaga
from uwaga import plots
from uwaga.maps.map import AttentionMap


def some_map(*batch: int, tokens: int = 5) -> AttentionMap:
    x = torch.randn(*batch, tokens, 4)
    return AttentionMap(x, x, mask=uwaga.Causal())


def panels(figure) -> list:
    return [ax for ax in figure.axes if ax.images and ax.get_label() != "<colorbar>"]


def test_a_row_per_layer_and_a_column_per_head() -> None:
    maps = {("decoder", 0): some_map(2, 3), 1: some_map(2, 3)}
    found = panels(plots.head_grid(maps, sequence=1))
    assert len(found) == 6
    for at, ax in enumerate(found):
        m = list(maps.values())[at // 3]
        numpy.testing.assert_allclose(ax.images[0].get_array(), m[1, at % 3].double().numpy())
    assert [ax.get_title() for ax in found] == ["head 0", "head 1", "head 2", "", "", ""]
    assert [ax.get_ylabel() for ax in found] == ["decoder 0", "", "", "layer 1", "", ""]


def test_the_heads_of_one_layer_are_wrapped() -> None:
    found = panels(plots.head_grid(some_map(8)))
    assert [ax.get_title() for ax in found] == [f"head {head}" for head in range(8)]
    assert found[6].get_subplotspec().rowspan.start == 1


def test_layers_may_have_different_numbers_of_heads() -> None:
    assert len(panels(plots.head_grid([some_map(1), torch.rand(3, 5, 5)]))) == 4


def test_large_maps_are_drawn_from_their_pool() -> None:
    m = some_map(2, tokens=70)
    found = panels(plots.head_grid(m, how="max"))
    numpy.testing.assert_allclose(found[1].images[0].get_array(), m.pool(64, 64, how="max").weights[1].double().numpy())


def test_a_ragged_batch_is_drawn_by_its_sequence() -> None:
    x = uwaga.Ragged.from_list([torch.randn(n, 2, 4) for n in (3, 5)])
    assert panels(plots.head_grid(AttentionMap(x, x), sequence=1))[0].images[0].get_array().shape == (5, 5)


def test_one_scale_for_all_or_one_each() -> None:
    weights = torch.tensor([[[0.1]], [[0.8]]])
    shared = plots.head_grid(weights)
    assert [ax.images[0].norm.vmax for ax in panels(shared)] == pytest.approx([0.8, 0.8])
    assert len(shared.axes) > len(plots.head_grid(weights, shared=False).axes)
    assert [ax.images[0].norm.vmax for ax in panels(plots.head_grid(weights, shared=False))] == pytest.approx(
        [0.1, 0.8]
    )


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ([], "head_grid: there are no maps to draw"),
        (torch.rand(5, 5), "head_grid: at must pick one matrix of the weights (5, 5), and () does not"),
    ],
)
def test_what_cannot_be_drawn_says_why(maps, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        plots.head_grid(maps)
    assert str(caught.value) == message
