"""Forms of attention that the conformance suite does not have, through uwaga.attention alone.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import numpy as np
import pytest
import torch
from drawn import draw
from tolerance import assert_as_exact, once

from uwaga import Causal, Ragged, Window, attention, explain
from uwaga.ops import attention_and_lse


@pytest.fixture(params=["reference", None])
def impl(request: pytest.FixtureRequest) -> str | None:
    """The meaning itself, and whatever engine is chosen."""
    return request.param


def test_ragged_without_heads_and_without_rows(impl: str | None) -> None:
    batch = Ragged(draw(5, 4), torch.tensor([0, 2, 5]))
    out = attention(batch, batch, batch, impl=impl)
    torch.testing.assert_close(out.values[:2], attention(*[batch.values[:2]] * 3, impl=impl))
    none = Ragged(draw(0, 2, 4), torch.tensor([0]))
    assert attention(none, none, none, impl=impl).values.shape == (0, 2, 4)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 2, 3)])
def test_any_leading_dimensions(impl: str | None, leading: tuple[int, ...]) -> None:
    x = draw(*leading, 5, 4)
    out, lse = attention_and_lse(x, x, x, impl=impl)
    assert out.shape == x.shape
    assert lse.shape == x.shape[:-1]
    torch.testing.assert_close(out, torch.softmax(x @ x.transpose(-1, -2) / 2, -1) @ x)
    torch.testing.assert_close(lse, torch.logsumexp(x @ x.transpose(-1, -2) / 2, -1))


def test_a_row_without_keys(impl: str | None) -> None:
    x = draw(2, 3, 4)
    out, lse = attention_and_lse(x, x[:, :0], x[:, :0], impl=impl)
    assert torch.equal(out, torch.zeros(2, 3, 4))
    assert torch.equal(lse, torch.full((2, 3), -torch.inf))
    sinks = torch.tensor([0.5, -1.0])
    out, lse = attention_and_lse(x, x[:, :0], x[:, :0], sinks=sinks, impl=impl)
    assert torch.equal(out, torch.zeros(2, 3, 4))
    torch.testing.assert_close(lse, sinks[:, None].expand(2, 3))
    _, lse = attention_and_lse(x, x[:, :0], x[:, :0], sinks=torch.tensor([-torch.inf, 2.0]), impl=impl)
    assert torch.equal(lse, torch.tensor([[-torch.inf], [2.0]]).expand(2, 3))


@pytest.mark.parametrize("shape", [(2, 0, 5, 4), (2, 3, 5, 0)], ids=["no heads", "no value width"])
def test_nothing_to_compute(shape: tuple[int, ...], impl: str | None) -> None:
    query, key = draw(*shape[:3], 4), draw(2, 3, 5, 4)
    assert attention(query, key, key[..., : shape[3]], impl=impl).shape == shape


def test_numbers_beyond_float32_and_widths_beyond_the_kernels_are_not_lost() -> None:
    for x, options in ((draw(3, 4), {"softcap": 1e-50}), (draw(3, 4), {"scale": 1e39}), (draw(2, 70_000), {})):
        assert explain(x, x, x, **options).engine != "cpu"
        result, expected = (attention(x, x, x, **options, impl=impl) for impl in (None, "reference"))
        torch.testing.assert_close(result, expected, equal_nan=True)


def test_numbers_of_numpy_are_numbers() -> None:
    x = draw(2, 5, 4)
    output = attention(x, x, x, mask=Window(np.int64(2), 0, start=np.int32(1)), scale=np.float32(0.5))
    assert torch.equal(output, attention(x, x, x, mask=Window(2, 0, start=1), scale=0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.25, 0.0, -0.5])
def test_without_softmax_half_precision_is_as_exact_as_two_products_and_so_are_both_derivatives(
    dtype: torch.dtype, scale: float
) -> None:
    """Beside q (k^T v) by PyTorch's products in that dtype; query heads share keys."""
    # Small, since second derivatives of larger ones exceed float16.
    operands = [(0.1 * draw(2, heads, 70, 16, seed=n)).to(dtype) for n, heads in enumerate((4, 2, 2))]

    def derivatives(compute: torch.dtype, by_products: bool) -> list[torch.Tensor]:
        q, k, v = (x.to(compute).requires_grad_() for x in operands)
        if by_products:
            state = (k.transpose(-1, -2) @ v * scale).repeat_interleave(2, 1)
            out = q @ state
        else:
            out = attention(q, k, v, normalize=None, scale=scale)
        first = torch.autograd.grad(out.square().sum(), (q, k, v), create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in first), (q, k, v))
        return [out, *first, *second]

    exact = once(lambda: derivatives(torch.float64, by_products=True))
    for n, (value, peer) in enumerate(zip(derivatives(dtype, False), derivatives(dtype, True), strict=True)):
        assert_as_exact(value.detach(), peer.detach(), lambda n=n: exact()[n])


def test_without_softmax_a_row_of_bfloat16_has_the_same_bits_in_any_batch() -> None:
    q, k, v = (draw(3, 2, 200, 32, seed=n).bfloat16() for n in range(3))
    for mask in (None, Causal()):
        whole = attention(q, k, v, normalize=None, mask=mask)
        for b in range(3):
            alone = attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], normalize=None, mask=mask)
            assert torch.equal(alone[0], whole[b])


@pytest.mark.parametrize("keys", [1, 63, 64, 200])
@pytest.mark.parametrize("scale", [1.0, -0.5])
def test_without_softmax_bfloat16_has_the_same_bits_wherever_queries_lie(keys: int, scale: float) -> None:
    """Queries that lie at whole words are read in place, others are packed first."""
    q, k, v = (draw(2, n, 32, seed=n).bfloat16() for n in (70, keys, keys))
    wide = torch.zeros(2, 70, 33, dtype=torch.bfloat16)
    wide[..., 1:] = q
    options = {"normalize": None, "scale": scale}
    assert torch.equal(attention(wide[..., 1:], k, v, **options), attention(q, k, v, **options))
    assert torch.equal(attention(q[:, 5:6], k, v, **options), attention(q, k, v, **options)[:, 5:6])
