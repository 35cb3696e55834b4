"""Gradient x attention and its rollout against autograd on the dense matrix. Letters: B batch, H query heads, G key/value heads,
Q queries, K keys, N tokens, D query/key width, E value width."""

import pytest
import torch
from torch import Tensor

import uwaga
from uwaga.inspect import GradientMap, cross_gradient_rollout, gradient_rollout
from uwaga.ops.score_shape import ScoreShape

B, H, G, Q, D, E = 2, 4, 2, 7, 5, 3
MASKS = {
    "none": None,
    "causal": uwaga.Causal(),
    "window": uwaga.Window(2, 1),
    "padded": uwaga.KeyLengths(torch.tensor([7, 4])),
    "dense": torch.rand(H, Q, Q, generator=torch.Generator().manual_seed(5)) > 0.4,
}


def operands(queries: int = Q) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = ((B, H, queries, D), (B, G, Q, D), (B, G, Q, E), (B, H, queries, E))
    return [torch.randn(size, dtype=torch.float64) for size in sizes]


def dense_by_autograd(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, mask: object, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The weights, and their gradient, (B, H, Q, K)."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = scores if bias is None else scores + bias
    if mask is not None:
        shape = ScoreShape(queries=query.shape[2], keys=key.shape[2], batch=(query.shape[0],), heads=query.shape[1])
        seen = mask if isinstance(mask, Tensor) else mask.dense(shape)
        scores = scores.masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0).requires_grad_()
    (result,) = torch.autograd.grad(weights @ value, weights, grad)
    return weights.detach(), result


@pytest.mark.parametrize(
    ("name", "positive", "queries"), [*((name, True, Q) for name in MASKS), ("causal", False, Q), ("causal", True, 3)]
)
def test_the_map_is_that_of_autograd_on_the_dense_matrix_in_float64(name: str, positive: bool, queries: int) -> None:
    """3 queries: those of a cache, with a bias."""
    query, key, value, grad = operands(queries=queries)
    bias = torch.randn(H, queries, Q, dtype=torch.float64) if queries < Q else None
    m = GradientMap(uwaga.AttentionMap(query, key, mask=MASKS[name], bias=bias), value, grad, positive=positive)
    weights, gradient = dense_by_autograd(query, key, value, grad, MASKS[name], bias)
    right = weights * gradient
    right = right.clamp(min=0) if positive else right
    exactly = {"rtol": 1e-13, "atol": 1e-13}
    torch.testing.assert_close(m.to_dense(), right, **exactly)
    torch.testing.assert_close(m.received(), right.sum(-2), **exactly)
    torch.testing.assert_close(m.row_sums(), right.sum(-1), **exactly)
    rows, keys = (
        torch.rand(B, H, n, dtype=torch.float64) * (torch.rand(B, H, n) > 0.5) for n in (queries, key.shape[2])
    )
    torch.testing.assert_close(m.received(rows), (rows[..., None] * right).sum(-2), **exactly)
    torch.testing.assert_close(m.received(rows[:, :1]), (rows[:, :1, :, None] * right).sum(-2), **exactly)
    torch.testing.assert_close(m.row_sums(keys), (right @ keys[..., None])[..., 0], **exactly)
    torch.testing.assert_close(m.row_sums(keys[:, :1]), (right @ keys[:, :1, :, None])[..., 0], **exactly)


@pytest.mark.parametrize("name", ["causal", "window"])
def test_blocks_of_long_maps_are_joined(name: str) -> None:
    torch.manual_seed(0)
    size = 1500
    query, key, value, grad = (torch.randn(1, 1, size, 4, dtype=torch.float64) for _ in range(4))
    m = GradientMap(uwaga.AttentionMap(query, key, mask=MASKS[name]), value, grad)
    weights, gradient = dense_by_autograd(query, key, value, grad, MASKS[name])
    right = (weights * gradient).clamp(min=0)
    torch.testing.assert_close(m.received(), right.sum(-2), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(m.row_sums(), right.sum(-1), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(m[0, 0, -3:], right[0, 0, -3:], rtol=1e-12, atol=1e-12)
    one = torch.zeros(1, 1, size, dtype=torch.float64)
    one[..., size // 2] = 2.0
    torch.testing.assert_close(m.received(one), 2 * right[:, :, size // 2], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_an_entry_has_the_same_bits_whatever_is_read_with_it(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key, value, grad = (torch.randn(1, 2, 600, 16).to(dtype) for _ in range(4))
    m = GradientMap(uwaga.AttentionMap(query, key, mask=uwaga.Causal()), value, grad)
    whole = m.to_dense()
    assert torch.equal(m[0, 1, 599, 3], whole[0, 1, 599, 3])
    assert torch.equal(m[0, :, 40:90, 500:], whole[0, :, 40:90, 500:])
    assert torch.equal(m[0, [1], [7, 599, 8], [599, 2, 7]], whole[0, 1:, [7, 599, 8]][..., [599, 2, 7]])
    assert torch.equal(m.row(333), whole[..., 333, :])
    assert m.dtype == whole.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_float32_is_as_exact_as_autograd_in_float32() -> None:
    exact = operands()
    query, key, value, grad = (x.float() for x in exact)
    m = GradientMap(uwaga.AttentionMap(query, key, mask=uwaga.Causal()), value, grad).to_dense()
    plain, right = (
        (w * g).clamp(min=0)
        for w, g in (dense_by_autograd(*x, uwaga.Causal()) for x in ((query, key, value, grad), exact))
    )
    assert (m - right).abs().max() <= 2 * (plain - right).abs().max() + torch.finfo(torch.float32).eps * right.max()


def test_hidden_keys_may_hold_anything() -> None:
    query, key, value, grad = operands()
    mask = uwaga.KeyLengths(torch.tensor([7, 4]))
    expected = GradientMap(uwaga.AttentionMap(query, key, mask=mask), value, grad)
    value, key = value.clone(), key.clone()
    value[1, :, 5], key[1, :, 6] = torch.nan, torch.inf
    result = GradientMap(uwaga.AttentionMap(query, key, mask=mask), value, grad)
    torch.testing.assert_close(result.to_dense(), expected.to_dense(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(result.received(), expected.received(), rtol=1e-13, atol=1e-13)


def test_sequences_of_a_ragged_map_are_those_alone() -> None:
    torch.manual_seed(0)
    offsets = torch.tensor([0, 4, 4, 9])
    query, value, grad = (uwaga.Ragged(torch.randn(9, H, D, dtype=torch.float64), offsets) for _ in range(3))
    m = GradientMap(uwaga.AttentionMap(query, query, mask=uwaga.Causal()), value, grad)
    rows = uwaga.Ragged(torch.rand(9, H, dtype=torch.float64), offsets)
    received, sums = m.received(rows), m.row_sums()
    for n, (low, high) in enumerate(((0, 4), (4, 4), (4, 9))):
        q, v, g = (x.values[low:high].transpose(0, 1) for x in (query, value, grad))
        alone = GradientMap(uwaga.AttentionMap(q, q, mask=uwaga.Causal()), v, g)
        assert m[n].shape == alone.shape
        if high > low:
            assert torch.equal(m[n].to_dense(), alone.to_dense())
            torch.testing.assert_close(received.values[low:high].T, alone.received(rows.values[low:high].T))
            torch.testing.assert_close(sums.values[low:high].T, alone.row_sums())


def layers(
    mask: object = None, queries: int = Q, keys: int = Q, *, seed: int = 0, size: float = 1.0
) -> tuple[list[GradientMap], Tensor]:
    """Three layers, and A_bar of each, (3, B, N, N); size: of the gradients."""
    result, bars = [], []
    for layer in range(3):
        torch.manual_seed(seed + layer)
        query, key, value, grad = (torch.randn(B, H, n, D, dtype=torch.float64) for n in (queries, keys, keys, queries))
        grad *= size
        result.append(GradientMap(uwaga.AttentionMap(query, key, mask=mask), value, grad))
        weights, gradient = dense_by_autograd(query, key, value, grad, mask)
        bars.append((weights * gradient).clamp(min=0).mean(1))
    return result, torch.stack(bars)


@pytest.mark.parametrize("mask", [None, uwaga.Causal()], ids=["none", "causal"])
def test_the_rollout_is_equation_6_with_whole_matrices(mask: object) -> None:
    maps, bars = layers(mask)
    relevance = torch.eye(Q, dtype=torch.float64).expand(B, Q, Q)
    for bar in bars:
        relevance = relevance + bar @ relevance
    for token in (0, 3, -1):
        torch.testing.assert_close(gradient_rollout(maps, token), relevance[:, token], rtol=1e-12, atol=1e-12)
    batch = gradient_rollout(dict(enumerate(maps)), torch.tensor([2, 5]))
    torch.testing.assert_close(batch, relevance[[0, 1], [2, 5]], rtol=1e-12, atol=1e-12)


def normalized(relevance: Tensor) -> Tensor:
    """Equations 8 and 9."""
    added = relevance - torch.eye(relevance.shape[-1], dtype=torch.float64)
    return (added / added.sum(-1, keepdim=True)).nan_to_num(0.0) + torch.eye(relevance.shape[-1], dtype=torch.float64)


def test_the_rollout_through_cross_attention_is_equations_6_to_10_with_whole_matrices() -> None:
    (encoder, encoder_bars), (decoder, decoder_bars) = layers(), layers(uwaga.Causal(), 4, 4, seed=10)
    cross, cross_bars = layers(None, 4, Q, seed=20)
    eye_k, eye_q = (torch.eye(n, dtype=torch.float64).expand(B, n, n) for n in (Q, 4))
    of_keys, of_queries, result = eye_k, eye_q, torch.zeros(B, 4, Q, dtype=torch.float64)
    for bar in encoder_bars:
        of_keys = of_keys + bar @ of_keys
    for bar, cross_bar in zip(decoder_bars, cross_bars, strict=True):
        of_queries, result = of_queries + bar @ of_queries, result + bar @ result
        result = result + normalized(of_queries).mT @ cross_bar @ normalized(of_keys)
    for token in (0, 2, -1):
        torch.testing.assert_close(
            cross_gradient_rollout(encoder, decoder, cross, token), result[:, token], rtol=1e-12, atol=1e-12
        )


def test_small_gradients_are_not_lost_beside_the_identity() -> None:
    """norm(R) does not change with the size of a gradient to first order, and R - I computed from R would have no digit of 1e-17."""
    shapes = ((None, Q, Q, 0), (uwaga.Causal(), 4, 4, 10), (None, 4, Q, 20))
    small, smaller = ([layers(m, q, k, seed=seed, size=size)[0] for m, q, k, seed in shapes] for size in (1e-9, 1e-17))
    torch.testing.assert_close(
        cross_gradient_rollout(*small) * 1e-8, cross_gradient_rollout(*smaller), rtol=1e-6, atol=0.0
    )


def test_the_rollout_through_cross_attention_of_ragged_texts_is_that_of_each() -> None:
    torch.manual_seed(0)
    written, read = torch.tensor([0, 2, 5]), torch.tensor([0, 4, 9])
    of_stack: list[list[GradientMap]] = []
    for queries, keys in ((read, read), (written, written), (written, read)):
        maps = []
        for _ in range(2):
            query, grad = (uwaga.Ragged(torch.randn(int(queries[-1]), H, D), queries) for _ in range(2))
            key, value = (uwaga.Ragged(torch.randn(int(keys[-1]), H, D), keys) for _ in range(2))
            maps.append(GradientMap(uwaga.AttentionMap(query, key), value, grad))
        of_stack.append(maps)
    result = cross_gradient_rollout(*of_stack, -1).to_list()
    for n in range(2):
        torch.testing.assert_close(
            result[n], cross_gradient_rollout(*([m.parts()[n] for m in maps] for maps in of_stack))
        )
