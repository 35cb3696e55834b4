"""The checker that binds letters, and the text of its errors."""

import pytest

from uwaga import ShapeError
from uwaga._base.shapes import NamedShape, bind, shape_error


def test_letters_are_bound_over_all_tensors() -> None:
    sizes = bind("f", [NamedShape.of("x", (2, 5), "B M"), NamedShape.of("y", (5, 7), "M F")])
    assert sizes == {"B": 2, "M": 5, "F": 7}


def test_the_message_of_the_field_guide() -> None:
    query = NamedShape.of("query", (2, 12, 128, 64), "B H Q D")
    key = NamedShape.of("key", (2, 12, 512, 80), "B G K D")
    with pytest.raises(ShapeError) as error:
        bind("attention", [query, key])
    assert str(error.value) == (
        "attention: key and query disagree on head width D\n"
        "  query  (2, 12, 128, 64)   B=2  H=12 Q=128 D=64\n"
        "  key    (2, 12, 512, 80)   B=2  G=12 K=512 D=80   <- D was 64 from query"
    )


def test_a_wrong_rank_says_which_dimensions_are_meant() -> None:
    with pytest.raises(ShapeError) as error:
        bind("f", [NamedShape.of("x", (2, 5), "B M"), NamedShape.of("y", (5,), "M F")])
    assert str(error.value) == (
        "f: y needs 2 dimensions (M, F)\n  x  (2, 5)   B=2  M=5\n  y  (5,)                <- has rank 1"
    )


def test_unknown_letters_and_empty_ones_are_shown_as_they_are() -> None:
    tensors = [NamedShape.of("x", (2,), "T"), NamedShape(name="y", shape=(3, 1), letters=("", ""))]
    assert str(shape_error("f", "y must fit x", tensors, "y", "does not")) == (
        "f: y must fit x\n  x  (2,)     T=2\n  y  (3, 1)         <- does not"
    )


def test_it_is_a_value_error() -> None:
    assert issubclass(ShapeError, ValueError)
