"""Positions that are added: learned ones, and sinusoidal ones by the paper's formula, with where these start to repeat.

Letters: B batch, Q tokens, M width, N packed tokens, R ragged rows.
"""

import math

import pytest
import torch

from uwaga import Ragged
from uwaga.nn import LearnedPositions, SinusoidalPositions


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


def test_a_repetition_far_behind_the_first_positions_is_found() -> None:
    repeat = SinusoidalPositions(16).repeats(0.5)
    assert repeat.length > 2**16  # which is more than one step of the search
    codes = SinusoidalPositions(16).table(repeat.length + 1).double()
    assert distance(codes[0], codes[repeat.length]) == pytest.approx(repeat.distance, rel=1e-5)
    away = (codes[100:-1] - codes[0]).norm(dim=-1) / codes[0].norm()
    assert away.min() > 0.5


def test_nothing_repeats_within_the_limit() -> None:
    length = SinusoidalPositions(2).repeats(0.02).length
    assert SinusoidalPositions(2).repeats(0.02, limit=length) is not None
    assert SinusoidalPositions(2).repeats(0.02, limit=length - 1) is None
    # The width of the paper's base model: its slowest waves are long, and its fast ones never agree.
    assert SinusoidalPositions(512).repeats(0.5, limit=300_000) is None
