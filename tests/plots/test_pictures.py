"""Attention over a picture shows the weights that are there, where they are.

Letters: H heads, I rows and J columns of patches.
"""

import numpy
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import uwaga
from uwaga import AttentionMap, plots
from uwaga.inspect import PatchGrid

GRID = PatchGrid(rows=2, columns=3, special=("[CLS]", "[REG 0]"), patch_size=(8, 8))
PICTURE = numpy.linspace(0, 1, 16 * 24 * 3).reshape(16, 24, 3)


def some_map(*batch: int, heads: int = 3) -> AttentionMap:
    x = torch.randn(*batch, heads, 8, 4, generator=torch.Generator().manual_seed(0))
    return AttentionMap(x, x)


def overlays(figure: Figure) -> list[numpy.ndarray]:
    """What is drawn over the picture: of the mean, then of each head."""
    return [numpy.asarray(ax.images[1].get_array()) for ax in figure.axes if len(ax.images) == 2]


def test_the_mean_is_large_and_every_head_small() -> None:
    m = some_map(1)
    mean, *heads = overlays(plots.patch_attention(PICTURE, m, GRID, (1, 2)))
    expected_HIJ = GRID.looks_at(m, (1, 2)).double().numpy()
    numpy.testing.assert_allclose(mean, expected_HIJ.mean(0))
    numpy.testing.assert_allclose(heads, expected_HIJ)


def test_one_image_of_a_batch() -> None:
    m = some_map(2)
    figure = plots.patch_attention(PICTURE, m, GRID, 0, index=1)
    expected_HIJ = GRID.looks_at(m, 0, picture=1).double().numpy()
    numpy.testing.assert_allclose(overlays(figure), [expected_HIJ.mean(0), *expected_HIJ])
    titles = [ax.get_title().partition("\n")[0] for ax in figure.axes if ax.get_title()]
    assert titles == ["where [CLS] looks, mean of 3 heads", "head 0", "head 1", "head 2"]


def test_one_head_is_drawn_once_and_the_patch_is_framed() -> None:
    m = some_map(heads=1)
    figure = plots.patch_attention(PICTURE, m, GRID, (1, 0))
    ax = figure.axes[0]
    assert len(overlays(figure)) == 1
    assert {(frame.get_x(), frame.get_y()) for frame in ax.patches} == {(0, 1)}
    first, shares = ax.get_title().split("\n")
    assert first == "where patch (1, 0) looks, head 0"
    on_HS = GRID.on_special(m, (1, 0))
    assert shares == f"[CLS] {float(on_HS[0, 0]):.2f}, [REG 0] {float(on_HS[0, 1]):.2f}"
    assert not plots.patch_attention(PICTURE, some_map(), GRID, 1).axes[0].patches  # a register is in no place


def test_a_map_of_one_head_and_a_word_that_looks() -> None:
    x = torch.randn(9, 4)
    in_text = PatchGrid(rows=1, columns=3, start=2)
    figure = plots.patch_attention(PICTURE, AttentionMap(x, x, mask=uwaga.Causal()), in_text, 8)
    assert figure.axes[0].get_title() == "where token 8 looks, head 0"
    assert [overlay.shape for overlay in overlays(figure)] == [(1, 3)]


@pytest.mark.parametrize(
    "picture",
    [
        torch.ones(3, 16, 24),
        torch.ones(1, 16, 24),
        numpy.full((16, 24), 255, dtype=numpy.uint8),
        numpy.full((16, 24, 4), 255, dtype=numpy.uint8),
        torch.ones(3, 16, 24, dtype=torch.bfloat16),
        *(Image.new("RGB", (24, 16), "white").convert(mode) for mode in ("1", "LA", "P", "CMYK")),
    ],
    ids=lambda picture: getattr(picture, "mode", f"{tuple(getattr(picture, 'shape', ()))}"),
)
def test_every_kind_of_picture(picture: object) -> None:
    shown = plots.patch_attention(picture, some_map(), GRID, 0).axes[0].images[0].get_array()
    assert shown.shape[:2] == (16, 24)
    numpy.testing.assert_allclose(shown, 1.0)


def test_a_token_from_the_end_is_the_same_token() -> None:
    for query, title in ((-1, "where patch (1, 2) looks, "), (torch.tensor(-7), "where [REG 0] looks, ")):
        one, other = (plots.patch_attention(PICTURE, some_map(), GRID, at).axes[0] for at in (query, int(query) + 8))
        assert one.get_title() == other.get_title()
        assert one.get_title().startswith(title)
        assert [frame.get_xy() for frame in one.patches] == [frame.get_xy() for frame in other.patches]
