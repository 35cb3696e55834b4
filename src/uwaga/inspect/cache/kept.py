"""The result of a policy: the keys that each query may read.

Letters: H query heads, S sets of keys (of one or more heads each), N tokens, C queries of a block, n keys of a query.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class KeptKeys(NamedTuple):
    """Hold the keys that some queries read."""

    keys: Tensor  # (C, n) int64
    is_kept: Tensor  # (C, n) bool: False for filling; a row keeps each key at most once


class Kept(ABC):
    """Give the keys that one policy keeps with one budget, in one layer over one text."""

    @abstractmethod
    def read(self, head: int, rows: Tensor, weights: Tensor) -> KeptKeys:
        """Return the keys that a head's queries read.

        Args:
            head: the number of the head.
            rows: (C,) ascending queries after the prompt.
            weights: (C, last query + 1), their exact weights.
        """


class Evicted(Kept):
    """Evict keys permanently: the queries i with j <= i < until_j read key j. O(S N) memory.

    Args:
        until: (S, N) int64 for S sets of keys; H is a multiple of S, and consecutive heads share a set.
        heads: H.

    Raises:
        ValueError: another shape, or an S that does not divide H.
    """

    def __init__(self, until: Tensor, heads: int) -> None:
        if until.dim() != 2 or not len(until) or heads % len(until):
            shape = tuple(until.shape)
            raise ValueError(f"Evicted: until must be (S, N) with an S that divides {heads} heads, not {shape}")
        self.until, self._heads_of_set = until, heads // until.shape[0]

    def read(self, head: int, rows: Tensor, weights: Tensor) -> KeptKeys:
        until_K = self.until[head // self._heads_of_set, : weights.shape[1]]
        keys = (until_K > rows[0]).nonzero()[:, 0]
        is_kept = (keys <= rows[:, None]) & (until_K[keys] > rows[:, None])
        return KeptKeys(keys.expand(len(rows), -1), is_kept)


class Lines(Kept):
    """Keep a fixed pattern: columns, the same keys for all queries, and slashes, keys at the same distance.

    Args:
        columns: (n,) keys for each head.
        distances: (m,) distances i - j >= 0 for each head.
        tokens: N.
    """

    def __init__(self, columns: list[Tensor], distances: list[Tensor], tokens: int) -> None:
        self.columns, self.distances = columns, distances
        self._is_column = torch.zeros((len(columns), tokens), dtype=torch.bool, device=columns[0].device)
        for is_column, keys in zip(self._is_column, columns, strict=True):
            is_column[keys] = True

    def read(self, head: int, rows: Tensor, weights: Tensor) -> KeptKeys:
        columns = self.columns[head]
        columns = columns[columns < weights.shape[1]].expand(len(rows), -1)
        slashes = rows[:, None] - self.distances[head]
        inside = slashes.clamp(min=0)
        is_slash = (slashes >= 0) & ~self._is_column[head][inside]
        return KeptKeys(torch.cat((columns, inside), 1), torch.cat((columns <= rows[:, None], is_slash), 1))


class Chosen(Kept):
    """Keep the keys that each query chooses from all keys before it; `choose` is called as `Kept.read`."""

    def __init__(self, choose: Callable[[int, Tensor, Tensor], KeptKeys]) -> None:
        self._choose = choose

    def read(self, head: int, rows: Tensor, weights: Tensor) -> KeptKeys:
        return self._choose(head, rows, weights)


def largest(x: Tensor, k: int) -> Tensor:
    """Return the ascending positions (..., min(k, n)) of the largest numbers of (..., n), equal ones by position.

    NaN is the smallest.
    """
    size = x.shape[-1]
    k = min(k, size)
    if k in (0, size):
        return torch.arange(k, device=x.device).expand(*x.shape[:-1], -1)
    bound = _smallest_of_largest(x, k)
    is_chosen = x >= bound
    if bool((is_chosen.sum(-1) != k).any()):
        x = torch.where(x.isnan(), -float("inf"), x)
        bound = _smallest_of_largest(x, k)
        is_larger, is_equal = x > bound, x == bound
        is_chosen = is_larger | (is_equal & (is_equal.cumsum(-1) <= k - is_larger.sum(-1, keepdim=True)))
    return is_chosen.nonzero()[:, -1].reshape(*x.shape[:-1], k)


def _smallest_of_largest(x: Tensor, k: int) -> Tensor:
    """Return the k-th largest of (..., n), as (..., 1)."""
    if x.device.type != "cpu":
        return x.topk(k).values[..., -1:]
    at = x.shape[-1] - k
    # Forty times as fast as torch.topk on a CPU.
    return torch.from_numpy(np.partition(x.numpy(), at, axis=-1)[..., at : at + 1])
