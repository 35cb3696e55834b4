"""What a map is measured against: its statistics as one writes them down over the dense matrix, in float64 and in plain
PyTorch in the input's dtype. The rule is that of oracle.py.

Letters: B sequences, H query heads, Q queries, K keys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import oracle
import tolerance
import torch
from torch import Tensor

from uwaga import Causal, Window
from uwaga.maps.map import AttentionMap
from uwaga.ops.attention.arguments import AttentionOptions, make_call
from uwaga.ops.attention.call import Call


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A map as its matrix."""

    weights: Tensor  # (B, H, Q, K)
    lse: Tensor  # (B, H, Q)
    scores: Tensor  # (B, H, Q, K)
    seen: Tensor  # (B, H, Q, K) bool
    sinks: Tensor | None

    @staticmethod
    def of(call: Call, by_logarithm: bool = False) -> "Dense":
        weights, lse = oracle.plain_weights(call, True, by_logarithm)
        scores, seen = oracle.plain_scores(call)
        return Dense(weights=weights, lse=lse, scores=scores, seen=seen, sinks=call.sinks)

    @property
    def distance(self) -> Tensor:
        """(Q, K): |j - p|, the last query at the last key."""
        queries, keys = self.weights.shape[2:]
        return (torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)).abs()


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """One number or several per query, key or cell: how a map gives it, and how it is written over the matrix."""

    of_map: Callable[[AttentionMap], Tensor]
    of_dense: Callable[[Dense], Tensor]


def _normalized_entropy(dense: Dense) -> Tensor:
    count = dense.seen.sum(-1)
    entropy = torch.special.entr(dense.weights).sum(-1)
    return torch.where(count > 1, entropy / count.clamp(min=2).to(entropy.dtype).log(), 0.0)


def _effective_count(dense: Dense) -> Tensor:
    squares = dense.weights.square().sum(-1)
    return torch.where(squares == 0, 0.0, 1.0 / squares)


def _top(dense: Dense, k: int) -> Tensor:
    result = dense.weights.topk(min(k, dense.weights.shape[-1]), dim=-1).values
    return torch.nn.functional.pad(result, (0, k - result.shape[-1]))


def _within(mask, dense: Dense) -> Tensor:
    shown = mask.dense(_sizes(dense)) if not isinstance(mask, Tensor) else mask
    return torch.where(shown, dense.weights, 0.0).sum(-1)


def _sizes(dense: Dense):
    from uwaga.ops.score_shape import ScoreShape

    batch, heads, queries, keys = dense.weights.shape
    return ScoreShape(queries=queries, keys=keys, batch=(batch,), heads=heads)


def edges(bins: int, size: int) -> list[int]:
    return [b * size // bins for b in range(bins + 1)]


def pooled(weights: Tensor, rows: list[int], columns: list[int], pooling: str) -> Tensor:
    """(B, H, rows, columns), a cell at a time."""
    cells = weights.new_zeros((*weights.shape[:2], len(rows) - 1, len(columns) - 1))
    for r in range(len(rows) - 1):
        for c in range(len(columns) - 1):
            cell = weights[:, :, rows[r] : rows[r + 1], columns[c] : columns[c + 1]]
            if cell.shape[2] and cell.shape[3]:
                cells[:, :, r, c] = cell.amax((2, 3)) if pooling == "max" else cell.sum(3).mean(2)
    return cells


def _pool(pooling: str, dense: Dense) -> Tensor:
    queries, keys = dense.weights.shape[2:]
    return pooled(dense.weights, edges(5, queries), edges(7, keys), pooling)


def _diagonal_sums(dense: Dense) -> Tensor:
    queries, keys = dense.weights.shape[-2:]
    diagonals = [dense.weights.diagonal(offset, -2, -1).sum(-1) for offset in range(1 - queries, keys)]
    return torch.stack(diagonals, -1) if diagonals else dense.lse.new_zeros((*dense.weights.shape[:2], 0))


def _row_weights(queries: int) -> Tensor:
    return torch.linspace(0.0, 2.0, queries) if queries else torch.zeros(0)


WINDOW = Window(3, 1) | Causal(include_self=False, start=0)

STATISTICS = {
    "weights": Statistic(of_map=lambda m: m.to_dense(), of_dense=lambda x: x.weights),
    "lse": Statistic(of_map=lambda m: m.lse, of_dense=lambda x: x.lse),
    "entropy": Statistic(of_map=lambda m: m.entropy(), of_dense=lambda x: torch.special.entr(x.weights).sum(-1)),
    "entropy, normalized": Statistic(of_map=lambda m: m.entropy(normalize=True), of_dense=_normalized_entropy),
    "effective_count": Statistic(of_map=lambda m: m.effective_count(), of_dense=_effective_count),
    "distance": Statistic(
        of_map=lambda m: m.distance(), of_dense=lambda x: (x.weights * x.distance.to(x.weights.dtype)).sum(-1)
    ),
    "top 5": Statistic(of_map=lambda m: m.topk(5).weights, of_dense=lambda x: _top(x, 5)),
    "peak": Statistic(of_map=lambda m: m.peak().weight, of_dense=lambda x: _top(x, 1)[..., 0]),
    "first key": Statistic(of_map=lambda m: m.sink().first_key, of_dense=lambda x: x.weights[..., :1].sum(-1)),
    "learned sink": Statistic(
        of_map=lambda m: m.sink().learned,
        of_dense=lambda x: torch.zeros_like(x.lse) if x.sinks is None else (x.sinks[:, None].to(x.lse) - x.lse).exp(),
    ),
    "mass": Statistic(of_map=lambda m: m.mass(WINDOW), of_dense=partial(_within, WINDOW)),
    "received": Statistic(of_map=lambda m: m.received(), of_dense=lambda x: x.weights.sum(-2)),
    "received, last": Statistic(of_map=lambda m: m.received(last=9), of_dense=lambda x: x.weights[:, :, -9:].sum(-2)),
    "received, weighed": Statistic(
        of_map=lambda m: m.received(weights=oracle.on_device(_row_weights(m.shape[-2]).to(m.dtype))),
        of_dense=lambda x: (x.weights * _row_weights(x.weights.shape[2]).to(x.weights.dtype)[:, None]).sum(-2),
    ),
    "sums of diagonals": Statistic(of_map=lambda m: m.diagonal_sums(), of_dense=_diagonal_sums),
    "pool, mass": Statistic(of_map=lambda m: m.pool(5, 7).weights, of_dense=partial(_pool, "sum")),
    "pool, max": Statistic(of_map=lambda m: m.pool(5, 7, pooling="max").weights, of_dense=partial(_pool, "max")),
}


def lowered(query, key, *, mask=None, bias=None, scale=None, softcap=None, sinks=None) -> Call:
    return make_call(query, key, None, AttentionOptions(mask, bias, scale, "softmax", softcap, sinks), wants_lse=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """What the statistics of one map are compared with."""

    exact: Dense
    plains: list[Dense]  # in the ways that one writes the matrix down; see oracle.usual
    options: dict  # in float64

    @staticmethod
    def of(options: dict, in_float64: dict) -> "Case":
        """From the arguments of a map, and the same in float64."""
        ways = [False, True] if options["query"].dtype == torch.float32 else [False]
        plains = [Dense.of(lowered(**options), by_logarithm) for by_logarithm in ways]
        return Case(exact=Dense.of(lowered(**in_float64)), plains=plains, options=in_float64)


@cache
def _derived(case: Case, seed: int) -> Dense:
    with tolerance.roundings(torch.float32, seed):
        return Dense.of(lowered(**case.options), by_logarithm=True)


def assert_as_exact(name: str, result: Tensor, case: Case, *, factor: float = 2.0) -> None:
    """A statistic of a map is at most twice as far from exact as one makes it from the plain matrices, or as that arithmetic is by
    itself."""
    of_dense = STATISTICS[name].of_dense

    def derive(seed: int) -> list[Tensor]:
        dense = _derived(case, seed)
        with tolerance.roundings(torch.float32, seed):
            made = of_dense(dense)
        return [made.to(result.dtype).double()]

    ways = [[of_dense(plain)] for plain in case.plains]
    oracle.assert_near(name, [result.cpu()], [of_dense(case.exact)], ways, derive, factor)
