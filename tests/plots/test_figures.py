"""Figures are saved with text as text; colours keep their order in grey and for colour-blind readers; matplotlib is
imported when it is needed, and an error says how to install it."""

import pickle
from pathlib import Path

import forked
import matplotlib
import numpy
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from matplotlib import pyplot

from uwaga import plots
from uwaga.plots import figures as plot_figures

TOKENS = ["unseen", "token"]


def heat():
    return plots.heatmap(torch.rand(2, 2), TOKENS)


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_a_file_has_its_text_as_text_and_the_same_bytes_again(kind: str, tmp_path: Path) -> None:
    before, files = dict(matplotlib.rcParams), [tmp_path / f"{name}.{kind}" for name in "ab"]
    for file in files:
        torch.manual_seed(0)
        figure = heat()
        plots.save(figure, file, dpi=50)
    content = files[0].read_bytes()
    assert content == files[1].read_bytes()
    if kind == "svg":
        assert b">unseen</text>" in content
        assert b"image-rendering:crisp-edges" in content  # cells stay cells at any size
    elif kind == "pdf":  # fonts that publishers take
        assert b"/Type0" in content
        assert b"/Type3" not in content
    else:
        assert int.from_bytes(content[16:20]) == int(figure.get_figwidth() * 50)
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def test_a_figure_is_written_whole_and_follows_no_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "map.svg").symlink_to(mine)
    plots.save(heat(), tmp_path / "map.svg")
    assert (tmp_path / "map.svg").read_text().startswith("<?xml")
    with pytest.raises(ValueError, match="Format 'map' is not supported"):
        plots.save(heat(), tmp_path / "a.map")
    plots.save(heat(), str(tmp_path / "plain"))
    assert mine.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.svg", "mine", "plain.png"]


def test_a_notebook_shows_a_figure_without_pyplot() -> None:
    shown, _ = DisplayFormatter().format(pickle.loads(pickle.dumps(heat())))
    assert shown["image/png"].startswith(b"\x89PNG")


@pytest.mark.slow
def test_matplotlib_is_imported_by_the_first_figure_and_missed_by_name() -> None:
    program = """
import sys, torch, uwaga.plots
[getattr(uwaga.plots, name) for name in uwaga.plots.__all__]
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None
try:
    uwaga.plots.heatmap(torch.rand(2, 2))
except ModuleNotFoundError as error:
    print(error, error.name)
"""
    assert forked.run(program).endswith("pip install 'uwaga[plots]' matplotlib\n")


# Machado, Oliveira & Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), table 1:
# severity 1.0, in linear RGB.
SIGHT = {
    name: numpy.array(matrix).reshape(3, 3)
    for name, matrix in {
        "normal": [1, 0, 0, 0, 1, 0, 0, 0, 1],
        "protanopia": [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
        "deuteranopia": [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881],
        "tritanopia": [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900],
    }.items()
}


def linear(colormap, count: int = 101) -> numpy.ndarray:
    """(count, 3) linear RGB from sRGB."""
    rgb = colormap(numpy.linspace(0, 1, count))[:, :3]
    return numpy.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lightness(linear_rgb: numpy.ndarray) -> numpy.ndarray:
    """CIE L*, 0 to 100."""
    y = linear_rgb @ numpy.array([0.2126, 0.7152, 0.0722])
    return numpy.where(y > (6 / 29) ** 3, 116 * numpy.cbrt(y) - 16, y * (29 / 3) ** 3)


def test_equal_steps_of_a_weight_are_equal_steps_of_lightness() -> None:
    result = lightness(linear(plot_figures.sequential()))
    assert result[0] == pytest.approx(100, abs=0.1)
    # 9 anchors of 8 bits a channel, and straight lines in sRGB between them: two units of L* in a hundred.
    numpy.testing.assert_allclose(result, numpy.linspace(result[0], result[-1], len(result)), atol=2.0)


@pytest.mark.parametrize("sight", SIGHT)
def test_every_eye_sees_that_more_is_darker_and_tells_the_signs_apart(sight: str) -> None:
    of_weights, seen = (
        (linear(colors) @ SIGHT[sight].T).clip(0, 1) for colors in (plot_figures.sequential(), plot_figures.diverging())
    )
    half = len(seen) // 2
    below, above = seen[:half][::-1], seen[half + 1 :]
    for side in (of_weights, below, above):
        assert (numpy.diff(lightness(side)) < 0).all()
    # From a fifth of the scale on, the two sides differ in more than lightness: in red against blue, or in red against
    # green for those who see no blue.
    opposed = abs((below[:, 0] - below[:, 2]) - (above[:, 0] - above[:, 2])) + abs(below[:, 0] - above[:, 0])
    assert opposed[half // 5 :].min() > 0.1
