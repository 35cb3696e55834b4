"""A cache of the statistics of one map's rows: computed by an engine when first needed. O(Q) memory.

Letters: B sequences, H query heads, Q queries.
"""

from dataclasses import replace
from types import ModuleType

import torch
from torch import Tensor

from uwaga._base.tracing import may_branch_on
from uwaga.maps.engines import available
from uwaga.maps.spec import Normalizer, RowStatistics, RowStatisticsRequest, Selection
from uwaga.ops.attention.call import Call, compute_dtype

_NORMALIZER_ONLY = RowStatisticsRequest()


class RowCache:
    """Statistics of the rows of one call, computed by an engine of maps."""

    def __init__(self, call: Call, engine: ModuleType, normalizer: Normalizer | None = None) -> None:
        self.call = call
        self.engine = engine
        self._normalizer = normalizer
        self._is_row_known: Tensor | None = None  # (B, H, Q) bool, while the normalizer is known for some rows only
        self._found: dict[object, Tensor] = {}

    @classmethod
    def of_pass(cls, call: Call, engine: ModuleType, request: RowStatisticsRequest, rows: RowStatistics) -> "RowCache":
        """What a pass over all rows has computed."""
        made = cls(call, engine, rows.normalizer)
        made._store(rows, request)
        return made

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"engine": available.name(self.engine)}

    def __setstate__(self, state: dict) -> None:
        self.__dict__ |= state | {"engine": available.restored(state["call"], state["engine"])}

    @property
    def complete(self) -> Normalizer | None:
        """The normalizer, if it is known for all rows."""
        return self._normalizer if self._is_row_known is None else None

    def normalizer(self) -> Normalizer:
        """The normalizer of all rows."""
        if self.complete is None:
            self.compute(_NORMALIZER_ONLY)
        assert self.complete is not None
        return self.complete

    def normalizer_of_rows(self, selection: Selection) -> Normalizer:
        """A normalizer that is known for the selected rows; what it holds for others is undefined."""
        if self.complete is not None:
            return self.complete
        if not may_branch_on(self.call.query):  # which rows are known cannot be read then
            return self.normalizer()
        if self._normalizer is None:
            self._reset()
        assert self._normalizer is not None
        assert self._is_row_known is not None
        b, h = (torch.tensor(numbers, device=self._is_row_known.device) for numbers in selection[:2])
        is_known = self._is_row_known[b[:, None, None], h[:, None], selection.queries].flatten(0, 1).all(0)
        missing = selection.queries[~is_known]
        if len(missing):
            place = (b[:, None, None], h[:, None], missing)
            output = self._run(RowStatisticsRequest(selection=selection._replace(queries=missing)))
            for kept, new in zip(self._normalizer, output.normalizer, strict=True):
                kept[place] = new[place]
            self._is_row_known[place] = True
        return self._normalizer

    def compute(self, request: RowStatisticsRequest) -> None:
        """Compute in one pass the requested statistics that no earlier pass computed."""
        missing = replace(
            request,
            entropy=request.entropy and "entropy" not in self._found,
            squares=request.squares and "squares" not in self._found,
            distance=None if _distance_key(request.distance) in self._found else request.distance,
            top=request.top if request.top > self._top_found() else 0,
        )
        if missing != _NORMALIZER_ONLY or self.complete is None:
            self._store(self._run(missing), missing)

    def _store(self, rows: RowStatistics, request: RowStatisticsRequest) -> None:
        """Store the results of a pass over all rows."""
        if self.complete is None:  # a known normalizer is not replaced, so that weights keep their bits
            self._normalizer, self._is_row_known = rows.normalizer, None
        result = {
            "entropy": rows.entropy,
            "squares": rows.squares,
            _distance_key(request.distance): rows.distance,
            "top": rows.top_weights,
            "top positions": rows.top_positions,
        }
        self._found |= {name: x for name, x in result.items() if x is not None}

    def entropy(self) -> Tensor:
        """(B, H, Q): see `RowStatistics`."""
        self.compute(RowStatisticsRequest(entropy=True))
        return self._found["entropy"]

    def squares(self) -> Tensor:
        """(B, H, Q): see `RowStatistics`."""
        self.compute(RowStatisticsRequest(squares=True))
        return self._found["squares"]

    def distance(self, start: tuple[int, int, Tensor | None]) -> Tensor:
        """(B, H, Q): see `RowStatistics`."""
        self.compute(RowStatisticsRequest(distance=start))
        return self._found[_distance_key(start)]

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """(B, H, Q, k) each: the largest weights and their positions."""
        self.compute(RowStatisticsRequest(top=k))
        return self._found["top"][..., :k], self._found["top positions"][..., :k]

    def _top_found(self) -> int:
        return self._found["top"].shape[-1] if "top" in self._found else 0

    def _run(self, request: RowStatisticsRequest) -> RowStatistics:
        with torch.no_grad():
            return self.engine.rows(self.call, request)

    def _reset(self) -> None:
        """A normalizer that is known for no row."""
        sizes, device = self.call.query.shape[:3], self.call.query.device
        dtype = compute_dtype(self.call.query.dtype)
        self._normalizer = Normalizer(*(torch.empty(sizes, dtype=dtype, device=device) for _ in range(2)))
        self._is_row_known = torch.zeros(sizes, dtype=torch.bool, device=device)


def _distance_key(start: tuple[int, int, Tensor | None] | None) -> object:
    """The cache key of distances from a start; starts per sequence are compared by value."""
    return None if start is None else ("distance", *start[:2], None if start[2] is None else tuple(start[2].tolist()))
