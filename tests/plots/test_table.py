"""A statistic of every head as a matrix of layers and heads."""

import numpy
import pytest
from matplotlib.figure import Figure

from uwaga import plots
from uwaga.maps.interpretability.head_table import HeadTable

TABLE = HeadTable(
    columns={
        "layer": ["a", "a", ("b", 0)],
        "head": [0, 1, 0],
        "sink": [0.1, 0.25, 0.9],
        "previous_token": [0.0, 1.0, 0.5],
    }
)


def panels(figure: Figure) -> list:
    return [ax for ax in figure.axes if ax.images and ax.get_label() != "<colorbar>"]


def test_it_draws_the_statistic_of_every_head() -> None:
    (ax,) = panels(plots.head_matrix(TABLE, "previous_token"))
    image = ax.images[0].get_array()
    numpy.testing.assert_allclose(image[:, 0], [0.0, 0.5])
    assert image.mask.tolist() == [[False, False], [False, True]] or numpy.isnan(image[1, 1])
    assert ax.get_title() == "previous token"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b 0"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")


def test_numbers_are_written_where_they_can_be_read() -> None:
    (ax,) = panels(plots.head_matrix(TABLE, "sink"))
    assert [(text.get_text(), text.get_color()) for text in ax.texts] == [
        (".10", "black"),
        (".25", "black"),
        (".90", "white"),
    ]


def test_a_large_table_has_colours_only() -> None:
    table = HeadTable(columns={"layer": [0] * 17, "head": list(range(17)), "sink": [0.5] * 17})
    assert not panels(plots.head_matrix(table, "sink"))[0].texts


def test_several_statistics_stand_side_by_side() -> None:
    found = panels(plots.head_matrix(TABLE, ["sink", "previous_token"]))
    assert [ax.get_title() for ax in found] == ["sink", "previous token"]
    assert found[1].get_subplotspec().rowspan.start == 0


def test_it_draws_into_given_axes() -> None:
    figure = Figure()
    ax = figure.add_subplot()
    assert plots.head_matrix(TABLE, "sink", ax=ax) is figure
    assert ax.images


def test_what_cannot_be_drawn_says_why() -> None:
    with pytest.raises(ValueError) as caught:
        plots.head_matrix(TABLE, ["sink", "previous_token"], ax=Figure().add_subplot())
    assert str(caught.value) == "head_matrix: one pair of axes takes one statistic, not 2"
    with pytest.raises(ValueError) as caught:
        plots.head_matrix(TABLE, "peak")
    assert str(caught.value) == (
        "HeadTable: there is no column 'peak': choose one of layer, head, sink, previous_token"
    )
