"""What no rule of the lesson's numbers says: given numbers, compared with NumPy in float64, and the properties that texts state."""

import numpy as np
import pytest
from numpy.typing import NDArray

from uwaga.viewer.lesson import Lesson, work_through


@pytest.fixture(scope="module")
def numbers() -> Lesson:
    return work_through()


def near(result: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
    # float32 sums of a few products of numbers up to 10.
    np.testing.assert_allclose(result, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "visible"),
    [
        ("causal", np.tri(5, dtype=bool)),
        ("past", np.tri(5, k=-1, dtype=bool)),
        ("window", np.tri(5, dtype=bool) & ~np.tri(5, k=-2, dtype=bool)),
        ("lengths", np.arange(5)[None] < np.full((5, 1), 3)),
    ],
)
def test_masks(numbers: Lesson, name: str, visible: NDArray[np.bool_]) -> None:
    assert (numbers[f"{name}_bits"] == visible).all()


def test_positions(numbers: Lesson) -> None:
    place, pair = np.arange(5)[:, None], np.arange(2)[None]
    angle = place / 10000 ** (2 * pair / 4)
    near(numbers["codes"], np.stack((np.sin(angle), np.cos(angle)), -1).reshape(5, 4))
    near(numbers["wavelengths"][:, 1], 2 * np.pi * 10000 ** (2 * np.arange(2) / 4))
    frequency = 10000 ** (-2 * np.arange(32) / 64)
    near(numbers["similarity"][:, 1], np.cos(np.arange(64)[:, None] * frequency).mean(-1))


def test_the_distance_after_which_position_codes_repeat(numbers: Lesson) -> None:
    """44 is about 7 * 2 pi; codes of width 64 do not repeat within a million positions."""
    repeats = numbers["repeats"]
    assert repeats[0, 0] == 44
    assert np.isnan(repeats[-1]).all()


def test_why_scores_are_scaled(numbers: Lesson) -> None:
    variance, softmaxes = numbers["variance"], numbers["saturation"]
    assert variance[:, 1] / variance[:, 0] == pytest.approx(1, abs=0.15)
    assert variance[:, 2] == pytest.approx(1, abs=0.15)
    _, entropy, entropy_scaled, largest, largest_scaled, gradient, gradient_scaled = softmaxes.T
    assert entropy[-1] < 0.1 < 0.8 < entropy_scaled.min()
    assert largest[-1] > 0.9 > 0.3 > largest_scaled.max()
    assert gradient[-1] < gradient[0] / 1000
    assert gradient_scaled.max() < 2 * gradient_scaled.min()


def test_a_seed_determines_the_measurements(numbers: Lesson) -> None:
    assert (work_through(seed=1)["variance"][:, 1] != numbers["variance"][:, 1]).any()
    np.testing.assert_array_equal(work_through(seed=0)["variance"], numbers["variance"])
