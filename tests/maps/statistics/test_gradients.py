"""Derivatives of lse, entropy, received and entries: against finite differences in float64, twice.

fast_mode compares random projections of the Jacobians: a wrong entry shows in them, and the whole matrices take minutes.

Letters: B batch, H query heads, G key heads, Q queries, K keys, D query/key width.
"""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from largest import Largest
from torch import Tensor
from torch.autograd import forward_ad

from uwaga import AlibiBias, AttentionMap, Causal, KeyLengths, Ragged, RelativeBias, Window, attend, attention
from uwaga.maps.derived import DifferenceMap

OPTIONS = {
    "plain": {},
    "causal": {"mask": Causal()},
    "strictly past": {"mask": Causal(include_self=False, start=0)},
    "an empty row": {"mask": KeyLengths(torch.tensor([0, 3])) & Window(2, 2)},
    "softcap": {"softcap": 1.5},
}
# What one would add to a loss: a row that sees nothing has lse = -inf, and no part in it.
STATISTICS: dict[str, Callable[[AttentionMap], Tensor]] = {
    "lse": lambda m: torch.where(m.lse.isfinite(), m.lse, 0.0),
    "entropy": lambda m: m.entropy(),
    "normalized entropy": lambda m: m.entropy(normalize=True),
    "received": lambda m: m.received(),
    "received, last": lambda m: m.received(last=2),
    "received, weighed": lambda m: m.received(weights=(torch.arange(m.shape[-2]) % 3).to(m.dtype)),
}


def _random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()


def _operands(dtype: torch.dtype = torch.float64, queries: int = 3) -> tuple[Tensor, Tensor]:
    return _random(2, 2, queries, 4, dtype=dtype), _random(2, 1, queries + 2, 4, dtype=dtype)


in_one_tile_or_two = pytest.mark.parametrize("queries", [6, 34])  # a tile has at most 32 rows


@pytest.mark.slow
@in_one_tile_or_two
@pytest.mark.gate(only=lambda statistic, queries: statistic == "normalized entropy" and queries == 34)
@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_statistic_is_its_own_derivative_twice(name: str, statistic: str, queries: int) -> None:
    def f(query: Tensor, key: Tensor) -> Tensor:
        return STATISTICS[statistic](AttentionMap(query, key, **OPTIONS[name]))

    operands = _operands(queries=queries)
    assert torch.autograd.gradcheck(f, operands, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, operands, fast_mode=True)


@pytest.mark.gate(only=lambda statistic: statistic in ("normalized entropy", "received, weighed"))
@pytest.mark.parametrize("statistic", STATISTICS)
def test_gradients_reach_biases_tables_and_sinks(statistic: str) -> None:
    """And the weights of rows, so that what one map gives may weigh the rows of the next, as in a rollout."""

    def f(query: Tensor, key: Tensor, sinks: Tensor, table: Tensor, bias: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        maps = (
            AttentionMap(query, key, sinks=sinks, bias=RelativeBias(table, max_distance=16)),
            AttentionMap(query, key, bias=bias, mask=Causal()),
            AttentionMap(query, key, bias=AlibiBias(sinks)),
        )
        return *(STATISTICS[statistic](m) for m in maps), maps[2].received(weights=w)

    weights = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64, requires_grad=True)
    operands = (*_operands(), _random(2), _random(8, 2), _random(3, 5), weights)
    assert torch.autograd.gradcheck(f, operands, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, operands, fast_mode=True)


def test_ragged_is_its_own_derivative_twice() -> None:
    offsets = torch.tensor([0, 2, 2, 6])

    def f(values: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        batch = Ragged(values, offsets)
        m = AttentionMap(batch, batch, mask=Causal())
        received = m.received(weights=batch.with_values(weights), last=3)
        return m.lse.values, m.entropy().values, m.received().values, received.values

    operands = (_random(6, 2, 3), _random(6, 2))
    assert torch.autograd.gradcheck(f, operands, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, operands, fast_mode=True)


def test_a_weight_that_underflows_has_a_finite_gradient_and_a_row_that_sees_nothing_none() -> None:
    query, key = _operands(torch.float32)
    m = AttentionMap(query, key, scale=1000.0)
    for gradient in torch.autograd.grad(m.entropy().sum(), (query, key)):
        assert gradient.isfinite().all()
    strict = AttentionMap(query, key, mask=Causal(include_self=False, start=0))
    for gradient in torch.autograd.grad(strict[0, 0, 0].sum(), (query, key)):
        assert bool((gradient == 0).all())


def test_hidden_numbers_have_no_part_in_a_gradient() -> None:
    query, key = (x.detach() for x in _operands())
    key[:, :, 4] = torch.nan
    query[:, :, 0] = torch.nan
    leaves = [x.requires_grad_() for x in (query, key)]
    m = AttentionMap(*leaves, mask=Window(1, None, start=0) & KeyLengths(torch.tensor([4, 4])) & Causal(False, start=0))
    loss = m.entropy().sum() + m.received().square().sum() + m.lse[..., 1:].sum()
    for x, gradient in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
        assert torch.equal(gradient[x.isnan()], torch.zeros_like(gradient[x.isnan()]))
        assert gradient.isfinite().all()


@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)
def test_forward_mode_finds_what_the_backward_pass_finds(statistic: Callable[[AttentionMap], Tensor]) -> None:
    query, key = (x.detach() for x in _operands(torch.float32))
    along = torch.randn_like(query)
    with forward_ad.dual_level():
        result = statistic(AttentionMap(forward_ad.make_dual(query, along), key, mask=Causal()))
        value, tangent = forward_ad.unpack_dual(result)
    assert torch.allclose(value, statistic(AttentionMap(query, key, mask=Causal())), rtol=1e-5, atol=1e-6)
    weights = torch.randn_like(value)
    query.requires_grad_()
    (grad,) = torch.autograd.grad(statistic(AttentionMap(query, key, mask=Causal())), query, weights)
    assert torch.allclose((weights * tangent).sum(), (grad * along).sum(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("of_value", [False, True], ids=["query", "value"])
def test_forward_mode_of_attend(of_value: bool) -> None:
    """Against differences in float64."""
    query, key = (x.detach() for x in _operands(torch.float32))
    at = key if of_value else query
    along = torch.randn_like(at)

    def run(x: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        q, k = (y.to(x.dtype) for y in (query, key))
        return attend(q, k, x) if of_value else attend(x, k, k)

    ends = [run(at.double() + sign * 1e-6 * along.double(), attention) for sign in (1, -1)]
    value, tangent = torch.func.jvp(lambda x: run(x, lambda *operands: attend(*operands).output), (at,), (along,))
    assert torch.allclose(value, attention(query, key, key), atol=1e-6)
    assert torch.allclose(tangent, ((ends[0] - ends[1]) / 2e-6).float(), atol=1e-6)


def dense_weights(
    query: Tensor, key: Tensor, mask: Tensor | None, bias: Tensor | None, softcap: float | None, sinks: Tensor | None
):
    """(B, H, Q, K): softmax of the whole matrix, as one would write it."""
    scores = query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).mT / query.shape[-1] ** 0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is None:
        return scores.softmax(-1)
    column = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1]


INDICES = {
    "an entry": (1, 0, 2, 3),
    "a row": (0, 1, -1),
    "a column": (..., 2),
    "everything": (),
    "in another order, some twice": ([1, 0], slice(None), [-1, 0, -1], slice(None, None, -2)),
}


@in_one_tile_or_two
@pytest.mark.gate(
    only=lambda kind, index, queries: (kind == "sinks" or index == "in another order, some twice") and queries == 34
)
@pytest.mark.parametrize(
    ("kind", "index"),
    list(product(["plain", "causal", "softcap", "bias", "sinks", "alibi"], INDICES)),
)
def test_entries_have_the_gradients_of_the_dense_matrix(kind: str, index: str, queries: int) -> None:
    query, key, bias = _random(2, 4, queries, 3), _random(2, 2, queries, 3), _random(2, 4, queries, queries)
    sinks = _random(4)
    slopes = torch.rand(4, dtype=torch.float64).requires_grad_()
    causal = torch.ones(queries, queries, dtype=torch.bool).tril()
    j_minus_i = torch.arange(queries) - torch.arange(queries)[:, None]
    options = {
        "plain": ({}, (None, None, None, None)),
        "causal": ({"mask": Causal()}, (causal, None, None, None)),
        "softcap": ({"softcap": 1.5}, (None, None, 1.5, None)),
        "bias": ({"bias": bias}, (None, bias, None, None)),
        "sinks": ({"sinks": sinks, "mask": Causal()}, (causal, None, None, sinks)),
        "alibi": ({"bias": AlibiBias(slopes)}, (None, -slopes[:, None, None] * j_minus_i.abs(), None, None)),
    }
    named, by_hand = options[kind]
    m = AttentionMap(query, key, **named)
    dense = dense_weights(query, key, *by_hand)
    result = m[INDICES[index]] if INDICES[index] else m.to_dense()
    expected = dense
    if index == "in another order, some twice":
        expected = dense[[1, 0]][:, :, [-1, 0, -1]].flip(-1)[..., ::2]
    elif INDICES[index]:
        expected = dense[INDICES[index]]
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-14)
    operands = [
        query,
        key,
        *(x for x in (bias, sinks, slopes) if any(x is y for y in named.values()) or (kind == "alibi" and x is slopes)),
    ]
    weight = torch.randn(result.shape, dtype=torch.float64)
    pairs = [
        torch.autograd.grad((x * weight).sum() + (x**3).sum(), operands, create_graph=True) for x in (result, expected)
    ]
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    # Twice: of a function of the first derivatives.
    twice = [torch.autograd.grad(sum((x * x).sum() for x in pair), operands) for pair in pairs]
    for one, other in zip(*twice, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_entries_of_float32_have_the_bits_and_nearly_the_gradients_of_float64() -> None:
    query, key = _random(1, 4, 90, 16, dtype=torch.float32), _random(1, 2, 90, 16, dtype=torch.float32)
    m = AttentionMap(query, key, mask=Causal())
    result = m[0, :, 70:]
    with torch.no_grad():
        assert torch.equal(result, m[0, :, 70:])
    weight = torch.randn(result.shape)
    (result * weight).sum().backward()
    double = [x.detach().double().requires_grad_() for x in (query, key)]
    (dense_weights(*double, torch.ones(90, 90).bool().tril(), None, None, None)[0, :, 70:] * weight).sum().backward()
    for x, other in zip((query, key), double, strict=True):
        torch.testing.assert_close(x.grad.double(), other.grad, rtol=1e-4, atol=1e-5)


def test_a_part_of_a_ragged_map_has_gradients_though_it_was_read_without() -> None:
    query, key = (torch.randn(9, 2, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    offsets = torch.tensor([0, 4, 9])
    m = AttentionMap(Ragged(query, offsets), Ragged(key, offsets))
    with torch.no_grad():
        assert not m[1, 0, 2].requires_grad
    result = torch.autograd.grad(m[1, 0, 2, 3], (query, key))
    one = [x[4:].transpose(0, 1)[None] for x in (query, key)]
    expected = torch.autograd.grad(dense_weights(*one, None, None, None, None)[0, 0, 2, 3], (query, key))
    for x, other in zip(result, expected, strict=True):
        torch.testing.assert_close(x, other)


def test_derived_maps_and_views_have_none() -> None:
    query, key = _operands()
    m = AttentionMap(query, key)
    assert not DifferenceMap(m, m)[0, 0].requires_grad
    assert not m.scores[0, 0].requires_grad
    assert not m.diagonal_sums().requires_grad


def test_backward_of_a_row_makes_no_matrix() -> None:
    """Of 20,000 keys: a tile of rows, and not the 1.6 GB of the matrix."""
    query, key = (torch.randn(1, 20_000, 8).requires_grad_() for _ in range(2))
    weight = AttentionMap(query, key, mask=Causal())[0, 19_000, 5]
    with Largest() as largest:
        weight.backward()
    assert 20_000 * 4 <= largest.bytes < 200 * 2**20
    assert query.grad.abs().sum((0, 2)).nonzero().flatten().tolist() == [19_000]
