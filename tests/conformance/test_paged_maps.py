"""A map of pages has the bits of the map of the same keys side by side, whatever lies where in the cache.

Letters: R requests, H query heads, G key/value heads, P blocks of the cache, S tokens of a block, T blocks of a request, D query/key width.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from uwaga import AlibiBias, AttentionMap, Causal, KeyLengths, Ragged, Window
from uwaga.maps import request_signals

H, G, D = 4, 2, 24
NAN = float("nan")


@dataclass
class Requests:
    """The same keys side by side and in pages."""

    query: Ragged
    key: Ragged
    cache: Tensor
    table: Tensor
    lengths: Tensor

    def maps(self, **options: object) -> tuple[AttentionMap, AttentionMap]:
        """The map of the keys side by side, and of those in pages."""
        paged = AttentionMap.of_paged(self.query, self.cache, self.table, self.lengths, **options)
        return AttentionMap(self.query, self.key, **options), paged


def make(
    queries: list[int], keys: list[int], size: int, dtype: torch.dtype = torch.float32, seed: int = 0, shared: int = 0
) -> Requests:
    """Random requests, in blocks in random order between blocks of NaN; the table ends with -1 and numbers that no cache has.

    The first `shared` blocks of all requests are the same ones."""
    generator = torch.Generator().manual_seed(seed)
    columns = max(-(-n // size) for n in keys) + 2
    blocks = len(keys) * columns + 3
    free = torch.randperm(blocks, generator=generator).tolist()
    cache = torch.full((blocks, size, G, D), NAN, dtype=dtype)
    table = torch.full((len(keys), columns), -1, dtype=torch.int32)
    table[:, -1] = 2**31 - 1
    prefix = torch.randn(shared * size, G, D, generator=generator).to(dtype)
    common = [free.pop() for _ in range(shared)]
    rows = []
    for r, length in enumerate(keys):
        row = torch.randn(length, G, D, generator=generator).to(dtype)
        row[: len(prefix)] = prefix[:length]
        for t in range(-(-length // size)):
            whole = (t + 1) * size <= length
            table[r, t] = common[t] if t < shared and whole else free.pop()
            part = row[t * size : (t + 1) * size]
            cache[int(table[r, t]), : len(part)] = part
        rows.append(row)
    query = Ragged.from_list([torch.randn(n, H, D, generator=generator).to(dtype) for n in queries])
    return Requests(query, Ragged.from_list(rows), cache, table, torch.tensor(keys, dtype=torch.int32))


READINGS: dict[str, Callable[[AttentionMap], object]] = {
    "lse": lambda m: m.lse,
    "entropy": lambda m: m.entropy(),
    "normalized entropy": lambda m: m.entropy(normalize=True),
    "largest": lambda m: m.topk(5),
    "peak": lambda m: m.peak(),
    "largest score": lambda m: m.max_logit(),
    "distance": lambda m: m.distance(),
    "effective count": lambda m: m.effective_count(),
    "sink": lambda m: m.sink(),
    "mass": lambda m: m.mass(Window(3, 0)),
    "received": lambda m: m.received(),
    "diagonals": lambda m: m.diagonal_sums(),
    "a diagonal": lambda m: m.diagonal(-1),
    "pooled": lambda m: m.pool(2, 5),
    "largest of cells": lambda m: m.pool(2, 5, "max"),
    "everything": lambda m: m.to_dense(),
    "scores": lambda m: m.scores.to_dense(),
    "a row": lambda m: m[1].row(-1),
    "entries": lambda m: m[0][[3, 1], :, [0, 5]] if m.shapes[0][1] else None,
    "one head": lambda m: m.select(-1, 3).lse,
    "a row of one head": lambda m: m.select(-1, 1).row(0),
    "keys": lambda m: m.key,
    "keys of a head": lambda m: m.select(-1, 3).key,
    "signals": lambda m: request_signals(m, [[(0, 1)]] * len(m)),
}


@pytest.fixture
def paged_engine(map_engine: str) -> str:
    """The engines that read pages; the one that does not says so."""
    if map_engine != "triton":
        return map_engine
    with pytest.raises(ValueError, match="it reads keys that lie one after another, and not in the pages of a cache"):
        make([1], [3], 2).maps(impl="triton")
    return "reference"


def assert_same(a: object, b: object, what: str) -> None:
    """Bit for bit, through tuples and ragged results."""
    if isinstance(a, Ragged):
        assert isinstance(b, Ragged)
        a, b = (a.offsets, a.values), (b.offsets, b.values)
    if isinstance(a, Tensor):
        assert isinstance(b, Tensor)
        assert a.shape == b.shape, what
        assert torch.equal(a, b), what
    elif isinstance(a, (tuple, list)):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y, what)
    else:
        assert a == b, what


def assert_same_maps(maps: tuple[AttentionMap, AttentionMap]) -> None:
    for what, read in READINGS.items():
        assert_same(*map(read, maps), what)


@pytest.mark.parametrize("size", [1, 2, 16, 64, 100, 128, 256])
def test_every_reading_has_the_bits_of_the_contiguous_map(paged_engine: str, size: int) -> None:
    requests = make([7, 1, 40], [130, 1, 700], size)
    assert_same_maps(requests.maps(mask=Causal(), impl=paged_engine))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_in_other_dtypes(paged_engine: str, dtype: torch.dtype) -> None:
    if paged_engine != "reference" and dtype == torch.float64:
        return
    assert_same_maps(make([2, 5], [80, 210], 16, dtype).maps(mask=Causal(), impl=paged_engine))


def test_over_several_chunks_of_keys_and_threads() -> None:
    requests = make([1, 1, 200], [5000, 1, 4100], 16)
    alone, paged = requests.maps(mask=Causal())
    torch.set_num_threads(2)
    for what in ("lse", "largest", "received"):
        assert_same(*map(READINGS[what], (alone, paged)), what)


def test_with_every_option(paged_engine: str) -> None:
    requests = make([3, 9], [70, 300], 16)
    sinks = torch.tensor([0.0, 1.0, -1.0, 3.0])
    options = {"bias": AlibiBias(torch.tensor([0.5, 0.25, 2.0, 0.0])), "softcap": 5.0}
    mask = Causal() & KeyLengths(torch.tensor([50, 300]))
    assert_same_maps(requests.maps(mask=mask, scale=0.7, sinks=sinks, impl=paged_engine, **options))


def test_prefixes_that_requests_share(paged_engine: str) -> None:
    requests = make([1, 4, 2], [48, 100, 61], 16, shared=3)
    assert len({tuple(row[:3].tolist()) for row in requests.table}) == 1
    assert_same_maps(requests.maps(mask=Causal(), impl=paged_engine))


def test_one_token_of_each_request(paged_engine: str) -> None:
    requests = make([1, 1, 1], [33, 1, 17], 8)
    paged = AttentionMap.of_paged(
        requests.query.values, requests.cache, requests.table, requests.lengths, impl=paged_engine
    )
    assert_same_maps((AttentionMap(requests.query, requests.key, impl=paged_engine), paged))


@pytest.mark.parametrize("layout", ["keys and values", "heads before tokens", "reversed width"])
def test_strided_caches_are_read_in_place(paged_engine: str, layout: str) -> None:
    requests = make([2, 3], [70, 41], 16)
    cache = requests.cache
    if layout == "keys and values":
        cache = torch.stack((cache, torch.full_like(cache, NAN)), dim=1)[:, 0]
    elif layout == "heads before tokens":
        cache = cache.transpose(1, 2).contiguous().transpose(1, 2)
    else:
        cache = cache.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    assert not cache.is_contiguous()
    assert_same_maps(replace(requests, cache=cache).maps(mask=Causal(), impl=paged_engine))


def test_a_request_without_keys_and_a_batch_without_requests(paged_engine: str) -> None:
    requests = make([1, 2], [0, 20], 8)
    contiguous, paged = requests.maps(mask=Causal(), impl=paged_engine)
    assert_same(contiguous.lse, paged.lse, "lse")
    assert_same(contiguous.topk(3), paged.topk(3), "largest")
    none = AttentionMap.of_paged(
        requests.query.values[:0], requests.cache, requests.table[:0], requests.lengths[:0], impl=paged_engine
    )
    assert none.lse.values.shape == (0, H)
    assert request_signals(none) == []


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 90)), min_size=1, max_size=4),
    st.integers(1, 256),
    st.integers(0, 1000),
)
def test_any_requests_and_block_size(lengths: list[tuple[int, int]], size: int, seed: int) -> None:
    queries, keys = zip(*lengths, strict=True)
    contiguous, paged = make(list(queries), list(keys), size, seed=seed).maps(mask=Causal())
    for what in ("lse", "entropy", "largest", "received", "everything"):
        assert_same(*map(READINGS[what], (contiguous, paged)), what)


def test_pages_survive_pickling() -> None:
    _, paged = make([2], [50], 16).maps()
    assert_same(paged.to_dense(), pickle.loads(pickle.dumps(paged)).to_dense(), "everything")


def test_no_keys_are_copied(cpu: str) -> None:
    """The engine reads what is in the cache at that moment: a copy made before would not see the change."""
    requests = make([1], [50], 16)
    _, paged = requests.maps(impl=cpu)
    requests.cache[int(requests.table[0, 1]), 3] = 7.0
    changed = requests.key.values.clone()
    changed[19] = 7.0
    expected = AttentionMap(requests.query, requests.key.with_values(changed), impl=cpu)
    assert_same(expected.lse, paged.lse, "lse")


def test_an_engine_that_reads_no_pages_says_so() -> None:
    _, paged = make([1, 3], [20, 40], 16).maps()
    choice = paged.explain()
    assert choice.refused["triton"] == "it reads keys that lie one after another, and not in the pages of a cache"


def test_a_table_that_changes_afterwards_is_a_copy() -> None:
    requests = make([1], [50], 16)
    contiguous, paged = requests.maps()
    requests.table.fill_(10**6)
    assert_same(contiguous.to_dense(), paged.to_dense(), "everything")


def test_signals_are_those_of_the_dense_map(paged_engine: str) -> None:
    requests = make([3, 1], [40, 21], 16)
    spans = [[(0, 40), (5, 9), (7, 20)], [(20, 21), (3, 3)]]
    contiguous, paged = requests.maps(mask=Causal(), impl=paged_engine)
    for r, signals in enumerate(request_signals(paged, spans, sinks=2, top=4)):
        dense_HQK = contiguous[r][:]
        torch.testing.assert_close(signals.sink, dense_HQK[..., :2].sum(-1))
        masses = [dense_HQK[..., first:last].sum(-1) for first, last in spans[r]]
        torch.testing.assert_close(signals.spans, torch.stack(masses, dim=-1))
        assert_same(signals.entropy, contiguous[r].entropy(), "entropy")
        assert_same(signals.top, contiguous[r].topk(4), "largest")


def test_signals_need_no_gradient_and_as_many_keys_as_there_are() -> None:
    query = Ragged.from_list([torch.randn(2, 3, 4, requires_grad=True)])
    m = AttentionMap(query, query, mask=Causal())
    (signals,) = request_signals(m, [torch.tensor([[0, 2]])], top=5)
    assert not any(x.requires_grad for x in (signals.entropy, signals.sink, signals.spans, signals.top.weights))
    assert signals.top.positions[:, 0].tolist() == [[0, -1, -1, -1, -1]] * 3
    assert (signals.top.weights[:, 1, 2:] == 0).all()
    torch.testing.assert_close(signals.spans, torch.ones(3, 2, 1))
    assert m.entropy().values.requires_grad
