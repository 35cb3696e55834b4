"""The public names of the layers."""

import pytest

import uwaga.nn

PUBLIC = [
    "AlibiPositions",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "KeyValueCache",
    "LayerSpec",
    "LearnedPositions",
    "MemoryAttention",
    "MultiHeadAttention",
    "RelativePositions",
    "RotaryPositions",
    "RotaryScaling",
    "SinusoidalPositions",
    "ZeroCenteredRMSNorm",
]


def test_the_public_names_are_these() -> None:
    assert uwaga.nn.__all__ == PUBLIC
    assert dir(uwaga.nn) == PUBLIC
    assert [getattr(uwaga.nn, name).__name__ for name in PUBLIC] == PUBLIC


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError) as error:
        uwaga.nn.MultiheadAttention  # noqa: B018
    assert str(error.value) == "module 'uwaga.nn' has no attribute 'MultiheadAttention'"
