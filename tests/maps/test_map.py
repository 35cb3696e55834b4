"""What a map shows of itself, which shapes its results have, and what it computes when.

Letters: B batch, H query heads, G key heads, Q queries, K keys, D query/key width, N packed tokens.
"""

import pytest
import torch
from engines import NATIVE
from largest import Largest
from torch import Tensor

import uwaga
from uwaga import AttentionMap, Causal, Documents, KeyLengths, Ragged, Window


def _ragged(*lengths: int) -> Ragged:
    return Ragged.from_list([torch.randn(n, 2, 4) for n in lengths])


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        (None, "None"),
        (
            Causal() & Window(4, None),
            "Both(left=Causal(include_self=True, start=None), right=Window(left=4, right=None, start=None))",
        ),
        (KeyLengths(torch.tensor([7])), "KeyLengths(lengths=int64 (1,))"),
        (torch.ones(4096, 4096, dtype=torch.bool), "bool (4096, 4096)"),
    ],
    ids=str,
)
def test_a_map_shows_its_shape_its_mask_and_what_it_would_take(mask: object, shown: str) -> None:
    x = torch.zeros(1).expand(1, 12, 4096, 64)
    assert repr(AttentionMap(x, x, mask=mask)) == (
        f"AttentionMap(shape=(1, 12, 4096, 4096), mask={shown}, float32, 805.3 MB as a dense matrix)"
    )


def test_a_ragged_map_shows_what_all_its_sequences_would_take() -> None:
    batch = _ragged(2, 0, 30)
    m = AttentionMap(batch, batch, mask=Documents(torch.zeros(32, dtype=torch.int64)))
    mask = "mask=Documents(ids=int64 (32,), query_ids=None), float32"
    assert repr(m) == f"AttentionMap(shape=(3, 2, ?, ?), {mask}, 7.2 kB as a dense matrix)"
    assert repr(m[0]) == f"AttentionMap(shape=(2, 2, 2), {mask}, 32 bytes as a dense matrix)"


FORMS = {
    "a matrix": ((5, 4), (7, 4)),
    "heads": ((6, 5, 4), (2, 7, 4)),
    "a batch": ((3, 6, 5, 4), (3, 2, 7, 4)),
    "five dimensions": ((2, 3, 6, 5, 4), (2, 3, 2, 7, 4)),
    "no queries": ((3, 6, 0, 4), (3, 2, 7, 4)),
    "no keys": ((3, 6, 5, 4), (3, 2, 0, 4)),
    "no sequences": ((0, 6, 5, 4), (0, 2, 7, 4)),
}


@pytest.mark.parametrize(("form", "dtype"), [*((form, torch.float32) for form in FORMS), ("heads", torch.bfloat16)])
def test_results_have_the_dimensions_of_the_query(form: str, dtype: torch.dtype) -> None:
    (*leading, queries, _), (*_, keys, _) = FORMS[form]
    m = AttentionMap(*(torch.randn(shape).to(dtype) for shape in FORMS[form]))
    per_query, per_key = (*leading, queries), (*leading, keys)
    assert m.shape == (*leading, queries, keys)
    assert m.shapes == [m.shape]
    assert m.dtype == torch.float32
    assert m
    for x in (m.lse, m.entropy(), m.entropy(normalize=True), m.distance(), m.effective_count(), *m.sink(), m.mass(Causal()),
              m.diagonal(), m.peak().weight):  # fmt: skip
        assert (tuple(x.shape), x.dtype) == (per_query, torch.float32)
    assert (tuple(m.peak().position.shape), m.peak().position.dtype) == (per_query, torch.int64)
    assert tuple(m.topk(3).weights.shape) == tuple(m.topk(3).positions.shape) == (*per_query, 3)
    for x in (m.received(), m.received(last=2), m.received(weights=torch.ones(queries))):
        assert (tuple(x.shape), x.dtype) == (per_key, torch.float32)
    assert (tuple(m.diagonal_sums().shape), m.diagonal_sums().dtype) == ((*leading, queries + keys - 1), torch.float32)
    assert tuple(m.pool(2, 3).weights.shape) == tuple(m.pool(2, 3, pooling="max").weights.shape) == (*leading, 2, 3)
    assert tuple(m.pool(2, 3, pooling="max").positions.shape) == (*leading, 2, 3, 2)
    assert m.pool(2, 3).positions is None
    assert tuple(m.to_dense().shape) == m.shape


@pytest.mark.parametrize("lengths", [(2, 0, 3), (0,), ()], ids=str)
@pytest.mark.parametrize("heads", [2, None])
def test_ragged_results_are_ragged(heads: int | None, lengths: tuple[int, ...]) -> None:
    tokens, rows = sum(lengths), len(lengths)
    width = () if heads is None else (heads,)
    offsets = torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])
    batch = Ragged(torch.randn(tokens, *width, 4), offsets)
    m = AttentionMap(batch, batch, mask=Causal())
    assert m.shape == (rows, *width, None, None)
    assert m.shapes == [(*width, n, n) for n in lengths]
    per_query = [m.lse, m.entropy(), m.entropy(normalize=True), m.distance(), m.effective_count(), m.mass(Causal())]
    for x in (*per_query, m.diagonal(), m.received(), m.received(last=2), *m.sink(), *m.peak()):
        assert isinstance(x, Ragged)
        assert x.values.shape == (tokens, *width)
        assert torch.equal(x.offsets, offsets)
    assert m.topk(3).weights.values.shape == (tokens, *width, 3)
    sums = m.diagonal_sums()
    assert isinstance(sums, Ragged)
    assert sums.values.shape == (int(sums.offsets[-1]), *width)
    assert sums.offsets.diff().tolist() == [max(2 * n - 1, 0) for n in lengths]
    assert m.pool(2, 3).weights.shape == (rows, *width, 2, 3)
    assert m.pool(2, 3, pooling="max").positions.shape == (rows, *width, 2, 3, 2)
    assert [x.shape for x in m.to_dense()] == m.shapes


def test_what_was_computed_is_not_computed_again() -> None:
    """The query changes after the first reading: what is computed after that is of another query."""
    query, key = torch.randn(2, 3, 100, 4), torch.randn(2, 3, 120, 4)
    m, other = AttentionMap(query, key, impl="reference"), AttentionMap(torch.zeros_like(query), key)
    m.prepare(entropy=True, effective_count=True, distance=True, topk=8)
    readings = (m.entropy, m.effective_count, m.distance, lambda: m.topk(8), m.peak)
    before = [read() for read in readings]
    query.zero_()
    for read, expected in zip(readings, before, strict=True):
        torch.testing.assert_close(read(), expected, rtol=0, atol=0)
    torch.testing.assert_close(m.topk(9).weights, other.topk(9).weights)
    for start in (3, torch.tensor([1, 2])):
        torch.testing.assert_close(m.distance(start=start), other.distance(start=start))


def test_a_part_reads_the_queries_and_keys_where_they_are() -> None:
    query, key = torch.randn(2, 4, 6, 8).requires_grad_(), torch.randn(2, 2, 7, 8)
    m = AttentionMap(query, key)
    part = m.select(1, 3)
    assert part.query.data_ptr() == query[1, 3].data_ptr()
    assert part.key.data_ptr() == key[1, 1].data_ptr()
    gradients = [torch.autograd.grad(x.sum(), query)[0] for x in (part.entropy(), m.entropy()[1, 3])]
    torch.testing.assert_close(*gradients)


def test_scores_are_those_of_the_formula() -> None:
    q, k, slopes = torch.randn(2, 4, 50, 8).double(), torch.randn(2, 2, 600, 8).double(), torch.rand(4).double()
    m = AttentionMap(q, k, mask=uwaga.Causal(), bias=uwaga.AlibiBias(slopes), softcap=5.0)
    distance = (torch.arange(50)[:, None] + 550 - torch.arange(600)).abs()
    capped = 5.0 * torch.tanh(q @ k.repeat_interleave(2, dim=1).mT / 8**0.5 / 5.0)
    expected = (capped - slopes[:, None, None] * distance).masked_fill(torch.ones(50, 600).triu(551).bool(), -torch.inf)
    torch.testing.assert_close(m.scores.to_dense(), expected)
    torch.testing.assert_close(m.scores[1, 2, [3, 49], 40:600:7], expected[1, 2, [3, 49], 40:600:7])


@pytest.mark.parametrize("pooling", ["sum", "max"])
def test_pooling_some_rows_looks_at_these_alone(pooling: str) -> None:
    q, k = torch.randn(2, 300, 8), torch.randn(2, 500, 8)
    edges = [100, 120, 140]
    whole = AttentionMap(q, k, impl="reference").pool([0, *edges, 300], 5, pooling=pooling)
    with Largest() as largest:
        some = AttentionMap(q, k, impl="reference").pool(edges, 5, pooling=pooling)
    assert largest.bytes < 300 * 500 * 4
    assert torch.equal(some.weights, whole.weights[:, 1:3])


# Statistics where learned sinks take nearly everything, or nothing.

ENGINES = ["reference", NATIVE]


def _with_sink(sink: float, impl: str, dtype: torch.dtype = torch.float32) -> AttentionMap:
    query, key = torch.ones(1, 1, 2, 4, dtype=dtype), torch.zeros(1, 1, 3, 4, dtype=dtype)
    mask = Causal(include_self=False, start=0)  # the first query sees nothing
    return AttentionMap(query, key, mask=mask, sinks=torch.tensor([sink], dtype=dtype), impl=impl)


@pytest.mark.parametrize("impl", ENGINES)
def test_the_effective_count_grows_beyond_every_number(impl: str) -> None:
    m = _with_sink(40.0, impl)
    torch.testing.assert_close(
        m.effective_count()[0, 0].double(), _with_sink(40.0, "reference", torch.float64).effective_count()[0, 0]
    )
    assert _with_sink(90.0, impl).effective_count()[0, 0].tolist() == [0, torch.inf]


@pytest.mark.parametrize("impl", ENGINES)
def test_a_sink_of_minus_infinity_takes_nothing(impl: str) -> None:
    m = _with_sink(-torch.inf, impl)
    assert m.sink().learned.tolist() == [[[0, 0]]]
    assert m.entropy().tolist() == [[[0, 0]]]
    query: Tensor = torch.randn(2, 2, 3, 4)
    sinks, mask = torch.tensor([-torch.inf, 1.0]), KeyLengths(torch.tensor([0, 3]))
    learned = AttentionMap(query, query, sinks=sinks, mask=mask, impl=impl).sink().learned
    assert learned[0].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert learned[1, 0].tolist() == [0, 0, 0]
    assert learned[1, 1].gt(0).all()
