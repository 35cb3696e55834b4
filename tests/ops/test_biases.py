"""Distance biases against their definitions. Letters: H query heads, Q queries, K keys, L distances."""

import math

import pytest
import torch

from uwaga import AlibiBias, Ragged, RelativeBias, attention
from uwaga.ops.attention import relative_bias
from uwaga.ops.score_shape import ScoreShape


def _t5_bucket(distance: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """As transformers' T5Attention._relative_position_bucket, one number at a time."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = -min(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    wide = exact + int(math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact))
    return first + min(wide, buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_t5(bidirectional: bool, buckets: int, max_distance: int) -> None:
    bias = RelativeBias(torch.zeros(buckets, 1), bidirectional=bidirectional, max_distance=max_distance)
    distances = torch.arange(-200, 201)
    expected = [_t5_bucket(int(x), buckets, max_distance, bidirectional) for x in distances]
    assert bias.bucket(distances).tolist() == expected


@pytest.mark.parametrize("start", [None, 0, 5, torch.tensor([3, 0])])
@pytest.mark.parametrize("kind", ["alibi", "relative"])
def test_a_distance_bias_is_its_matrix(kind: str, start) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 3, n, 8, generator=generator, dtype=torch.float64) for n in (5, 9))
    slopes = torch.rand(3, generator=generator, dtype=torch.float64)
    table = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    bias = AlibiBias(slopes, start=start) if kind == "alibi" else RelativeBias(table, max_distance=16, start=start)
    places = torch.as_tensor(9 - 5 if start is None else start).reshape(-1, 1, 1)
    distance = torch.arange(9) - torch.arange(5)[:, None] - places
    dense = (
        -slopes[:, None, None] * distance[:, None].abs()
        if kind == "alibi"
        else table[bias.bucket(distance)].movedim(-1, 1)
    )
    torch.testing.assert_close(attention(query, key, key, bias=bias), attention(query, key, key, bias=dense))


@pytest.mark.parametrize("impl", ["reference", None])
@pytest.mark.parametrize("is_ragged", [False, True])
def test_starts_far_apart_cost_no_memory(is_ragged: bool, impl: str | None) -> None:
    starts = torch.tensor([0, 10**12, 3])
    table = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    sizes = ScoreShape(queries=4, keys=6, batch=(3,), heads=2)
    bias = RelativeBias(table, max_distance=16, start=starts)
    vector, *_ = relative_bias.over(bias, sizes, torch.float32, table.device)
    assert vector.shape == (2, 3 * (4 + 6 - 1))
    rows = [torch.randn(2, n, 4) for n in ((1, 4, 3) if is_ragged else (4, 4, 4))]
    batch = Ragged.from_list([x.transpose(0, 1) for x in rows]) if is_ragged else torch.stack(rows)
    output = attention(batch, batch, batch, bias=bias, impl=impl)
    parts = [x.transpose(0, 1) for x in output.to_list()] if isinstance(output, Ragged) else output.unbind()
    expected = [
        attention(x, x, x, bias=RelativeBias(table, max_distance=16, start=int(start)), impl=impl)
        for x, start in zip(rows, starts, strict=True)
    ]
    for part, alone in zip(parts, expected, strict=True):
        torch.testing.assert_close(part, alone)
    gradients = [torch.autograd.grad(sum(x.square().sum() for x in outputs), table)[0] for outputs in (parts, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("far", [2**59, -(2**59)])
def test_a_bias_as_far_as_can_be_does_not_overflow(far: int) -> None:
    x, table = torch.randn(2, 2, 4, 8), torch.randn(8, 2)
    for start in (far, torch.tensor(far), torch.tensor([0, far])):
        bias = RelativeBias(table, max_distance=16, start=start)
        output = attention(x, x, x, bias=bias)
        torch.testing.assert_close(output, attention(x, x, x, bias=bias, impl="reference"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_slopes_in_half_precision_are_multiplied_in_float32(dtype: torch.dtype) -> None:
    slopes, x = torch.tensor([0.7, 0.01]).to(dtype), torch.randn(2, 3, 4)
    far = 100_000  # beyond what float16 holds
    for start in (None, far):
        output = attention(x, x, x, bias=AlibiBias(slopes, start=start))
        assert torch.equal(output, attention(x, x, x, bias=AlibiBias(slopes.float(), start=start)))
