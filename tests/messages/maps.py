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
from uwaga.maps.derived import DifferenceMap, SubsetMap, WordMap


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


Q, K = x(2, 4, 5, 8), x(2, 2, 7, 8)
OFFSETS = torch.tensor([0, 2, 5])
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
