"""The colours mean the same in grey and to colour-blind eyes."""

import numpy
import pytest

from uwaga.plots import colors

# Machado, Oliveira & Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), table 1:
# severity 1.0, in linear RGB.
SIGHT = {
    "normal": numpy.eye(3),
    "protanopia": numpy.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": numpy.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": numpy.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
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
    found = lightness(linear(colors.sequential()))
    assert found[0] == pytest.approx(100, abs=0.1)
    # 9 anchors of 8 bits a channel, and straight lines in sRGB between them: two units of L* in a hundred.
    numpy.testing.assert_allclose(found, numpy.linspace(found[0], found[-1], len(found)), atol=2.0)


@pytest.mark.parametrize("sight", SIGHT)
def test_more_is_darker_to_every_eye(sight: str) -> None:
    seen = (linear(colors.sequential()) @ SIGHT[sight].T).clip(0, 1)
    assert (numpy.diff(lightness(seen)) < 0).all()


@pytest.mark.parametrize("sight", SIGHT)
def test_the_signs_of_a_difference_are_told_apart_by_every_eye(sight: str) -> None:
    seen = (linear(colors.diverging()) @ SIGHT[sight].T).clip(0, 1)
    half = len(seen) // 2
    below, above = seen[:half][::-1], seen[half + 1 :]
    assert (numpy.diff(lightness(below)) < 0).all()
    assert (numpy.diff(lightness(above)) < 0).all()
    # From a fifth of the scale on, the two sides differ in more than lightness: in red against blue, or in red against
    # green for those who see no blue.
    opposed = abs((below[:, 0] - below[:, 2]) - (above[:, 0] - above[:, 2])) + abs(below[:, 0] - above[:, 0])
    assert opposed[half // 5 :].min() > 0.1
