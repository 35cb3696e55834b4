"""Figures become files whose text is text; matplotlib is imported when it is needed, and its absence explained."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from uwaga import plots

TOKENS = ["unseen", "token"]


def heat():
    return plots.heatmap(torch.rand(2, 2), TOKENS)


def fresh(program: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_svg_keeps_text_as_text(tmp_path: Path) -> None:
    plots.save(heat(), tmp_path / "map.svg")
    text = (tmp_path / "map.svg").read_text()
    assert ">unseen</text>" in text
    assert "image-rendering:crisp-edges" in text  # cells stay cells at any size


def test_pdf_embeds_fonts_that_publishers_take(tmp_path: Path) -> None:
    plots.save(heat(), tmp_path / "map.pdf")
    content = (tmp_path / "map.pdf").read_bytes()
    assert b"/Type0" in content
    assert b"/Type3" not in content


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_the_same_figure_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.{kind}" for name in "ab"]
    for file in files:
        torch.manual_seed(0)
        plots.save(heat(), file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_png_has_the_dots_that_were_asked_for(tmp_path: Path) -> None:
    figure = heat()
    plots.save(figure, str(tmp_path / "map.png"), dpi=50)
    header = (tmp_path / "map.png").read_bytes()[16:20]
    assert int.from_bytes(header) == int(figure.get_figwidth() * 50)


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


def test_saving_leaves_the_settings_of_others_alone(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.save(heat(), tmp_path / "map.svg")
    assert dict(matplotlib.rcParams) == before


def test_drawing_registers_nothing_with_pyplot() -> None:
    from matplotlib import pyplot

    heat()
    assert pyplot.get_fignums() == []


def test_importing_plots_does_not_import_matplotlib() -> None:
    program = "import sys, uwaga.plots as p; [getattr(p, n) for n in p.__all__]; print('matplotlib' in sys.modules)"
    assert fresh(program) == "False"


def test_without_matplotlib_the_error_names_the_extra() -> None:
    program = """
import sys, torch, uwaga.plots
sys.modules["matplotlib"] = None
try:
    uwaga.plots.heatmap(torch.rand(2, 2))
except ModuleNotFoundError as error:
    print(error, error.name)
"""
    assert (
        fresh(program) == "uwaga.plots needs matplotlib, which is not installed: pip install 'uwaga[plots]' matplotlib"
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError) as caught:
        plots.heatmaps  # noqa: B018
    assert str(caught.value) == "module 'uwaga.plots' has no attribute 'heatmaps'"
    assert dir(plots) == ["arcs", "head_grid", "head_matrix", "heatmap", "save"]
