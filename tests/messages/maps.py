"""Calls of maps of weights that raise. Letters: B batch, H query heads, G key heads, Q queries, K keys, D width."""

from collections.abc import Callable
from functools import reduce
from operator import or_

import numpy
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from uwaga import AttentionMap, Causal, Ragged, attend
from uwaga.inspect import rollout
from uwaga.maps import request_signals
from uwaga.maps.derived import DifferenceMap, SubsetMap, WordMap


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


Q, K = x(2, 4, 5, 8), x(2, 2, 7, 8)
OFFSETS = torch.tensor([0, 2, 5])
LARGE = AttentionMap(*[torch.zeros(1).expand(1, 12, 100_000, 64)] * 2)  # takes no memory
RAGGED = Ragged(x(5, 2, 8), OFFSETS)


def small() -> AttentionMap:
    return AttentionMap(Q, K)


def square() -> AttentionMap:
    return AttentionMap(K, K)


def of_lengths(*lengths: int) -> AttentionMap:
    batch = Ragged.from_list([x(n, 2, 8) for n in lengths])
    return AttentionMap(batch, batch)


def weighted(m: AttentionMap) -> object:
    return torch.func.vmap(lambda w: m.received(weights=w))(torch.ones(3, 5))


def paged(**changes: object) -> AttentionMap:
    """Two requests of 1 and 3 queries with 20 and 40 keys, in a cache of 13 blocks of 16 tokens."""
    query, table = Ragged.from_list([x(1, 4, 8), x(3, 4, 8)]), torch.arange(10).view(2, 5)
    given = {"query": query, "key_cache": x(13, 16, 2, 8), "block_table": table, "lengths": torch.tensor([20, 40])}
    return AttentionMap.of_paged(**given | changes)


def traced(read: Callable[[], Tensor]) -> object:
    return make_fx(lambda y: y + read())(Q[..., 0])


CALLS = {
    "AttentionMap: widths": lambda: AttentionMap(Q, x(2, 2, 7, 9)),
    "AttentionMap: heads": lambda: AttentionMap(Q, x(2, 3, 7, 8)),
    "AttentionMap: a mask": lambda: AttentionMap(Q, K, mask=x(5, 5, dtype=torch.bool)),
    "AttentionMap.mass: a second mask": lambda: small().mass(x(6, 7, dtype=torch.bool)),
    "AttentionMap: ragged widths": lambda: AttentionMap(RAGGED, Ragged(x(5, 2, 9), OFFSETS)),
    "AttentionMap: sequences": lambda: AttentionMap(RAGGED, Ragged(x(5, 2, 8), torch.tensor([0, 5]))),
    "AttentionMap: an lse": lambda: AttentionMap(Q, K, lse=x(2, 4, 1)),
    "AttentionMap: a ragged lse": lambda: AttentionMap(RAGGED, RAGGED, lse=RAGGED.with_values(x(5))),
    "AttentionMap.received: weights of rows": lambda: small().received(weights=x(4)),
    "AttentionMap: no tensor": lambda: AttentionMap(Q, [1.0]),
    "AttentionMap: one ragged": lambda: AttentionMap(RAGGED, K),
    "AttentionMap: dtypes": lambda: AttentionMap(Q, K.double()),
    "AttentionMap: devices": lambda: AttentionMap(Q, K.to("meta")),
    "AttentionMap: integers": lambda: AttentionMap(Q.int(), K.int()),
    "AttentionMap: scale": lambda: AttentionMap(Q, K, scale=torch.inf),
    "AttentionMap: softcap": lambda: AttentionMap(Q, K, softcap=0.0),
    "AttentionMap: engine": lambda: AttentionMap(Q, K, impl="torch"),
    "attend: engine of an attend": lambda: attend(Q, K, K, impl="linear"),
    "AttentionMap: lse of another dtype": lambda: AttentionMap(Q, K, lse=x(2, 4, 5, dtype=torch.float64)),
    "AttentionMap: lse that is not ragged": lambda: AttentionMap(RAGGED, RAGGED, lse=x(5, 2)),
    "AttentionMap: lse of other offsets": lambda: AttentionMap(RAGGED, RAGGED, lse=Ragged(x(5, 2), torch.tensor([0, 3, 5]))),
    "AttentionMap: lse that is none": lambda: AttentionMap(Q, K, lse=1.0),
    "AttentionMap: lse elsewhere": lambda: AttentionMap(Q, K, lse=x(2, 4, 5).to("meta")),
    "AttentionMap.received: integer weights": lambda: small().received(weights=torch.arange(5)),
    "AttentionMap.received: no last queries": lambda: small().received(last=0),
    "AttentionMap.received: half a query": lambda: small().received(last=0.5),
    "AttentionMap.topk: no k": lambda: small().topk(0),
    "AttentionMap.effective_count: order": lambda: small().effective_count(order=3),
    "AttentionMap.mass: mask": lambda: small().mass("causal"),
    "AttentionMap.mass: mask elsewhere": lambda: small().mass(x(5, 7, dtype=torch.bool).to("meta")),
    "AttentionMap.mass: a mask of many parts": lambda: AttentionMap(Q, K, impl="cpu").mass(reduce(or_, [Causal()] * 20)),
    "AttentionMap.distance: start": lambda: small().distance(start=torch.tensor([0.5, 1.0])),
    "AttentionMap.distance: half a start": lambda: small().distance(start=1.5),
    "AttentionMap.distance: a start far away": lambda: small().distance(start=1 << 63),
    "AttentionMap.diagonal: half an offset": lambda: small().diagonal(1.5),
    "AttentionMap.diagonal: an offset that is true": lambda: small().diagonal(True),
    "AttentionMap.diagonal: an offset of floats": lambda: small().diagonal(torch.tensor(1.0)),
    "AttentionMap.diagonal: a start by name": lambda: small().diagonal(start="first"),
    "SubsetMap.diagonal: half an offset of any map": lambda: SubsetMap(small(), [1, 2]).diagonal(0.5),
    "SubsetMap.diagonal: half a start of any map": lambda: SubsetMap(small(), [1, 2]).diagonal(start=0.5),
    "SubsetMap.diagonal: half starts of any map": lambda: SubsetMap(small(), [1, 2]).diagonal(start=torch.tensor([0.5, 1.0])),
    "SubsetMap.diagonal: starts of other sequences": lambda: SubsetMap(small(), [1, 2]).diagonal(start=torch.tensor([0, 1, 2])),
    "DifferenceMap.diagonal: starts of other ragged sequences": lambda: DifferenceMap(*[AttentionMap(RAGGED, RAGGED)] * 2).diagonal(start=torch.tensor([0, 1, 2])),
    "AttentionMap.topk: half a k": lambda: small().topk(1.5),
    "AttentionMap.prepare: half a top": lambda: small().prepare(topk=1.5),
    "AttentionMap.prepare: a top below none": lambda: small().prepare(topk=-1),
    "AttentionMap.select: half a part": lambda: small().select(1.5),
    "rollout: half a token": lambda: rollout([AttentionMap(K, K)], 1.5),
    "rollout: half tokens": lambda: rollout([AttentionMap(K, K)], torch.tensor([0.5, 1.0])),
    "rollout: tokens of other sequences": lambda: rollout([AttentionMap(K, K)], torch.tensor([0, 1, 2])),
    "AttentionMap.pool: pooling": lambda: small().pool(2, 2, pooling="mean"),
    "AttentionMap.pool: no rows": lambda: small().pool(0, 2),
    "AttentionMap.pool: descending edges": lambda: small().pool([0, 3, 2], 2),
    "AttentionMap.pool: edges outside": lambda: small().pool(2, [0, 8]),
    "AttentionMap.pool: edges outside one sequence": lambda: AttentionMap(RAGGED, RAGGED).pool([0, 3], 1),
    "AttentionMap.pool: edges before the first": lambda: AttentionMap(x(5, 8), x(7, 8)).pool([-1, 3], 1),
    "AttentionMap.pool: no edges": lambda: small().pool([], 1),
    "AttentionMap.pool: edges of other sequences": lambda: small().pool(x(3, 2, dtype=torch.int64), 1),
    "AttentionMap.pool: fractions of rows": lambda: small().pool([0.5, 1.0], 1),
    "AttentionMap.pool: rows by name": lambda: small().pool("all", 1),
    "AttentionMap.between: spans that are none": lambda: small().between([1, 2]),
    "AttentionMap.between: spans of different lengths": lambda: small().between([(0, 1), (2,)]),
    "AttentionMap.between: spans backwards": lambda: small().between([(3, 1)]),
    "AttentionMap.between: spans outside": lambda: small().between([(0, 2)], [(0, 8)]),
    "attend: no softmax": lambda: attend(Q, K, K, normalize=None),
    "attend: no top": lambda: attend(Q, K, K, topk=0),
    "AttentionMap: engine cpu in float64": lambda: AttentionMap(Q.double(), K.double(), impl="cpu"),
    "AttentionMap: more than 100 nested": lambda: reduce(lambda m, _: SubsetMap(m, range(5)), range(101), AttentionMap(x(5, 4), x(5, 4))),
    "AttentionMap: an index, a query too far": lambda: small()[0, 0, 5],
    "AttentionMap: an index, a key too far": lambda: small()[..., -8],
    "AttentionMap: an index, a key too far in a list": lambda: small()[..., [0, 7]],
    "AttentionMap: an index, a sequence too far": lambda: small()[2],
    "AttentionMap: an index, a head too far": lambda: small()[0, -5],
    "AttentionMap: an index, too many indices": lambda: small()[0, 0, 0, 0, 0],
    "AttentionMap: an index, two ellipses": lambda: small()[..., 0, ...],
    "AttentionMap: an index, bools of another length": lambda: small()[..., torch.tensor([True, False])],
    "AttentionMap: an index, an index of two dimensions": lambda: small()[..., [[0, 1]]],
    "AttentionMap: an index, a fraction": lambda: small()[..., 1.5],
    "AttentionMap: an index, a bool": lambda: small()[..., True],
    "AttentionMap: an index, a new dimension": lambda: small()[..., None],
    "AttentionMap: an index, fractions": lambda: small()[..., [0.5]],
    "AttentionMap: an index, its length": lambda: len(small()),
    "AttentionMap: an index, its items": lambda: list(small()),
    "AttentionMap of a ragged batch: a sequence past the end": lambda: of_lengths(2, 3)[2],
    "AttentionMap of a ragged batch: an ellipsis": lambda: of_lengths(2, 3)[..., 0],
    "AttentionMap of a ragged batch: a slice of sequences": lambda: of_lengths(2, 3)[:2],
    "AttentionMap of a ragged batch: a row": lambda: of_lengths(2, 3).row(0),
    "AttentionMap of a ragged batch: a column": lambda: of_lengths(2, 3).column(0),
    "AttentionMap.to_dense: too large": lambda: LARGE.to_dense(),
    "AttentionMap.to_dense: larger than asked for": lambda: small().to_dense(max_bytes=1),
    "AttentionMap.to_dense: a ragged map larger than asked for": lambda: of_lengths(2, 3).to_dense(max_bytes=1),
    "AttentionMap: too many weights at once": lambda: LARGE[:, :, :5000],
    "AttentionMap.of_paged: a block before the first": lambda: paged(block_table=torch.tensor([[0, -1, 0], [0, 1, 2]])),
    "AttentionMap.of_paged: a block past the last": lambda: paged(block_table=torch.tensor([[0, 1, 0], [0, 1, 13]])),
    "AttentionMap.of_paged: too many keys": lambda: paged(lengths=torch.tensor([20, 81])),
    "AttentionMap.of_paged: less than no keys": lambda: paged(lengths=torch.tensor([-1, 40])),
    "AttentionMap.of_paged: floating lengths": lambda: paged(lengths=torch.tensor([1.0, 2.0])),
    "AttentionMap.of_paged: a table of bools": lambda: paged(block_table=torch.ones(2, 5, dtype=torch.bool)),
    "AttentionMap.of_paged: a table that is a list": lambda: paged(block_table=[[0]]),
    "AttentionMap.of_paged: a table of one dimension": lambda: paged(block_table=torch.ones(5).int()),
    "AttentionMap.of_paged: device of the cache": lambda: paged(key_cache=x(13, 16, 2, 8).to("meta")),
    "AttentionMap.of_paged: dtype of the cache": lambda: paged(key_cache=x(13, 16, 2, 8, dtype=torch.float16)),
    "AttentionMap.of_paged: heads of the cache": lambda: paged(key_cache=x(13, 16, 3, 8)),
    "AttentionMap.of_paged: blocks of no tokens": lambda: paged(key_cache=x(13, 0, 2, 8)),
    "AttentionMap.of_paged: width of the cache": lambda: paged(key_cache=x(13, 16, 2, 4)),
    "AttentionMap.of_paged: query of two dimensions": lambda: paged(query=x(2, 8)),
    "AttentionMap.of_paged: gradient of the cache": lambda: paged(key_cache=x(13, 16, 2, 8).requires_grad_()),
    "AttentionMap.of_paged: gradient of the query": lambda: paged(query=x(2, 4, 8).requires_grad_()),
    "AttentionMap.of_paged: lengths of other requests": lambda: paged(lengths=torch.tensor([20, 40, 1])),
    "request_signals: a dense map": lambda: request_signals(small()),
    "request_signals: a difference": lambda: request_signals(DifferenceMap(paged(), paged())),
    "request_signals: spans of fewer requests": lambda: request_signals(paged(), [[]]),
    "request_signals: a span past the keys": lambda: request_signals(paged(), [[], [(0, 1), (3, 41)]]),
    "request_signals: half a position": lambda: request_signals(paged(), [[(0.5, 1)], []]),
    "request_signals: spans that are a number": lambda: request_signals(paged(), 3),
    "request_signals: spans of a request that are a number": lambda: request_signals(paged(), [[], 3]),
    "request_signals: a span that is a number": lambda: request_signals(paged(), [[3], []]),
    "request_signals: no top": lambda: request_signals(paged(), top=0),
    "request_signals: sinks below 0": lambda: request_signals(paged(), sinks=-1),
    "AttentionMap: as an array": lambda: numpy.array(small()),
    "AttentionMap: as a tensor": lambda: torch.as_tensor(small()),
    "AttentionMap: a tracer and a ragged map": lambda: make_fx(lambda o: AttentionMap(*[Ragged(x(5, 2, 8), o, max_length=5)] * 2).entropy().values)(OFFSETS),
    "AttentionMap: a tracer and a map made before": lambda: traced(small().entropy),
    "AttentionMap: a tracer and the engine cpu": lambda: make_fx(lambda q: AttentionMap(q, K, impl="cpu").entropy())(Q),
    "AttentionMap: weights under vmap": lambda: weighted(small()),
    "AttentionMap: entropy under torch.func": lambda: torch.func.grad(lambda q: AttentionMap(q, K).entropy().sum())(Q),
    "AttentionMap: an entry under torch.func": lambda: torch.func.grad(lambda q: AttentionMap(q, K)[0, 0, 0, 0])(Q),
    "AttentionMap.pool: rows past any limit": lambda: small().pool(2**64, 2),
    "AttentionMap.between: spans of three sequences": lambda: AttentionMap(RAGGED, RAGGED).between(x(3, 1, 2, dtype=torch.int64)),
    "AttentionMap.select: three indices": lambda: small().select(0, 0, 0),
    "AttentionMap.select: a sequence past the end": lambda: small().select(2),
    "AttentionMap.select: a head before the first": lambda: small().select(0, -5),
    "DifferenceMap: shapes": lambda: DifferenceMap(small(), AttentionMap(Q, x(2, 2, 6, 8))),
    "DifferenceMap: devices": lambda: DifferenceMap(small(), AttentionMap(Q.to("meta"), K.to("meta"))),
    "DifferenceMap: ragged lengths": lambda: DifferenceMap(AttentionMap(RAGGED, RAGGED), of_lengths(3, 2)),
    "DifferenceMap.topk: no k": lambda: DifferenceMap(small(), small()).topk(0),
    "DifferenceMap.pool: pooling": lambda: DifferenceMap(small(), small()).pool(1, 1, pooling="mean"),
    "DifferenceMap.pool: no rows": lambda: DifferenceMap(small(), small()).pool(0, 1),
    "DifferenceMap.pool: edges outside": lambda: DifferenceMap(*[AttentionMap(x(2, 4, 3), x(2, 5, 3))] * 2).pool(1, [0, 9]),
    "SubsetMap: a ragged map": lambda: SubsetMap(AttentionMap(RAGGED, RAGGED), [0]),
    "SubsetMap: a position past the end": lambda: SubsetMap(small(), [0, 7]),
    "WordMap: words of fewer tokens": lambda: WordMap(square(), [0, 1]),
    "WordMap: spans that overlap": lambda: WordMap(square(), [(0, 2), (1, 3)]),
    "WordMap: an empty span": lambda: WordMap(square(), [(2, 2)]),
    "WordMap: a span past the end": lambda: WordMap(square(), [(5, 8)]),
    "WordMap: words of fewer sequences": lambda: WordMap(AttentionMap(RAGGED, RAGGED), [[0, 0, 1]]),
}  # fmt: skip
