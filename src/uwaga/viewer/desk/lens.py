"""One head of an exhibit as a matrix of items, whatever kind of map it comes from.

Letters: H query heads, Q and K items along the queries and the keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from uwaga.maps.base import WeightMap
from uwaga.maps.difference import DifferenceMap
from uwaga.maps.kept import KeptMap
from uwaga.maps.map import AttentionMap
from uwaga.maps.words import WordMap
from uwaga.viewer.desk.axes import Axis
from uwaga.viewer.exhibit import Name, Side


@dataclass(frozen=True, slots=True, kw_only=True)
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
