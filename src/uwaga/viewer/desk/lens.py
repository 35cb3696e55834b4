"""One head of an exhibit as a matrix of items, whatever kind of map it comes from.

Letters: H query heads, Q and K items along the queries and the keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uwaga.maps.base import WeightMap
from uwaga.maps.derived import DifferenceMap, KeptMap, WordMap
from uwaga.maps.map import AttentionMap
from uwaga.viewer.desk.axes import Axis
from uwaga.viewer.exhibit import Name, Side

_STEP = 1 << 23  # weights of one step, as many as a map's engine computes in a few hundredths of a second
# How much longer a weight takes that is read than one that an engine pools, about.
_READ, _KEPT, _MERGED = 4, 4, 1


@dataclass(frozen=True, kw_only=True)
class Lens:
    """A matrix (Q, K).

    map: (Q, K), or (H, Q, K) of which `at` picks the head.
    """

    map: WeightMap
    at: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Q and K."""
        queries, keys = self.map.shape[-2:]
        return int(queries), int(keys)

    @property
    def plain(self) -> AttentionMap | None:
        """The attention itself where that is what is seen, which pools by its engine and knows its scores."""
        return self.map if isinstance(self.map, AttentionMap) and not self.at else None

    @cached_property
    def work(self) -> NDArray[np.int64]:
        """(Q+1,) rising: what all rows before a row take to compute, in weights of a plain map."""
        return np.concatenate([[0], np.cumsum(_work(self.map))])

    def stop(self, first: int, last: int) -> int:
        """Where a step ends that reads the rows from the first on: at the last or before, after one row at least."""
        end = int(np.searchsorted(self.work, self.work[first] + _STEP, "right")) - 1
        return min(max(end, first + 1), last)

    def steps(self, rows: NDArray[np.int64]) -> Iterator[slice]:
        """Which of the rows are read in one step each."""
        work = np.concatenate([[0], np.cumsum(np.diff(self.work)[rows])])
        first = 0
        while first < len(rows):
            last = max(int(np.searchsorted(work, work[first] + _STEP, "right")) - 1, first + 1)
            yield slice(first, last)
            first = last

    def read(self, rows: slice | Sequence[int], columns: slice | Sequence[int]) -> Tensor:
        """(rows, columns) float32 on the CPU; float64 is rounded."""
        found = self.map[(*self.at, rows, columns)]
        assert isinstance(found, Tensor)
        return found.to("cpu", torch.float32)


def lens(side: Side, name: Name, head: int, query_axis: Axis, key_axis: Axis) -> Lens:
    """A head of one side, with its tokens hidden and merged as the axes say."""
    m = side.maps[name]
    if isinstance(m, AttentionMap) and len(m.shape) == 3:
        m = m.select(head)
    return Lens(map=seen(m, query_axis, key_axis), at=() if len(m.shape) == 2 else (head,))


def difference(first: Lens, second: Lens) -> Lens:
    """The first less the second."""
    assert first.at == second.at
    return Lens(map=DifferenceMap(first.map, second.map), at=first.at)


def heads(m: WeightMap) -> int:
    """H."""
    return int(m.shape[0]) if len(m.shape) > 2 else 1


def comparable(first: Mapping[Name, WeightMap], second: Mapping[Name, WeightMap]) -> list[Name]:
    """The maps that both sides have in the same shape."""
    return [name for name, m in first.items() if name in second and second[name].shape == m.shape]


def seen(m: WeightMap, query_axis: Axis, key_axis: Axis) -> WeightMap:
    """A map of tokens as a map of items."""
    if query_axis.kept is not None or key_axis.kept is not None:
        queries, keys = m.shape[-2:]
        m = KeptMap(m, query_axis.kept or range(queries), key_axis.kept or range(keys))
    if query_axis.words is not None and key_axis.words is not None:
        m = WordMap(m, query_axis.words, key_axis.words)
    return m


def _work(m: WeightMap) -> NDArray[np.int64]:
    """(Q,) what a row takes to compute, in weights of a plain map: a row is normalised over all keys, whatever is shown."""
    queries, keys = (int(size or 0) for size in m.shape[-2:])
    if isinstance(m, DifferenceMap):
        return _work(m.left) + _work(m.right)
    if isinstance(m, KeptMap):
        return np.full(queries, _KEPT * int(_work(m.map).max(initial=0)), np.int64)
    if isinstance(m, WordMap) and m.spans is not None:
        before = np.concatenate([[0], np.cumsum(_work(m.map))])
        return _MERGED * np.array([before[stop] - before[start] for start, stop in m.spans], np.int64)
    return np.full(queries, keys if isinstance(m, AttentionMap) else _READ * keys, np.int64)
