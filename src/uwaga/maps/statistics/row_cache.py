"""What is known of the rows of one map so far: found by an engine when first asked for, and kept. O(Q) memory.

Letters: B sequences, H query heads, Q queries.
"""

from dataclasses import replace
from types import ModuleType

import torch
from torch import Tensor

from uwaga.maps.engines import available
from uwaga.maps.spec import Normalizer, Rows, RowsWanted, Selection
from uwaga.maps.tracing import may_branch_on
from uwaga.ops.attention.call import Call, compute_dtype

_NORMALIZER_ONLY = RowsWanted()


class RowCache:
    """The rows of a lowered call, by an engine of maps."""

    def __init__(self, call: Call, engine: ModuleType, normalizer: Normalizer | None = None) -> None:
        self.call = call
        self.engine = engine
        self._normalizer = normalizer
        self._known: Tensor | None = None  # (B, H, Q) bool, while the normalizer holds some rows only
        self._found: dict[object, Tensor] = {}

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"engine": available.name(self.engine)}

    def __setstate__(self, state: dict) -> None:
        self.__dict__ |= state | {"engine": available.again(state["call"], state["engine"])}

    @property
    def known(self) -> Normalizer | None:
        """The normalizer, where all rows of it are known already."""
        return self._normalizer if self._known is None else None

    def normalizer(self) -> Normalizer:
        """The normalizer of all rows."""
        if self.known is None:
            self.find(_NORMALIZER_ONLY)
        assert self.known is not None
        return self.known

    def some(self, selection: Selection) -> Normalizer:
        """A normalizer whose selected rows are known; the others may hold anything."""
        if self.known is not None:
            return self.known
        if not may_branch_on(self.call.query):  # which rows are known is not to be asked
            return self.normalizer()
        if self._normalizer is None:
            self._forget()
        assert self._normalizer is not None
        assert self._known is not None
        b, h = (torch.tensor(numbers, device=self._known.device) for numbers in selection[:2])
        is_known = self._known[b[:, None, None], h[:, None], selection.queries].flatten(0, 1).all(0)
        missing = selection.queries[~is_known]
        if len(missing):
            place = (b[:, None, None], h[:, None], missing)
            found = self._run(RowsWanted(selection=selection._replace(queries=missing)))
            for kept, new in zip(self._normalizer, found.normalizer, strict=True):
                kept[place] = new[place]
            self._known[place] = True
        return self._normalizer

    def find(self, wanted: RowsWanted) -> None:
        """Find in one pass what is wanted and not known yet."""
        missing = replace(
            wanted,
            entropy=wanted.entropy and "entropy" not in self._found,
            squares=wanted.squares and "squares" not in self._found,
            distance=None if _distance_name(wanted.distance) in self._found else wanted.distance,
            top=wanted.top if wanted.top > self._top_found() else 0,
        )
        if missing != _NORMALIZER_ONLY or self.known is None:
            self.keep(self._run(missing), missing)

    def keep(self, rows: Rows, wanted: RowsWanted) -> None:
        """Remember all rows that a pass found."""
        if self.known is None:  # one that was given stays: weights keep their bits
            self._normalizer, self._known = rows.normalizer, None
        found = {
            "entropy": rows.entropy,
            "squares": rows.squares,
            _distance_name(wanted.distance): rows.distance,
            "top": rows.top_weights,
            "top positions": rows.top_positions,
        }
        self._found |= {name: x for name, x in found.items() if x is not None}

    def entropy(self) -> Tensor:
        """(B, H, Q)"""
        self.find(RowsWanted(entropy=True))
        return self._found["entropy"]

    def squares(self) -> Tensor:
        """(B, H, Q)"""
        self.find(RowsWanted(squares=True))
        return self._found["squares"]

    def distance(self, start: tuple[int, int, Tensor | None]) -> Tensor:
        """(B, H, Q)"""
        self.find(RowsWanted(distance=start))
        return self._found[_distance_name(start)]

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """(B, H, Q, k) weights and positions."""
        self.find(RowsWanted(top=k))
        return self._found["top"][..., :k], self._found["top positions"][..., :k]

    def _top_found(self) -> int:
        return self._found["top"].shape[-1] if "top" in self._found else 0

    def _run(self, wanted: RowsWanted) -> Rows:
        with torch.no_grad():
            return self.engine.rows(self.call, wanted)

    def _forget(self) -> None:
        """Start with no row known."""
        sizes, device = self.call.query.shape[:3], self.call.query.device
        dtype = compute_dtype(self.call.query.dtype)
        self._normalizer = Normalizer(*(torch.empty(sizes, dtype=dtype, device=device) for _ in range(2)))
        self._known = torch.zeros(sizes, dtype=torch.bool, device=device)


def _distance_name(start: tuple[int, int, Tensor | None] | None) -> object:
    """A key to remember distances by: starts per sequence are told apart by their numbers."""
    return None if start is None else ("distance", *start[:2], None if start[2] is None else tuple(start[2].tolist()))
