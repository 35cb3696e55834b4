"""Rotary positions are a rotation of complex numbers. Letters: Q tokens, H heads, D head width, M width, N packed tokens."""

import math

import pytest
import torch

from uwaga import Ragged
from uwaga.nn import MultiHeadAttention, RotaryPositions
from uwaga.nn.rotary_scaling import RotaryScaling
from uwaga.ops.rotary import rotate_halves


def turned(x_QHD: torch.Tensor, places: list[int], base: float = 10000.0) -> torch.Tensor:
    """Each pair of numbers as a complex one, times exp(i p w) (Su et al. 2021, equation 34)."""
    width = x_QHD.shape[-1]
    pairs_QHI = torch.view_as_complex(x_QHD.double().unflatten(-1, (-1, 2)).contiguous())
    frequency_I = torch.tensor([base ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)
    turn_QI = torch.exp(1j * torch.tensor(places)[:, None] * frequency_I)
    return torch.view_as_real(pairs_QHI * turn_QI[:, None]).flatten(-2)


def halves(x: torch.Tensor) -> torch.Tensor:
    """From pairs side by side to all first numbers before all second ones."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), -1)


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_pairs_are_turned_as_complex_numbers(base: float) -> None:
    x = _x(5, 3, 8)
    rotary = RotaryPositions(8, base=base)
    expected = turned(x, [4, 5, 6, 7, 8], base)
    torch.testing.assert_close(rotary(torch.zeros(5, 1).double(), start=4).rotate(x), expected)
    result = RotaryPositions(8, base=base, layout="halves")(torch.zeros(5, 1).double(), start=4).rotate(halves(x))
    torch.testing.assert_close(result, halves(expected))
    half = rotary(torch.zeros(5, 1)).rotate(x.bfloat16())
    assert half.dtype == torch.bfloat16
    wide = rotary(torch.zeros(5, 1)).rotate(x.bfloat16().float())
    assert torch.equal(half, wide.bfloat16())


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_what_is_behind_the_turned_width_is_kept(layout: str) -> None:
    x = _x(5, 3, 8)
    rotation = RotaryPositions(4, layout=layout)(torch.zeros(5, 1).double())
    result = rotation.rotate(x)
    assert torch.equal(result[..., :4], rotation.rotate(x[..., :4]))
    assert torch.equal(result[..., 4:], x[..., 4:])


def test_packed_rows_and_starts_of_their_own() -> None:
    batch = Ragged(_x(5, 2), torch.tensor([0, 2, 2, 5]))
    x = _x(5, 3, 8)
    rotary = RotaryPositions(8)
    torch.testing.assert_close(rotary(batch).rotate(x), turned(x, [0, 1, 0, 1, 2]))
    rotation = rotary(batch, start=torch.tensor([6, 0, 9]))
    torch.testing.assert_close(rotation.rotate(x), turned(x, [6, 7, 9, 10, 11]))
    x = _x(2, 2, 3, 8)
    rotation = rotary(_x(2, 2, 1), start=torch.tensor([6, 9]))
    torch.testing.assert_close(rotation.rotate(x), torch.stack([turned(x[0], [6, 7]), turned(x[1], [9, 10])]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [2, 6, 34, 64])
@torch.no_grad()
def test_one_pass_has_the_bits_of_one_operation_after_another(width: int, dtype: torch.dtype) -> None:
    """The native kernel, beside PyTorch's operators, with as many positions as tokens, and shared by the rows of a padded batch."""
    rotary = RotaryPositions(width, layout="halves")
    batch = Ragged(torch.zeros(77, 1, dtype=dtype), torch.tensor([0, 1, 2, 2, 40, 77]))
    padded = torch.zeros(3, 7, 1, dtype=dtype)
    for rotation, tokens in [
        (rotary(batch), (77,)),
        (rotary(padded), (3, 7)),
        (rotary(padded, start=torch.tensor([5, 0, 90])), (3, 7)),
        (rotary(batch).at(torch.tensor([3, 41, 76])), (3,)),
    ]:
        for heads in (_x(*tokens, 3, width).to(dtype), _x(*tokens, 3, width + 5).to(dtype)):
            for x in (heads, heads.transpose(-3, -2).contiguous().transpose(-3, -2)):
                assert rotate_halves(x, rotation.cos, rotation.sin) is not None
                with torch.enable_grad():  # which the kernel does not serve
                    expected = rotation.rotate(x.clone().requires_grad_())
                assert torch.equal(rotation.rotate(x), expected)


def test_query_and_key_are_turned_and_the_value_is_not() -> None:
    rotary, layer, x = RotaryPositions(6), MultiHeadAttention(12, 2, dtype=torch.float64), _x(7, 12)
    plain, heads = layer.project(x, x, x), layer.project(x, x, x, rotary(x))
    for value, before in zip(heads[:2], plain[:2], strict=True):
        torch.testing.assert_close(value.transpose(0, 1), turned(before.transpose(0, 1), list(range(7))))
    assert torch.equal(heads.value, plain.value)


def test_linear_scaling_is_positions_divided_by_the_factor() -> None:
    x = torch.zeros(1, 9, 8)
    scaled = RotaryPositions(8, scaling=RotaryScaling(kind="linear", factor=4.0))(x)
    plain = RotaryPositions(8)(torch.zeros(1, 3, 8))
    torch.testing.assert_close(scaled.cos[::4], plain.cos)
    torch.testing.assert_close(scaled.sin[::4], plain.sin)


def test_yarn_scales_cosines_and_sines() -> None:
    scaling = RotaryScaling(kind="yarn", factor=4.0, original_max_position_embeddings=16)
    rotation = RotaryPositions(8, scaling=scaling)(torch.zeros(1, 9, 8))
    torch.testing.assert_close(
        (rotation.cos.square() + rotation.sin.square()).sqrt(), torch.full((9, 4), 0.1 * math.log(4.0) + 1)
    )
