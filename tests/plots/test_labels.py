"""Tokens as labels."""

import pytest

from uwaga.plots.labels import clean, label_step


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("Ġthe", "the"),
        ("▁the", "the"),
        (" the", "the"),
        ("Ċ", "\\n"),
        ("a\tb", "a\\tb"),
        (" ", "(space)"),
        ("Ġ", "(space)"),
        ("", "(empty)"),
        ("x" * 16, "x" * 16),
        ("x" * 17, "x" * 15 + "…"),
        ("a b", "a b"),
    ],
)
def test_a_token_becomes_one_short_line(token: str, label: str) -> None:
    assert clean(token) == label


@pytest.mark.parametrize("count", [1, 7, 100, 12_345])
@pytest.mark.parametrize("points", [1.0, 50.0, 400.0])
def test_as_many_labels_are_shown_as_fit(count: int, points: float) -> None:
    every = label_step(count, points, font=6.0)
    assert -(-count // every) <= max(points / 7.5, 1) + 1
    assert str(every).rstrip("0") in ("1", "2", "5")
