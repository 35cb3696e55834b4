"""The engine of a map of a Ragged batch over several processes: rows that lie with one are an ordinary call there, each of the others goes by the
ring, as in ragged.py. Statistics of queries and of keys only.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from uwaga.maps.engines import cpu
from uwaga.maps.spec import Normalizer, RowStatistics, RowStatisticsRequest
from uwaga.ops.attention.call import Call
from uwaga.ops.mask_program import MaskProgram
from uwaga.sequence_parallel.exchange import Group
from uwaga.sequence_parallel.map_engine import MapEngine, told
from uwaga.sequence_parallel.ragged import RowPart, Rows, joined


class RaggedMapEngine:
    """An engine of maps (maps/spec.py) for one call of this process's tokens, and those with the same queries and keys."""

    def __init__(self, group: Group, rows: Rows) -> None:
        self.group, self._rows = group, rows

    @told
    def rows(self, call: Call, request: RowStatisticsRequest) -> RowStatistics:
        parts = self._rows.parts_of_call(self.group, call)

        def of_rows(rows: slice) -> RowStatisticsRequest:
            if request.distance is None or request.distance[2] is None:
                return request
            return replace(request, distance=(*request.distance[:2], request.distance[2][rows].contiguous()))

        pieces = [
            cpu.rows(part, of_rows(rows)) if division is None else MapEngine(division).rows(part, of_rows(rows))
            for division, part, rows in parts
        ]
        normalizer = Normalizer(*map(joined, zip(*(x.normalizer for x in pieces), strict=True)))
        others = {
            name: joined(getattr(x, name) for x in pieces)
            for name in RowStatistics._fields[1:]
            if getattr(pieces[0], name) is not None
        }
        return RowStatistics(normalizer, **others)

    @told
    def mass(self, call: Call, normalizer: Normalizer, program: MaskProgram, tensors: tuple[Tensor, ...]) -> Tensor:
        parts = self._rows.parts_of_call(self.group, call)
        with_second = replace(call, options=replace(call.options, mask_program=program), mask_tensors=tensors)
        second = self._rows.parts_of_call(self.group, with_second)
        results = []
        for (division, part, _), (_, other, _), known in zip(parts, second, _split(parts, normalizer), strict=True):
            engine = cpu if division is None else MapEngine(division)
            results.append(engine.mass(part, Normalizer(*known), program, other.mask_tensors))
        return joined(results)

    @told
    def received(self, call: Call, normalizer: Normalizer, row_weights: Tensor | None) -> Tensor:
        parts = self._rows.parts_of_call(self.group, call)
        given = [*normalizer, *(() if row_weights is None else (row_weights,))]
        results = []
        for (division, part, _), (*known, weights) in zip(
            parts, _split(parts, [*given, *[None] * (3 - len(given))]), strict=True
        ):
            engine = cpu if division is None else MapEngine(division)
            results.append(engine.received(part, Normalizer(*known), weights))
        return joined(results)


def _split(parts: list[RowPart], of_tokens: Sequence[Tensor | None]) -> list[Any]:
    """Of each part its tokens of tensors (1, H, N)."""
    lengths = [part.query.shape[2] for _, part, _ in parts]
    split = [[None] * len(lengths) if x is None else x.split(lengths, dim=2) for x in of_tokens]
    return list(zip(*split, strict=True))
