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


def traced(read: Callable[[], Tensor]) -> object:
    return make_fx(lambda y: y + read())(Q[..., 0])
