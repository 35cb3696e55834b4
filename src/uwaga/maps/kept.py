"""A map of some of its tokens. Letters: S sequences, H query heads, Q and K kept queries and keys."""

from collections.abc import Sequence

import torch
from torch import Tensor

from uwaga.maps.base import WeightMap
from uwaga.maps.derived import DerivedMap
from uwaga.maps.indexing import expand
from uwaga.maps.spec import Selection

_BLOCK = 1 << 22  # weights that are held at once


class KeptMap(DerivedMap):
    """The weights between the tokens that are kept, every row divided by its sum: as if the others had never been keys.

    So it is read what a head does with the words of a text when most of its weight rests on [SEP], or on the first token
    (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023). A row whose kept keys have no weight
    is 0. Rows are added up when they are first read: O(Q) memory.

    Args:
        map: a dense map of any kind, of a ragged one take m[r].
        queries: the positions that are kept, rising and unique.
        keys: the same for the keys; None: as the queries.

    Raises:
        ValueError: a ragged map.
        IndexError: a position that is out of range.
    """

    __slots__ = ("_keys", "_known", "_queries", "_sums")

    def __init__(self, map: WeightMap, queries: Sequence[int], keys: Sequence[int] | None = None) -> None:
        if map.parts() is not None:
            raise ValueError("KeptMap: the sequences of a ragged map have each their own tokens: KeptMap(m[r], ...)")
        wanted = [list(queries), list(queries if keys is None else keys)]
        rows, columns = expand(tuple(wanted), map.shape[-2:], ["queries", "keys"], "KeptMap")
        self.map = map
        self._queries, self._keys = (x.unique.to(map.device) for x in (rows, columns))
        sizes = (torch.Size(map.shape[:-3]).numel(), map.shape[-3] if len(map.shape) > 2 else 1, len(self._queries))
        self._sums = torch.zeros(sizes, dtype=torch.float64, device=map.device)
        self._known = torch.zeros(sizes, dtype=torch.bool, device=map.device)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.map.shape[:-2], len(self._queries), len(self._keys))

    def describe(self) -> str:
        return f"{self.map.describe()}, some tokens kept"

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        sums_SHQ = self._sums_of(selection)[..., None]
        of_map = selection._replace(queries=self._queries[selection.queries])
        weights = self.map.read(of_map, self._keys[keys]).double()
        return torch.where(sums_SHQ == 0, 0.0, weights / torch.where(sums_SHQ == 0, 1.0, sums_SHQ)).to(self.dtype)

    def parts(self) -> None:
        return None

    def _sums_of(self, selection: Selection) -> Tensor:
        """(sequences, heads, queries) float64: the weight on all kept keys."""
        s, h = (torch.tensor(x, device=self.device) for x in selection[:2])
        is_known = self._known[s[:, None, None], h[:, None], selection.queries].flatten(0, 1).all(0)
        height = max(_BLOCK // max(len(self._keys) * len(s) * len(h), 1), 1)
        for queries in selection.queries[~is_known].split(height):
            if len(queries):
                block = self.map.read(selection._replace(queries=self._queries[queries]), self._keys)
                place = (s[:, None, None], h[:, None], queries)
                self._sums[place], self._known[place] = block.double().sum(-1), True
        return self._sums[s[:, None, None], h[:, None], selection.queries]
