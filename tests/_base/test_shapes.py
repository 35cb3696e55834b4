"""The checker that binds letters, and the text of its errors."""

from uwaga._base.shapes import NamedShape, bind, shape_error


def test_letters_are_bound_over_all_tensors() -> None:
    sizes = bind("f", [NamedShape.of("x", (2, 5), "B M"), NamedShape.of("y", (5, 7), "M F")])
    assert sizes == {"B": 2, "M": 5, "F": 7}


def test_unknown_letters_and_empty_ones_are_shown_as_they_are() -> None:
    tensors = [NamedShape.of("x", (2,), "T"), NamedShape(name="y", shape=(3, 1), letters=("", ""))]
    assert str(shape_error("f", "y must fit x", tensors, "y", "does not")) == (
        "f: y must fit x\n  x  (2,)     T=2\n  y  (3, 1)         <- does not"
    )
