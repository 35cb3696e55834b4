"""What holds of every map, whatever it is of.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys.
"""

import map_oracle
import pytest
import torch
from drawn import draw_rows
from torch import Tensor

from uwaga import Causal, Documents, KeyLengths, Window
from uwaga.maps.map import AttentionMap

pytestmark = pytest.mark.gate(only=lambda map_engine="cpu": map_engine.startswith("cpu"))

LENGTHS = [67, 0, 1, 130, 33]
MASKS = {"none": None, "causal": Causal(), "strictly past": Causal(include_self=False), "window": Window(9, 4)}
FORMS = {
    "plain": {},
    "causal": {"mask": Causal()},
    "rows that see nothing": {"mask": Causal(include_self=False) & KeyLengths(torch.tensor([0, 90]))},
    "documents": {"mask": Documents(torch.arange(130) // 50)},
    "softcap": {"softcap": 4.0},
    "sinks": {"sinks": torch.tensor([0.0, 1.0, 2.0, -1.0]), "mask": Causal(include_self=False)},
}
# A sum of n numbers that make up a whole, each with a rounding of its own: n roundings of the whole at most.
ROUNDINGS = 130 * torch.finfo(torch.float32).eps


def _map(engine: str, **options) -> AttentionMap:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 4, 70, 16, generator=generator), torch.randn(2, 2, 130, 16, generator=generator)
    return AttentionMap(query, key, **options, impl=engine)


def _shares(m: AttentionMap) -> Tensor:
    """What the keys get of every row: 1 less the sink's share, or 0 where nothing is visible."""
    is_blind = m.topk(1).positions[..., 0] == -1
    return torch.where(is_blind, 0.0, 1.0 - m.sink().learned)


@pytest.mark.parametrize("name", FORMS)
def test_rows_sum_to_what_the_sink_leaves(map_engine: str, name: str) -> None:
    m = _map(map_engine, **FORMS[name])
    torch.testing.assert_close(m.to_dense().sum(-1), _shares(m), rtol=0, atol=ROUNDINGS)
    torch.testing.assert_close(m.mass(torch.ones(70, 130, dtype=torch.bool)), _shares(m), rtol=0, atol=ROUNDINGS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_are_read_with_the_scores_that_were_normalized(map_engine: str, dtype: torch.dtype) -> None:
    """Scores of a thousand, at every width: a score that one pass sums in another order than the next differs by 1e-4."""
    generator = torch.Generator().manual_seed(0)
    eps = torch.finfo(torch.float32).eps
    for width in range(1, 66):
        query, key = (30 * torch.randn(1, 1, n, width, generator=generator) for n in (8, 70))
        m = AttentionMap(query.to(dtype), key.to(dtype), impl=map_engine)
        largest = m.topk(70)  # from the scores that were normalized
        dense = m.to_dense()
        assert float(dense.max()) <= 1.0
        assert torch.equal(m.pool(8, 1, pooling="max").weights[..., 0], dense.amax(-1))
        # The exponent s - max is rounded twice, and so is the weight, in either pass.
        at = dense.gather(-1, largest.positions)
        bound = at * eps * (4 - 2 * at.clamp(min=torch.finfo(torch.float32).tiny).log())
        assert ((at - largest.weights).abs() <= bound + torch.finfo(torch.float32).tiny).all(), f"width {width}"
        ones = torch.ones(1, 1, 8)
        for sums in (
            dense.sum(-1),
            m.mass(torch.ones(8, 70, dtype=torch.bool)),
            m.pool(8, 1).weights[..., 0],
        ):
            torch.testing.assert_close(
                sums, ones, rtol=0, atol=ROUNDINGS, msg=lambda text, w=width: f"width {w}: {text}"
            )
        torch.testing.assert_close(m.received(), dense.sum(-2), rtol=ROUNDINGS, atol=ROUNDINGS * eps)
        torch.testing.assert_close(m.effective_count(), 1 / dense.square().sum(-1), rtol=2 * ROUNDINGS, atol=0)


@pytest.mark.parametrize("name", FORMS)
def test_what_keys_receive_is_what_rows_give(map_engine: str, name: str) -> None:
    m = _map(map_engine, **FORMS[name])
    torch.testing.assert_close(m.received().sum(-1), _shares(m).sum(-1), rtol=ROUNDINGS, atol=0)
    torch.testing.assert_close(m.diagonal_sums().sum(-1), _shares(m).sum(-1), rtol=ROUNDINGS, atol=0)
    last = _shares(m)[..., -9:].sum(-1)
    torch.testing.assert_close(m.received(last=9).sum(-1), last, rtol=ROUNDINGS, atol=0)


@pytest.mark.parametrize("name", FORMS)
def test_the_largest_weights_are_in_the_dense_row(map_engine: str, name: str) -> None:
    m = _map(map_engine, **FORMS[name])
    weights, positions = m.topk(7)
    assert (weights.diff(dim=-1) <= 0).all()
    is_none = positions == -1
    assert torch.equal(weights[is_none], torch.zeros(int(is_none.sum())))
    at = m.to_dense().gather(-1, positions.clamp(min=0))
    torch.testing.assert_close(torch.where(is_none, 0.0, at), weights, rtol=ROUNDINGS, atol=0)
    assert torch.equal(m.peak().weight, weights[..., 0])
    assert torch.equal(m.peak().position, positions[..., 0])
    distinct = positions.sort(-1).values.diff(dim=-1)
    assert ((distinct > 0) | (positions.sort(-1).values[..., 1:] == -1)).all()


def test_equal_weights_come_by_position(map_engine: str) -> None:
    x = torch.zeros(1, 1, 40, 8)
    m = AttentionMap(x, x, mask=Causal(), impl=map_engine)
    weights, positions = m.topk(5)
    assert positions[0, 0, 2].tolist() == [0, 1, 2, -1, -1]
    assert positions[0, 0, 39].tolist() == [0, 1, 2, 3, 4]
    assert m.pool(1, 2, pooling="max").positions[0, 0].tolist() == [[[0, 0], [20, 20]]]
    assert torch.equal(weights[0, 0, 39], torch.full((5,), 1 / 40))


@pytest.mark.parametrize("bins", [(1, 1), (7, 13), (70, 130), (90, 200)], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_a_map_pooled_by_mass_is_a_map(map_engine: str, name: str, bins: tuple[int, int]) -> None:
    m = _map(map_engine, **FORMS[name])
    cells = m.pool(*bins).weights
    starts = torch.tensor(map_oracle.edges(bins[0], 70))
    mean = torch.stack([_shares(m)[..., a:b].sum(-1) / max(b - a, 1) for a, b in starts.unfold(0, 2, 1).tolist()], -1)
    torch.testing.assert_close(cells.sum(-1), mean, rtol=0, atol=ROUNDINGS)
    if bins == (70, 130):
        torch.testing.assert_close(cells, m.to_dense(), rtol=ROUNDINGS, atol=0)


@pytest.mark.parametrize("name", FORMS)
def test_pools_of_pools_are_pools(map_engine: str, name: str) -> None:
    """Zooming out from cells gives what zooming out from the weights gives."""
    m = _map(map_engine, **FORMS[name])
    fine, coarse = m.pool(10, 26), m.pool(5, 13)
    parts = fine.weights.unflatten(-1, (13, 2)).sum(-1).unflatten(-2, (5, 2)).mean(-2)
    torch.testing.assert_close(parts, coarse.weights, rtol=ROUNDINGS, atol=0)
    largest = m.pool(10, 26, pooling="max").weights.unflatten(-1, (13, 2)).amax(-1).unflatten(-2, (5, 2)).amax(-2)
    assert torch.equal(largest, m.pool(5, 13, pooling="max").weights)


@pytest.mark.parametrize("name", FORMS)
def test_the_largest_weight_of_a_cell_is_where_it_says(map_engine: str, name: str) -> None:
    m = _map(map_engine, **FORMS[name])
    rows, columns = [3, 20, 20, 64], [0, 1, 77, 130]
    cells, positions = m.pool(rows, columns, pooling="max")
    dense = m.to_dense()
    for at in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(3), torch.arange(3)).tolist():
        i, j = positions[tuple(at)].tolist()
        if i == -1:
            assert (j, float(cells[tuple(at)])) == (-1, 0.0)
            continue
        assert rows[at[2]] <= i < rows[at[2] + 1]
        assert columns[at[3]] <= j < columns[at[3] + 1]
        torch.testing.assert_close(cells[tuple(at)], dense[at[0], at[1], i, j], rtol=ROUNDINGS, atol=0)


@pytest.mark.parametrize("name", FORMS)
def test_a_map_that_is_told_its_lse_has_the_same_weights(map_engine: str, name: str) -> None:
    m = _map(map_engine, **FORMS[name])
    told = _map(map_engine, **FORMS[name], lse=m.lse)
    # The lse is a float32 number: a rounding of it is as large in the weight's logarithm.
    rounding = 4 * torch.finfo(torch.float32).eps * (1.0 + float(m.lse[m.lse.isfinite()].abs().max()))
    torch.testing.assert_close(told.to_dense(), m.to_dense(), rtol=rounding, atol=0)
    torch.testing.assert_close(told.received(), m.received(), rtol=rounding, atol=0)
    assert torch.equal(told.lse, m.lse)


_OF_QUERIES = {
    "lse": lambda m: m.lse,
    "entropy": lambda m: m.entropy(),
    "normalized entropy": lambda m: m.entropy(normalize=True),
    "effective_count": lambda m: m.effective_count(),
    "distance": lambda m: m.distance(),
    "peak": lambda m: m.peak().weight,
    "position": lambda m: m.peak().position,
    "first key": lambda m: m.sink().first_key,
    "learned sink": lambda m: m.sink().learned,
    "mass": lambda m: m.mass(Causal() & Window(5, None)),
    "diagonal": lambda m: m.diagonal(-1),
    "received": lambda m: m.received(),
    "received, last": lambda m: m.received(last=20),
}
_OF_CELLS = {
    "pool": lambda m: m.pool(3, 5).weights,
    "max": lambda m: m.pool(3, 5, pooling="max").weights,
    "max positions": lambda m: m.pool(3, 5, pooling="max").positions,
}


@pytest.mark.parametrize("name", MASKS)
def test_a_ragged_map_is_each_sequence_alone(map_engine: str, name: str) -> None:
    query, key = draw_rows(LENGTHS, 4, 16), draw_rows(LENGTHS, 2, 16, seed=1)
    sinks = torch.tensor([0.0, 1.0, 2.0, -1.0])
    m = AttentionMap(query, key, mask=MASKS[name], sinks=sinks, impl=map_engine)
    assert m.shape == (5, 4, None, None)
    assert m.shapes == [(4, n, n) for n in LENGTHS]
    for at, (q, k) in enumerate(zip(query.to_list(), key.to_list(), strict=True)):
        operands = [x.transpose(0, 1) for x in (q, k)]
        alone = AttentionMap(*operands, mask=MASKS[name], sinks=sinks, impl=map_engine)
        assert torch.equal(m[at].to_dense(), alone.to_dense())
        for statistic, of in _OF_QUERIES.items():
            assert torch.equal(of(m).to_list()[at].movedim(0, -1), of(alone)), f"{statistic} of row {at}"
        for statistic, of in _OF_CELLS.items():
            assert torch.equal(of(m)[at], of(alone)), f"{statistic} of row {at}"


def test_a_sequence_of_a_ragged_map_knows_what_the_map_knows(map_engine: str) -> None:
    warm, cold = (
        AttentionMap(draw_rows(LENGTHS, 4, 16), draw_rows(LENGTHS, 2, 16, seed=1), mask=Causal(), impl=map_engine)
        for _ in range(2)
    )
    assert torch.equal(warm.lse.to_list()[3].T, cold[3].lse)
    assert torch.equal(warm[3].to_dense(), cold[3].to_dense())


@pytest.mark.parametrize("name", FORMS)
def test_one_thread_is_two_and_twice_is_once(cpu: str, name: str) -> None:
    results = []
    for number in (1, 2, 2):
        torch.set_num_threads(number)
        m = _map(cpu, **FORMS[name])
        results.append([m.to_dense(), *(of(m) for of in (_OF_QUERIES | _OF_CELLS).values())])
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))
