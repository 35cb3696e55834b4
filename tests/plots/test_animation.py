"""Animations have a frame per layer or query, with one scale, and show the weights that are there."""

from pathlib import Path

import numpy
import torch
from PIL import Image, ImageSequence

import uwaga
from uwaga import plots
from uwaga.nn import MultiHeadAttention

TOKENS = ["to", "be", "or", "not"]


def a_map(peak: float = 9.0) -> uwaga.AttentionMap:
    """Each query looks at itself; the last of a head is dark."""
    eye = torch.eye(4)
    return uwaga.AttentionMap(peak * eye.expand(2, 4, 4), eye.expand(2, 4, 4), mask=uwaga.Causal(), scale=1.0)


def frames(path: Path) -> list[numpy.ndarray]:
    with Image.open(path) as image:
        return [numpy.asarray(each.convert("L"), dtype=float) for each in ImageSequence.Iterator(image)]


def test_a_frame_for_each_layer_with_one_scale(tmp_path: Path) -> None:
    path = tmp_path / "layers.gif"
    assert plots.animate([a_map(), a_map(0.0), a_map()], path, TOKENS, at=1) == 3
    first, second, third = frames(path)
    assert first.shape == second.shape
    assert (first != second).any()
    # The same weights under another title, but for the 256 colours that a frame of a GIF has.
    height = first.shape[0]
    numpy.testing.assert_allclose(first[height // 4 :], third[height // 4 :], atol=8)
    assert first.min() < second[height // 4 :].min() + 1  # equal weights are lighter than a peak, on one scale
    with Image.open(path) as image:
        assert image.info["loop"] == 0
        assert image.info["duration"] == 600


def test_rows_appear_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "written.gif"
    assert plots.animate(a_map(), path, TOKENS, over="queries", at=0, seconds=0.2) == 4
    dark = [(frame < 80).sum() for frame in frames(path)]
    assert dark == sorted(dark)
    assert dark[0] < dark[-1]


def test_a_recording_has_its_labels(tmp_path: Path) -> None:
    layer = MultiHeadAttention(8, 2).eval()
    with uwaga.watch(layer, tokens=TOKENS) as recording, torch.no_grad():
        layer(torch.randn(1, 4, 8))
    assert plots.animate(recording, tmp_path / "a.gif", at=(0, 1)) == 1
    with uwaga.watch(layer) as without_tokens, torch.no_grad():
        layer(torch.randn(1, 4, 8))
    assert plots.animate(without_tokens, tmp_path / "b.gif", at=(-1, 1)) == 1
