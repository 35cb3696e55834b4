"""Positions that are added, by the paper's formula and learned; rotary ones, a rotation of complex numbers; and those that bias attention.

Letters: B batch, H heads, Q tokens, K keys, D head width, M width, N packed tokens, R ragged rows.
"""

import math

import pytest
import torch

from uwaga import Causal, Ragged
from uwaga.nn import (
    AlibiPositions,
    LearnedPositions,
    MultiHeadAttention,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
)
from uwaga.ops.rotary import rotate_halves


def formula(position: int, width: int, base: float = 10000.0) -> list[float]:
    """PE of one position, number by number (Vaswani et al. 2017, section 3.5)."""
    waves = [(math.sin, math.cos)[at % 2] for at in range(width)]
    return [wave(position / base ** (2 * (at // 2) / width)) for at, wave in enumerate(waves)]


@pytest.mark.parametrize(("width", "base"), [(6, 10000.0), (10, 500.0)])
def test_the_table_is_the_papers_formula_rounded_once(width: int, base: float) -> None:
    exact = torch.tensor([formula(p, width, base) for p in range(200)], dtype=torch.float64)
    table = SinusoidalPositions(width, base=base).table(200)
    assert table.dtype == torch.float32
    assert torch.equal(table, exact.float())
    halves = SinusoidalPositions(width, base=base, layout="halves").table(200)
    assert torch.equal(halves, torch.cat((table[:, 0::2], table[:, 1::2]), -1))
    far = SinusoidalPositions(width, base=base)(torch.zeros(1, width), start=1_000_003)
    torch.testing.assert_close(far, torch.tensor([formula(1_000_003, width, base)]))
    x = torch.randn(200, width).bfloat16()
    assert torch.equal(SinusoidalPositions(width, base=base)(x), (x.double() + exact).float().bfloat16())


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_each_token_gets_the_vector_of_its_place(kind: str) -> None:
    """Rows that are packed count from their own start, and every row may start elsewhere."""
    layer = LearnedPositions(40, 4) if kind == "learned" else SinusoidalPositions(4)
    table = layer.weight if isinstance(layer, LearnedPositions) else layer.table(40)
    x, batch = torch.randn(2, 3, 4), Ragged(torch.randn(5, 4), torch.tensor([0, 2, 2, 5]))
    assert torch.equal(layer(x), x + table[:3])
    assert torch.equal(layer(x, start=30), x + table[30:33])
    assert torch.equal(layer(x, start=torch.tensor([4, 0])), x + table[torch.tensor([[4, 5, 6], [0, 1, 2]])])
    assert torch.equal(layer(x[0]), x[0] + table[:3])
    assert torch.equal(layer(batch).values, batch.values + table[[0, 1, 0, 1, 2]])
    result = layer(batch, start=torch.tensor([7, 0, 3]))
    assert torch.equal(result.values, batch.values + table[[7, 8, 3, 4, 5]])


def test_codes_made_in_inference_mode_serve_training() -> None:
    layer = SinusoidalPositions(4)
    x = torch.randn(3, 4)
    with torch.inference_mode():
        layer(x)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad((layer(x) * layer(x)).sum(), x)
    torch.testing.assert_close(gradient, 2 * layer(x))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / a.norm())


@pytest.mark.parametrize(
    ("width", "base", "tolerance"), [(2, 10000.0, 0.1), (4, 50.0, 0.3), (6, 20.0, 0.5), (8, 1e4, 0.35)]
)
def test_codes_repeat_where_comparing_all_of_them_finds_it(width: int, base: float, tolerance: float) -> None:
    layer = SinusoidalPositions(width, base=base)
    codes = torch.tensor([formula(p, width, base) for p in range(2000)], dtype=torch.float64)
    distances = [distance(codes[0], code) for code in codes]
    left = next(n for n in range(1, 2000) if distances[n] > tolerance)
    expected = next(n for n in range(left, 2000) if distances[n] <= tolerance)
    repeat = layer.repeats(tolerance)
    assert repeat.length == expected
    assert repeat.distance == pytest.approx(distances[expected], rel=1e-9)
    assert repeat.distance == pytest.approx(distance(codes[7], codes[7 + expected]), rel=1e-9)  # wherever they stand


def test_nothing_repeats_within_the_limit() -> None:
    length = SinusoidalPositions(2).repeats(0.02).length
    assert SinusoidalPositions(2).repeats(0.02, limit=length) is not None
    assert SinusoidalPositions(2).repeats(0.02, limit=length - 1) is None
    # The width of the paper's base model: its slowest waves are long, and its fast ones never agree.
    assert SinusoidalPositions(512).repeats(0.5, limit=300_000) is None


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


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),  # the paper's example
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),  # four heads', then every second of eight heads'
    ],
)
def test_slopes_are_the_papers(heads: int, slopes: list[float]) -> None:
    assert AlibiPositions(heads).slopes.tolist() == slopes


def test_slopes_bias_attention_by_distance_and_are_not_saved() -> None:
    positions = AlibiPositions(2)
    assert not positions.state_dict()
    layer, x = MultiHeadAttention(8, 2, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    distance_QK = (torch.arange(5) - torch.arange(5)[:, None]).abs()
    expected = layer(x, bias=-positions.slopes.double()[:, None, None] * distance_QK, mask=Causal())
    torch.testing.assert_close(layer(x, bias=positions(), mask=Causal()), expected)


def test_buckets_are_learned_from_zero() -> None:
    positions = RelativePositions(2, num_buckets=8, max_distance=20)
    layer, x = MultiHeadAttention(8, 2), torch.randn(5, 8)
    assert torch.equal(layer(x, bias=positions()), layer(x, bias=torch.zeros(2, 5, 5)))
    (gradient,) = torch.autograd.grad(layer(x, bias=positions()).square().sum(), positions.weight)
    assert gradient.count_nonzero() > 0
    assert (AlibiPositions(2)(3).start, RelativePositions(2)(start=4).start) == (3, 4)
